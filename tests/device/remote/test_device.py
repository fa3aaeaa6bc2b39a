"""A remote as a device: what was sent ahead is found, used once, and let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.call_plan import plan_calls
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Place, RemoteError
from pytest_nvfp4.device.remote.cache import RemoteResultCache, draws_of, with_draws
from pytest_nvfp4.device.remote.device import RemoteDevice
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import Blob, DeviceInfo, GroupOutput, Result
from pytest_nvfp4.device.verify import Rounds, benchmark_job, verify_job
from pytest_nvfp4.toolchain.sealed_files import SealedFiles

from .fakes import FakeRemote, job

answers: list[weakref.ref[BatchResult]] = []
LARGE = bytes(2 * 128 * (8 + 7 + 128))
"""C of a job of `fakes`, with its guard rows."""


def large(batch: Batch) -> BatchResult:
    """An answer with a large output for each job."""
    results = []
    for one in batch.jobs:
        blob = Blob.inlined(LARGE)
        call = next((at for at, call in enumerate(plan_calls(one.cases, one.order_seed)) if not call.other_sizes), 0)
        timed = one.action == "benchmark"
        output = GroupOutput(
            call=0 if timed else call,
            case=0,
            group=0,
            rows=143,
            columns=128,
            data=blob,
            late_sha256=None,
            returned="c",
            inputs=(0, 0) if timed else None,
        )
        device = DeviceInfo(name="NVIDIA B200", capability=(10, 0), simulated=True)
        results.append(Result(job=one.id, status="passed", outputs=(output,), device=device))
    answer = BatchResult(batch=batch.id, results=tuple(results), place=Place(container="c"))
    answers.append(weakref.ref(answer))
    return answer


@pytest.fixture
def remote() -> FakeRemote:
    answers.clear()
    return FakeRemote(large)


@pytest.fixture
def device(remote: FakeRemote) -> Iterator[RemoteDevice]:
    session = RemoteSession(remote)
    yield RemoteDevice(session, name="fake", gpu="B200")
    session.close()


def test_what_was_sent_ahead_is_used_once_and_let_go(device: RemoteDevice, remote: FakeRemote, tmp_path: Path) -> None:
    jobs = [job(number, seed=number) for number in range(10)]
    jobs += [job(number, action="benchmark").model_copy(update={"row_key": 7}) for number in range(10, 20)]
    jobs += [job(number, seed=number) for number in range(20, 30)]
    device.send_ahead(jobs[:10])
    device.send_ahead(jobs[10:20])
    for one in jobs[20:]:
        device.send_ahead([one])
    assert device.job_as_run(job(22, seed=99)).order_seed == 22, "the one that was sent asks the same"
    for one in jobs:
        assert device.run(one, folder=tmp_path).outputs[0].data.size == len(LARGE)
    assert len(remote.sent) == 21
    gc.collect()
    held = [ref for ref in answers if ref() is not None]
    assert len(held) <= 1, "nothing holds them any more but the session's thread its last"
    device.send_ahead(jobs)
    assert len(remote.sent) == 21, "nothing is sent ahead of what was there already"
    device.run(jobs[3], folder=tmp_path)
    assert len(remote.sent) == 22, "who asks again wants it anew"


def test_what_was_drawn_is_no_part_of_the_question(device: RemoteDevice, remote: FakeRemote, tmp_path: Path) -> None:
    """Else every check would be sent, and paid for, twice; and no answer of an earlier session would ever be used."""
    kernel, case = job().kernel, job().cases[0]
    assert kernel is not None
    for make in (
        lambda: verify_job(kernel, [case], deadline_s=60),
        lambda: benchmark_job(kernel, [case], rounds=Rounds(50), deadline_s=60),
    ):
        remote.sent.clear()
        device.send_ahead([make()])
        mine = make()
        ran = device.job_as_run(mine)
        assert draws_of(ran) == draws_of(remote.sent[0].jobs[0]) != draws_of(mine)
        device.run(with_draws(mine, draws_of(ran)), folder=tmp_path)
        assert len(remote.sent) == 1


def test_who_asks_with_given_draws_gets_no_answer_of_others(
    device: RemoteDevice, remote: FakeRemote, tmp_path: Path
) -> None:
    """The judge would expect what another run was to return."""
    device.send_ahead([job(1, seed=1)])
    device.run(job(1, seed=2), folder=tmp_path)
    assert draws_of(device.job_as_run(job(1, seed=3))) == (1, 1001), "what was sent ahead is there still"
    assert sorted((draws_of(one.jobs[0])[0], one.exact) for one in remote.sent) == [(1, False), (2, True)]


def test_of_a_kept_answer_the_draws_are_told_with_which_it_was_made(remote: FakeRemote, tmp_path: Path) -> None:
    for seed, sent in ((1, 1), (2, 0)):
        remote.sent.clear()
        session = RemoteSession(remote, cache=RemoteResultCache(SealedFiles(tmp_path), remote="fake B200"), reuse=True)
        device = RemoteDevice(session, name="fake", gpu="B200")
        ran = device.job_as_run(job(1, seed=seed))
        assert draws_of(ran) == (1, 1001)
        assert device.run(ran, folder=tmp_path).status == "passed"
        assert len(remote.sent) == sent
        session.close()


def test_who_answered_is_said(device: RemoteDevice, tmp_path: Path) -> None:
    assert str(device.describe()) == "B200 (fake), sm_100"
    device.run(job(), folder=tmp_path)
    assert str(device.describe()) == "simulated NVIDIA B200, sm_100"
    assert [str(one) for one in device.session.devices] == ["simulated NVIDIA B200, sm_100"]


def test_a_remote_in_trouble_is_no_verdict(tmp_path: Path) -> None:
    session = RemoteSession(FakeRemote(lambda _: RemoteError("memory", "too large", "use less")))
    result = RemoteDevice(session, name="fake", gpu="B200").run(job(), folder=tmp_path)
    session.close()
    assert result.status == "unavailable"
    assert "too large; use less" in result.reason
