"""What is asked for at once goes out in batches that become final together, and a lost one takes no other with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.remote.cache import RemoteResultCache, cache_fields
from pytest_nvfp4.device.remote.device import RemoteDevice
from pytest_nvfp4.device.remote.executor import execute_batch
from pytest_nvfp4.device.remote.schedule import compared, group_steps, split_batch, steps
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.toolchain.sealed_files import SealedFiles

from .fakes import FakeRemote, Place, job, passed


def timed(text: str, number: int, *, key: int = 5) -> Job:
    """A benchmark of a kernel on problem ``number``; those of one key may share a process."""
    made = job(number, action="benchmark", text=text, seed=number)
    return made.model_copy(update={"id": f"{text}{number}", "row_key": key})


def names(batch: Batch) -> list[list[str]]:
    return [[one.id for one in piece.jobs] for piece in split_batch(batch)]


def test_every_other_job_is_a_piece() -> None:
    assert names(Batch(jobs=(job(1), job(2), job(3)))) == [["job-1"], ["job-2"], ["job-3"]]


def test_what_shares_a_process_stays_together() -> None:
    assert names(Batch(jobs=(timed("a", 1), job(9), timed("a", 2), timed("b", 1), timed("a", 3, key=6)))) == [
        ["a1", "a2"],
        ["job-9"],
        ["b1"],
        ["a3"],
    ]


def test_what_is_compared_stays_together() -> None:
    """And with it what shares a process with one of the two; the rest has nothing to do with it."""
    jobs = (timed("a", 1), timed("a", 2), timed("b", 2), timed("c", 3), job(2), timed("d", 2, key=6))
    assert names(Batch(jobs=jobs, blocks=4)) == [["a1", "a2", "b2", "d2"], ["c3"], ["job-2"]]
    assert names(Batch(jobs=jobs)) == [["a1", "a2"], ["b2"], ["c3"], ["job-2"], ["d2"]]


def test_what_cannot_be_cut_is_left_as_it_is() -> None:
    for batch in (Batch(jobs=(job(1),)), Batch(jobs=(timed("a", 1), timed("b", 1)), blocks=4)):
        assert split_batch(batch) == [batch]


_JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(5, 6), st.booleans()), min_size=1, max_size=8
)


@given(_JOBS, st.sampled_from([1, 4]))
def test_pieces_ask_and_do_what_the_whole_would(drawn: list[tuple[str, int, int, bool]], blocks: int) -> None:
    jobs = [
        timed(text, number, key=key) if is_timed else job(number, text=text) for text, number, key, is_timed in drawn
    ]
    jobs = [one.model_copy(update={"id": str(index)}) for index, one in enumerate(jobs)]
    whole = Batch(jobs=tuple(jobs), blocks=blocks, capability=(10, 0))
    cut = split_batch(whole)
    assert sorted(one.id for piece in cut for one in piece.jobs) == sorted(one.id for one in jobs)
    assert len({piece.id for piece in cut}) == len(cut)
    for piece in cut:
        assert (piece.blocks, piece.capability) == (blocks, (10, 0))
        for one in piece.jobs:
            assert cache_fields(one, piece) == cache_fields(one, whole), "one result serves both"
    processes = Counter(
        tuple(sorted((step.job.id, step.block) for step in several)) for several in group_steps(steps(whole))
    )
    of_pieces = [
        tuple(sorted((step.job.id, step.block) for step in several))
        for piece in cut
        for several in group_steps(steps(piece))
    ]
    assert len(of_pieces) <= processes.total(), "and no process more is started"
    for one in jobs:
        for other in jobs:
            if compared(one, other, whole):
                assert any({one.id, other.id} <= {each.id for each in piece.jobs} for piece in cut)


class Dying(FakeRemote):
    """Does a batch job by job; in one of them, once, the machine is lost and with it the batch."""

    def __init__(self, dies_at: int) -> None:
        super().__init__(self._do)
        self.ran: list[str] = []
        self._dies_at = dies_at

    def _do(self, batch: Batch) -> BatchResult | RemoteError:
        def run(one: Job, folder: Path) -> Result:
            del folder
            self.ran.append(one.id)
            if len(self.ran) == self._dies_at:
                raise ConnectionError
            return Result(job=one.id, status="passed")

        try:
            return execute_batch(batch, run=run, place=Place(container="c"))
        except ConnectionError:
            return RemoteError("lost", "the container was lost")


def test_a_machine_that_dies_takes_one_job_with_it(tmp_path: Path) -> None:
    remote = Dying(4)
    session = RemoteSession(remote)
    device = RemoteDevice(session, name="fake", gpu="B200")
    jobs = [job(number) for number in range(8)]
    device.send_ahead(jobs)
    assert [device.run(one, folder=tmp_path).status for one in jobs] == ["passed"] * 8
    session.close()
    assert Counter(remote.ran) == {**{one.id: 1 for one in jobs}, "job-3": 2}


def test_as_one_batch_it_would_take_all_that_was_done() -> None:
    """The negative control."""
    remote = Dying(4)
    session = RemoteSession(remote)
    (request,) = session.add([Batch(jobs=tuple(job(number) for number in range(8)))])
    request.wait()
    session.close()
    assert Counter(remote.ran) == {
        **{f"job-{number}": 2 for number in range(4)},
        **{f"job-{n}": 1 for n in range(4, 8)},
    }


@pytest.fixture
def session(tmp_path: Path) -> Any:
    made: list[RemoteSession] = []

    def make(remote: FakeRemote) -> RemoteSession:
        cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")
        made.append(RemoteSession(remote, cache=cache, reuse=True))
        return made[-1]

    yield make
    for one in made:
        one.close()


def crashing(name: str) -> Callable[[Batch], BatchResult]:
    """Every job passes but one, which crashes: that may be the remote's doing, and is not kept."""

    def reply(batch: Batch) -> BatchResult:
        answer = passed(batch)
        results = [one.model_copy(update={"status": "crashed"}) if one.job == name else one for one in answer.results]
        return answer.model_copy(update={"results": tuple(results)})

    return reply


