"""Calls of an earlier session: fetched once it is gone, left to it while it lives, and sent anew if they are lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.remote.base import Batch, RemoteCall, RemoteError
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.device.remote.call_store import CallStore
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from tests.waiting import until

from .fakes import FakeRemote, job, passed

ROOT = Path(__file__).parents[3]


def one_batch(seed: int, *, number: int = 0) -> Batch:
    return Batch(jobs=(job(number, seed=seed),))


def store(folder: Path, *, remote: str = "fake B200") -> CallStore:
    return CallStore(RemoteResultCache(SealedFiles(folder), remote=remote))


class Attaching(FakeRemote):
    """A remote whose earlier calls have ended: with a result, or with an error."""

    def __init__(self, earlier: dict[str, Batch | RemoteError]) -> None:
        super().__init__()
        self.earlier = earlier
        self.attached: list[str] = []
        self.on_call: Callable[[Batch, str], None] | None = None

    @property
    def where(self) -> str:
        return "there"

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        assert self.on_call is not None
        calls = super().submit(batches)
        for call in calls:
            self.on_call(call.batch, call.id)
        return calls

    def attach(self, batch: Batch, call: str, where: str) -> RemoteCall:
        del where
        self.attached.append(call)
        end = self.earlier[call]
        made = RemoteCall(batch, call)
        self._ends.put(made.ended(error=end) if isinstance(end, RemoteError) else made.ended(passed(end)))
        return made


def test_a_call_is_stored_as_it_is_made_and_forgotten_when_it_has_ended(tmp_path: Path) -> None:
    cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")
    remote = Attaching({})
    remote.reply = lambda _: None
    session = RemoteSession(remote, cache=cache)
    (request,) = session.add([one_batch(7)])
    assert until(lambda: request.call)
    session.close()
    found = store(tmp_path).get(one_batch(1))
    assert found is not None
    assert request.call is not None
    assert (found.id, found.draws) == (request.call.id, ((7, 1007),))
    again = RemoteSession(Attaching({found.id: request.batch}), cache=cache, reuse=True)
    (request,) = again.add([one_batch(1)])
    assert request.wait().results[0].status == "passed"
    assert request.batch.jobs[0].order_seed == 7, "the seed that is shown is the one that was run"
    again.close()
    assert store(tmp_path).get(one_batch(1)) is None


@pytest.mark.parametrize("kind", ["lost", "cancelled", "remote", "version", "network"])
def test_a_call_that_is_lost_is_sent_anew_and_a_cut_keeps_it(tmp_path: Path, kind: Any) -> None:
    first, earlier = store(tmp_path), one_batch(7)
    first.add(earlier, "call-1", where="there")
    first.close()
    cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")
    remote = Attaching({"call-1": RemoteError(kind, "it is gone")})
    session = RemoteSession(remote, cache=cache, reuse=True)
    (request,) = session.add([one_batch(1)])
    if kind == "network":
        with pytest.raises(RemoteError, match="it is gone"):
            request.wait()
    else:
        assert request.wait().results[0].status == "passed"
    session.close()
    assert len(remote.sent) == (kind != "network")
    assert (store(tmp_path).get(one_batch(1)) is None) == (kind != "network")


def test_a_call_that_is_asked_for_while_another_is_attached_is_not_paid_for_again(tmp_path: Path) -> None:
    """What the connection takes is time in which further batches are requested."""
    first, earlier = store(tmp_path), [one_batch(7), one_batch(8, number=1)]
    for number, batch in enumerate(earlier):
        first.add(batch, f"call-{number}", where="there")
    first.close()
    cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")
    remote = Attaching({f"call-{number}": batch for number, batch in enumerate(earlier)})
    session = RemoteSession(remote, cache=cache, reuse=True)
    later: list[BatchRequest] = []
    attach = remote.attach

    def slow(batch: Batch, call: str, where: str) -> RemoteCall:
        if not later:
            later.extend(session.add([one_batch(1, number=1), one_batch(1, number=2)]))
        return attach(batch, call, where)

    remote.attach = slow  # type: ignore[method-assign]
    (request,) = session.add([one_batch(1)])
    assert until(lambda: len(later) == 2)
    requests = [request, *later]
    assert [request.wait().results[0].status for request in requests] == ["passed"] * 3
    session.close()
    assert (remote.attached, [batch.jobs[0].id for batch in remote.sent]) == (["call-0", "call-1"], ["job-2"])
    assert (session.progress.cached, session.progress.done) == (2, 1)


@pytest.mark.parametrize("answer", ["another batch", "another job"])
def test_an_answer_to_something_else_is_not_taken(tmp_path: Path, answer: str) -> None:
    first, earlier = store(tmp_path), one_batch(7)
    first.add(earlier, "call-1", where="")
    first.close()
    other = one_batch(7, number=5)
    other = other.model_copy(update={"id": earlier.id if answer == "another job" else other.id})
    cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")
    remote = Attaching({"call-1": other})
    session = RemoteSession(remote, cache=cache, reuse=True)
    assert session.add([one_batch(1)])[0].wait().results[0].job == "job-0"
    session.close()
    assert len(remote.sent) == 1


@pytest.mark.parametrize("reuse", [True, False])
def test_without_resume_nothing_is_attached(tmp_path: Path, reuse: bool) -> None:
    first, earlier = store(tmp_path), one_batch(7)
    first.add(earlier, "call-1", where="")
    first.close()
    remote = Attaching({"call-1": earlier})
    cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake B200")
    session = RemoteSession(remote, cache=cache, reuse=reuse)
    session.add([one_batch(1)])[0].wait()
    session.close()
    assert (remote.attached, len(remote.sent)) == ((["call-1"], 0) if reuse else ([], 1))


HOLDS = """
import pathlib, sys
from tests.device.remote.test_call_store import one_batch, store
held = store(pathlib.Path(sys.argv[1]))
held.add(one_batch(7), "call-1", where="")
print("stored", flush=True)
sys.stdin.read()
"""


def test_the_calls_of_a_live_session_are_left_to_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stored\n"
    assert store(tmp_path).get(one_batch(1)) is None
    process.kill()
    process.communicate()
    found = store(tmp_path).get(one_batch(1))
    assert found is not None
    assert found.id == "call-1"


@pytest.mark.parametrize("other", [{"number": 1}, {"text": "x = 2\n"}, {"action": "benchmark"}, {"rounds": 9}])
def test_another_question_is_another_call(tmp_path: Path, other: dict[str, Any]) -> None:
    first = store(tmp_path)
    first.add(one_batch(7), "call-1", where="")
    first.close()
    assert store(tmp_path).get(Batch(jobs=(job(**other),))) is None
    assert store(tmp_path, remote="fake H200").get(one_batch(7)) is None
    assert store(tmp_path).get(Batch(jobs=(job(seed=7),), exact=True)) is None


def test_a_disk_that_refuses_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(SealedFiles, "write", full)
    remote = Attaching({})
    session = RemoteSession(remote, cache=RemoteResultCache(SealedFiles(tmp_path), remote="fake"))
    assert session.add([one_batch(1)])[0].wait().results
    session.close()
