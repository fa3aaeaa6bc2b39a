"""Batches in threads: order, ends, cancels, and one trouble for all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.remote.pool import PoolTask, WorkerPool, WorkerStartError
from tests.waiting import LONGEST_S, until


def probe(name: str) -> Batch:
    return Batch(jobs=(Job(id=name, action="probe"),))


class Doing:
    """PoolTask that waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.seen: list[tuple[int, str]] = []

    def __call__(self, work: PoolTask) -> BatchResult:
        self.seen.append((work.worker, work.batch.jobs[0].id))
        work.on_stop = self.go.set
        assert self.go.wait(LONGEST_S)
        if work.stopped.is_set():
            raise RemoteError("lost", "it was killed")
        return BatchResult(batch=work.batch.id, results=())


@pytest.fixture
def doing() -> Iterator[Doing]:
    made = Doing()
    yield made
    made.go.set()


def test_as_many_as_there_are_lanes_run_in_order(doing: Doing) -> None:
    pool = WorkerPool(2, doing)
    calls = pool.submit([probe(name) for name in "abcd"])
    assert until(lambda: pool.counts == (2, 2))
    assert {name for _, name in doing.seen} == {"a", "b"}
    assert {worker for worker, _ in doing.seen} == {0, 1}
    assert list(pool.collect(calls, timeout_s=0)) == [], "none has ended"
    doing.go.set()
    ends = list(pool.collect(calls, timeout_s=LONGEST_S))
    assert {end.batch.id for end in ends} == {call.batch.id for call in calls}
    assert all(end.result is not None for end in ends)
    assert list(pool.collect(calls, timeout_s=LONGEST_S)) == [], "each is given once, and nothing is waited for"
    assert pool.busy_s > 0
    pool.close(wait_s=5)


def test_what_is_cancelled_ends_as_cancelled(doing: Doing) -> None:
    pool = WorkerPool(1, doing)
    calls = pool.submit([probe(name) for name in "ab"])
    assert until(lambda: pool.counts == (1, 1))
    pool.cancel(calls)
    ends = list(pool.collect(calls, timeout_s=LONGEST_S))
    assert [end.error and end.error.kind for end in ends] == ["cancelled"] * 2
    assert [name for _, name in doing.seen] == ["a"], "the other never ran"
    (again,) = pool.submit([probe("c")])
    (end,) = pool.collect([again], timeout_s=LONGEST_S)
    assert end.result is not None
    pool.close(wait_s=5)
    with pytest.raises(RemoteError, match="was stopped"):
        pool.submit([probe("d")])


def test_trouble_that_all_would_meet_ends_all_but_once_tried() -> None:
    tried = []

    def work(work: PoolTask) -> BatchResult:
        tried.append(work.batch.id)
        raise WorkerStartError(RemoteError("login", "no key"))

    pool = WorkerPool(1, work)
    calls = pool.submit([probe(str(index)) for index in range(50)])
    ends = list(pool.collect(calls, timeout_s=LONGEST_S))
    assert len(ends) == 50
    assert {str(end.error) for end in ends} == {"no key"}
    assert len(tried) == 1
    with pytest.raises(RemoteError, match="no key"):
        pool.submit([probe("x")])


def test_trouble_of_one_is_its_own() -> None:
    def work(work: PoolTask) -> BatchResult:
        if work.batch.jobs[0].id == "bad":
            raise ValueError("odd")
        return BatchResult(batch=work.batch.id, results=())

    pool = WorkerPool(1, work)
    ends = list(pool.collect(pool.submit([probe("bad"), probe("good")]), timeout_s=LONGEST_S))
    assert [end.error and (end.error.kind, str(end.error)) for end in ends] == [("remote", "ValueError: odd"), None]


def test_who_takes_one_end_gets_the_others_the_next_time() -> None:
    """As the session does where there is something to be sent: the others were lost, and waited for in vain."""
    pool = WorkerPool(1, lambda work: BatchResult(batch=work.batch.id, results=()))
    calls = pool.submit([probe(name) for name in "abc"])
    assert until(lambda: pool.counts == (0, 0))
    taken = [next(iter(pool.collect(calls, timeout_s=5))).batch.jobs[0].id for _ in "abc"]
    assert taken == ["a", "b", "c"]
    pool.close(wait_s=5)