def test_of_a_batch_that_is_known_in_part_the_rest_is_sent(session: Any) -> None:
    whole = Batch(jobs=tuple(timed("a", number) for number in range(5)))
    session(FakeRemote(crashing("a3"))).add([whole])[0].wait()
    again = FakeRemote()
    asked = whole.model_copy(
        update={"id": "x", "jobs": tuple(one.model_copy(update={"order_seed": 77}) for one in whole.jobs)}
    )
    (request,) = session(again).add([asked])
    assert [one.job for one in request.wait().results] == [one.id for one in whole.jobs], "each in its place"
    assert {one.status for one in request.result.results} == {"passed"}
    assert [[one.id for one in sent.jobs] for sent in again.sent] == [["a3"]]
    assert [one.order_seed for one in request.batch.jobs] == [0, 1, 2, 77, 4], "each with the draws of its run"
    known = FakeRemote()
    session(known).add([asked])[0].wait()
    assert known.sent == [], "and now all of it is known"


def test_what_is_compared_is_known_together_or_not_at_all(session: Any) -> None:
    """Measured on another day, it would not be beside what it is compared with."""
    jobs = (timed("a", 1), timed("b", 1), timed("a", 2), timed("b", 2))
    session(FakeRemote(crashing("b2"))).add([Batch(jobs=jobs, blocks=4)])[0].wait()
    again = FakeRemote()
    session(again).add([Batch(jobs=jobs, blocks=4)])[0].wait()
    assert [[one.id for one in sent.jobs] for sent in again.sent] == [["a2", "b2"]]


def test_a_part_that_is_lost_is_sent_once_more_and_its_answer_must_fit(session: Any) -> None:
    whole = Batch(jobs=(timed("a", 1), timed("a", 2), timed("a", 3)))
    session(FakeRemote(crashing("a2"))).add([whole])[0].wait()
    tried: list[Batch] = []

    def reply(batch: Batch) -> BatchResult:
        tried.append(batch)
        if len(tried) == 1:  # as many results as were asked for at first, not as were sent
            return passed(whole).model_copy(update={"batch": batch.id})
        return passed(batch)

    (request,) = session(FakeRemote(reply)).add([whole])
    assert len(request.wait().results) == 3
    assert [len(batch.jobs) for batch in tried] == [1, 1]
