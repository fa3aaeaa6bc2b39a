"""The session: windows, deadlines, limits, cancelling and keeping, on a remote that does as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteCall, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.plugin.remote import RemoteRequest, RemoteRun
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from tests import waiting
from tests.waiting import LONGEST_S

from .fakes import FakeRemote, batch, job, passed

NEVER: Callable[[Batch], None] = lambda _: None  # noqa: E731


def wait_error(request: BatchRequest) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        request.wait()
    return caught.value


def until(condition: Callable[[], object]) -> None:
    assert waiting.until(condition)


@pytest.fixture
def session() -> Any:
    made: list[RemoteSession] = []

    def make(remote: FakeRemote, **more: Any) -> RemoteSession:
        made.append(RemoteSession(remote, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_nothing_is_contacted_before_the_first_batch(session: Any) -> None:
    remote = FakeRemote()
    one = session(remote)
    assert one.progress.open == 0
    one.close()
    assert remote.sent == []
    assert remote.stopped == 0


def test_answers_reach_their_tickets_and_few_batches_are_out_at_once(session: Any) -> None:
    remote = FakeRemote()
    requests = session(remote, containers=2).add([batch(number) for number in range(50)])
    assert [request.wait().batch for request in requests] == [request.batch.id for request in requests]
    assert remote.most_open <= 4


def test_one_that_is_waited_for_goes_out_next(session: Any) -> None:
    release = threading.Event()

    def slow(sent: Batch) -> BatchResult:
        release.wait(LONGEST_S)
        return passed(sent)

    remote = FakeRemote(slow)
    one = session(remote)
    requests = one.add([batch(number) for number in range(10)])
    until(lambda: remote.sent)  # what may be out at once is out; the rest still waits here
    one.prioritize(requests[9])
    (urgent,) = one.add([batch(99)], urgent=True)
    release.set()
    for request in requests:
        request.wait()
    order = [sent.jobs[0].id for sent in remote.sent]
    assert order.index(urgent.batch.jobs[0].id) < order.index("job-9") < order.index("job-8")


@pytest.mark.parametrize(("containers", "trouble"), [(0, "capacity"), (1, "timeout"), (None, "timeout")])
def test_what_has_no_answer_in_time_is_given_up(session: Any, containers: int | None, trouble: str) -> None:
    remote = FakeRemote(NEVER, containers=containers)
    one = session(remote, timeout_s=0.2)
    first, second = one.add([batch(1), batch(2)])
    error = wait_error(first)
    assert error.kind == trouble
    assert "--nvfp4-remote-timeout" in str(error)
    assert wait_error(second).kind == trouble
    assert first.batch.id in remote.cancelled


def test_answers_keep_the_others_alive(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that moves is not late, however long its last batch has waited."""
    from pytest_nvfp4.device.remote import session as module

    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    done: list[int] = []

    def slow(sent: Batch) -> BatchResult:
        clock[0] += 100.0
        done.append(1)
        return passed(sent)

    requests = session(FakeRemote(slow), timeout_s=500.0).add([batch(number) for number in range(12)])
    for request in requests:
        request.wait()
    assert len(done) == 12


