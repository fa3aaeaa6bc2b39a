"""Batches in threads: order, ends, cancels, and one trouble for all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Answer, Batch, RemoteError
from pytest_nvfp4.device.remote.lanes import Lanes, OpeningError, Work
from tests.waiting import LONGEST_S, until


def probe(name: str) -> Batch:
    return Batch(jobs=(Job(id=name, action="probe"),))


class Doing:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.seen: list[tuple[int, str]] = []

    def __call__(self, work: Work) -> Answer:
        self.seen.append((work.lane, work.batch.jobs[0].id))
        work.on_stop = self.go.set
        assert self.go.wait(LONGEST_S)
        if work.stopped.is_set():
            raise RemoteError("lost", "it was killed")
        return Answer(batch=work.batch.id, results=())


@pytest.fixture
def doing() -> Iterator[Doing]:
    made = Doing()
    yield made
    made.go.set()


def test_as_many_as_there_are_lanes_run_in_order(doing: Doing) -> None:
    lanes = Lanes(2, doing)
    handles = lanes.submit([probe(name) for name in "abcd"])
    assert until(lambda: lanes.counts == (2, 2))
    assert {name for _, name in doing.seen} == {"a", "b"}
    assert {lane for lane, _ in doing.seen} == {0, 1}
    assert list(lanes.collect(handles, timeout_s=0)) == [], "none has ended"
    doing.go.set()
    ends = list(lanes.collect(handles, timeout_s=LONGEST_S))
    assert {end.handle.batch.id for end in ends} == {handle.batch.id for handle in handles}
    assert all(end.answer is not None for end in ends)
    assert list(lanes.collect(handles, timeout_s=LONGEST_S)) == [], "each is given once, and nothing is waited for"
    assert lanes.busy_s > 0
    lanes.close(wait_s=5)


def test_what_is_cancelled_ends_as_cancelled(doing: Doing) -> None:
    lanes = Lanes(1, doing)
    handles = lanes.submit([probe(name) for name in "ab"])
    assert until(lambda: lanes.counts == (1, 1))
    lanes.cancel(handles)
    ends = list(lanes.collect(handles, timeout_s=LONGEST_S))
    assert [end.error and end.error.trouble for end in ends] == ["cancelled"] * 2
    assert [name for _, name in doing.seen] == ["a"], "the other never ran"
    (again,) = lanes.submit([probe("c")])
    (end,) = lanes.collect([again], timeout_s=LONGEST_S)
    assert end.answer is not None
    lanes.close(wait_s=5)
    with pytest.raises(RemoteError, match="was stopped"):
        lanes.submit([probe("d")])


def test_trouble_that_all_would_meet_ends_all_but_once_tried() -> None:
    tried = []

    def work(work: Work) -> Answer:
        tried.append(work.batch.id)
        raise OpeningError(RemoteError("login", "no key"))

    lanes = Lanes(1, work)
    handles = lanes.submit([probe(str(index)) for index in range(50)])
    ends = list(lanes.collect(handles, timeout_s=LONGEST_S))
    assert len(ends) == 50
    assert {str(end.error) for end in ends} == {"no key"}
    assert len(tried) == 1
    with pytest.raises(RemoteError, match="no key"):
        lanes.submit([probe("x")])


def test_trouble_of_one_is_its_own() -> None:
    def work(work: Work) -> Answer:
        if work.batch.jobs[0].id == "bad":
            raise ValueError("odd")
        return Answer(batch=work.batch.id, results=())

    lanes = Lanes(1, work)
    ends = list(lanes.collect(lanes.submit([probe("bad"), probe("good")]), timeout_s=LONGEST_S))
    assert [end.error and (end.error.trouble, str(end.error)) for end in ends] == [("far", "ValueError: odd"), None]


def test_who_takes_one_end_gets_the_others_the_next_time() -> None:
    """As the session does where there is something to be sent: the others were lost, and waited for in vain."""
    lanes = Lanes(1, lambda work: Answer(batch=work.batch.id, results=()))
    handles = lanes.submit([probe(name) for name in "abc"])
    assert until(lambda: lanes.counts == (0, 0))
    taken = [next(iter(lanes.collect(handles, timeout_s=5))).handle.batch.jobs[0].id for _ in "abc"]
    assert taken == ["a", "b", "c"]
    lanes.close(wait_s=5)
