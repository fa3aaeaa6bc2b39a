"""A remote as a device: what was sent ahead is found, used once, and let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import Answer, Batch, Place, RemoteError
from pytest_nvfp4.device.remote.device import RemoteDevice
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import Blob, DeviceInfo, Output, Result

from .fakes import FakeRemote, job

answers: list[weakref.ref[Answer]] = []
LARGE = bytes(1 << 20)


def large(batch: Batch) -> Answer:
    """An answer with a large output for each job."""
    results = []
    for one in batch.jobs:
        blob = Blob.inlined(LARGE)
        output = Output(
            call=0, case=0, group=0, rows=512, columns=1024, data=blob, late_sha256=None, returned="c", inputs=None
        )
        device = DeviceInfo(name="NVIDIA B200", capability=(10, 0), simulated=True)
        results.append(Result(job=one.id, status="passed", outputs=(output,), device=device))
    answer = Answer(batch=batch.id, results=tuple(results), place=Place(container="c"))
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
    jobs = [job(number, seed=number) for number in range(30)]
    device.send_ahead(jobs[:10])
    for one in jobs[10:]:
        device.send_ahead([one])
    assert device.ahead(job(12, seed=99)).order_seed == 12, "the one that was sent asks the same"
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