@pytest.mark.parametrize("patient", [True, False])
def test_building_an_image_is_no_wait_for_an_answer(
    session: Any, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    from pytest_nvfp4.device.remote import session as module

    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    class Builds(FakeRemote):
        """Sends after 600 s, and answers 200 s after that."""

        def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
            clock[0] += 600.0
            return super().submit(batches)

        def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:  # noqa: ARG002
            clock[0] += 25.0
            if clock[0] >= 800.0:
                yield from (call.ended(result=passed(call.batch)) for call in calls)

    (request,) = session(Builds(NEVER), timeout_s=500.0 if patient else 100.0).add([batch()])
    if patient:
        request.wait()
    else:
        assert wait_error(request).kind == "timeout"


@pytest.mark.parametrize("trouble", ["setup", "login", "network", "version", "image", "capacity", "cost"])
def test_what_every_batch_would_meet_ends_the_session(session: Any, trouble: Any) -> None:
    remote = FakeRemote(lambda _: RemoteError(trouble, "no", "do this"))
    one = session(remote)
    errors = [wait_error(request) for request in one.add([batch(number) for number in range(20)])]
    assert {str(error) for error in errors} == {"no; do this"}
    assert len(remote.sent) <= 2
    assert wait_error(one.add([batch(99)])[0]).kind == trouble
    until(lambda: remote.stopped == 1)


def test_what_concerns_one_batch_leaves_the_others(session: Any) -> None:
    bad = batch(1)
    remote = FakeRemote(lambda sent: RemoteError("memory", "too large") if sent.id == bad.id else passed(sent))
    one = session(remote)
    first, second, third = one.add([batch(0), bad, batch(2)])
    first.wait()
    third.wait()
    assert wait_error(second).kind == "memory"
    assert one.failure is None
    assert one.loss is not None
    assert one.loss.kind == "memory"
    run = RemoteRun.__new__(RemoteRun)
    run.request, run._session = RemoteRequest("modal", RemoteOptions(), reuse=False), one
    assert run.used()["failure"] == "too large", "whoever reads the report is told that a result is missing"


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_batch_is_sent_once_more_and_only_once(session: Any, times: int) -> None:
    lost: list[str] = []

    def reply(sent: Batch) -> BatchResult | RemoteError:
        lost.append(sent.id)
        return RemoteError("lost", "gone") if len(lost) <= times else passed(sent)

    remote = FakeRemote(reply)
    (request,) = session(remote).add([batch()])
    if times == 1:
        assert request.wait().results[0].status == "passed"
    else:
        assert "submitted 2 times" in str(wait_error(request))
    assert len(remote.sent) == 2


def test_a_remote_that_raises_ends_every_wait(session: Any) -> None:
    def broken(_: Batch) -> BatchResult:
        raise ZeroDivisionError("oops")

    requests = session(FakeRemote(broken)).add([batch(1), batch(2)])
    assert {wait_error(request).kind for request in requests} == {"remote"}


def test_cancelling_sends_nothing_more(session: Any) -> None:
    remote = FakeRemote(NEVER)
    one = session(remote)
    requests = one.add([batch(number) for number in range(10)])
    until(lambda: len(remote.sent) == 2)
    one.cancel(requests)
    assert {wait_error(request).kind for request in requests} == {"cancelled"}
    until(lambda: len(remote.cancelled) == 2)
    assert len(remote.sent) == 2
    assert one.progress.cancelled == 10


def test_closing_cancels_what_is_open(session: Any) -> None:
    remote = FakeRemote(NEVER)
    one = session(remote)
    requests = one.add([batch(number) for number in range(5)])
    until(lambda: remote.sent)
    one.close()
    assert all(request.done for request in requests)
    assert remote.cancelled
    assert remote.stopped == 1


def test_closing_ends_a_remote_that_waits_to_be_set_up(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while an image is built: the session's thread is in the remote, which alone can end that."""
    from pytest_nvfp4.device.remote import session as module

    monkeypatch.setattr(module, "_THREAD_END_S", 0.05)
    stopped = threading.Event()

    class Building(FakeRemote):
        def submit(self, _: Any) -> Any:
            assert stopped.wait(LONGEST_S)
            raise RemoteError("cancelled", "it was stopped")

        def stop(self) -> None:
            super().stop()
            stopped.set()

    one = session(Building())
    (request,) = one.add([batch()])
    until(lambda: one.progress.building)
    one.close()
    assert stopped.is_set()
    assert wait_error(request).kind == "cancelled"
    assert one.failure is None, "it was ended by who closed it, and by nothing that went wrong"
    assert one.progress.cancelled == 1


def test_the_limit_on_the_cost_ends_the_session(session: Any) -> None:
    remote = FakeRemote(NEVER, usd_per_hour=3600.0)
    one = session(remote, max_cost=5.0)
    (request,) = one.add([batch()])
    remote.seconds = 6.0
    error = wait_error(request)
    assert error.kind == "cost"
    assert "--nvfp4-remote-max-cost is $5.00" in str(error)
    until(lambda: remote.stopped == 1)


def test_an_answer_to_another_batch_is_not_taken(session: Any) -> None:
    other = passed(batch(7))
    (request,) = session(FakeRemote(lambda _: other)).add([batch()])
    assert wait_error(request).kind == "lost"


class TestKept:
    def kept(self, tmp_path: Path) -> RemoteResultCache:
        return RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")

    def test_an_answer_is_on_disk_before_anyone_is_told(self, session: Any, tmp_path: Path) -> None:
        kept = self.kept(tmp_path)
        (request,) = session(FakeRemote(), cache=kept).add([Batch(jobs=(job(1, seed=77),))])
        request.wait()
        assert set(kept.get(request.batch)) == {0}

    def test_it_is_used_again_only_where_that_is_wanted(self, session: Any, tmp_path: Path) -> None:
        session(FakeRemote(), cache=self.kept(tmp_path)).add([Batch(jobs=(job(1, seed=77),))])[0].wait()
        again = FakeRemote()
        (request,) = session(again, cache=self.kept(tmp_path), reuse=True).add([Batch(jobs=(job(1, seed=5),))])
        assert request.wait().results[0].job == "job-1"
        assert request.batch.jobs[0].order_seed == 77, "the seed that is shown is the one that was run"
        assert again.sent == []
        paid = FakeRemote()
        session(paid, cache=self.kept(tmp_path)).add([Batch(jobs=(job(1),))])[0].wait()
        assert len(paid.sent) == 1

    @pytest.mark.parametrize("other", [job(2), job(1, text="x = 2\n"), job(1, action="benchmark"), job(1, rounds=9)])
    def test_another_question_is_another_entry(self, session: Any, tmp_path: Path, other: Any) -> None:
        session(FakeRemote(), cache=self.kept(tmp_path)).add([Batch(jobs=(job(1),))])[0].wait()
        assert self.kept(tmp_path).get(Batch(jobs=(other,))) == {}
        assert RemoteResultCache(SealedFiles(tmp_path), remote="fake H200").get(Batch(jobs=(job(1),))) == {}

    @pytest.mark.parametrize("status", ["timeout", "crashed", "unavailable", "unsupported"])
    def test_what_may_be_the_remotes_doing_is_tried_again(self, session: Any, tmp_path: Path, status: str) -> None:
        def reply(sent: Batch) -> BatchResult:
            answer = passed(sent)
            return answer.model_copy(update={"results": (answer.results[0].model_copy(update={"status": status}),)})

        session(FakeRemote(reply), cache=self.kept(tmp_path)).add([batch(1)])[0].wait()
        assert self.kept(tmp_path).get(batch(1)) == {}

    def test_a_damaged_entry_is_none(self, session: Any, tmp_path: Path) -> None:
        session(FakeRemote(), cache=self.kept(tmp_path)).add([batch(1)])[0].wait()
        (file,) = tmp_path.rglob("*.json")
        file.write_text(file.read_text()[:-20])
        assert self.kept(tmp_path).get(batch(1)) == {}

    def test_a_disk_that_refuses_fails_nothing(self, session: Any, tmp_path: Path) -> None:
        (tmp_path / "remote").write_text("a file where the folder should be")
        (request,) = session(FakeRemote(), cache=self.kept(tmp_path)).add([batch(1)])
        assert request.wait().results[0].status == "passed"

    @pytest.mark.parametrize("trouble", [None, "network"])
    def test_what_came_before_the_end_is_kept(self, session: Any, tmp_path: Path, trouble: Any) -> None:
        """Also what nobody has looked at yet: it was paid for."""
        remote, kept = FakeRemote(NEVER), self.kept(tmp_path)
        one = session(remote, cache=kept, containers=3)
        requests = one.add([batch(number) for number in range(3)])
        until(lambda: all(request.call for request in requests))
        with one._lock:  # the session's thread takes nothing meanwhile
            if trouble is not None:
                remote._ends.put(requests[0].call.ended(error=RemoteError(trouble, "no")))
            for request in requests[1:]:
                remote._ends.put(request.call.ended(result=passed(request.batch)))
            one._closing = trouble is None
        one.close()
        assert [set(kept.get(batch(number))) for number in range(3)] == [set(), {0}, {0}]

    def test_an_answer_that_nobody_waits_for_is_kept(self, session: Any, tmp_path: Path) -> None:
        remote, kept = FakeRemote(NEVER), self.kept(tmp_path)
        one = session(remote, cache=kept)
        (request,) = one.add([batch(1)])
        until(lambda: request.call)
        request.finish(error=RemoteError("cancelled", "nobody needs it"))
        remote._ends.put(request.call.ended(result=passed(request.batch)))
        until(lambda: kept.get(batch(1)))
