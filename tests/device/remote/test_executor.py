"""The far side's order of things, and a remote as a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Place, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.device import REMOTE_ERROR, RemoteDevice
from pytest_nvfp4.device.remote.executor import SOURCE, execute_batch, job_runner
from pytest_nvfp4.device.remote.gpus import capability_of
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import Blob, DeviceInfo, GroupOutput, Result
from pytest_nvfp4.finding import Finding

from .fakes import FakeRemote, job, passed


def b300(one: Job, folder: Path) -> Result:
    content = b"bytes"
    (folder / "0-0.bin").write_bytes(content)
    blob = Blob(sha256=Blob.inlined(content).sha256, size=len(content), file="0-0.bin")
    output = GroupOutput(call=0, case=0, group=0, rows=1, columns=1, data=blob, late_sha256=None, returned="c")
    return Result(job=one.id, status="passed", device=DeviceInfo(name="B300", capability=(10, 3)), outputs=(output,))


def test_files_come_back_inline() -> None:
    (result,) = execute_batch(Batch(jobs=(job(),)), run=b300, place=Place()).results
    assert result.outputs[0].data.read(None, source="C", most=5) == b"bytes"


def test_another_device_than_was_asked_for_gives_no_result() -> None:
    (result,) = execute_batch(Batch(jobs=(job(),), capability=(10, 0)), run=b300, place=Place()).results
    assert result.status == "unsupported"
    assert "10.0 was requested" in result.reason
    assert not result.outputs


def test_a_block_that_went_wrong_ends_its_job_alone() -> None:
    ran: list[str] = []

    def run(one: Job, _: Path) -> Result:
        ran.append(one.id)
        return Result(job=one.id, status="error" if one.id == "job-1" else "passed")

    jobs = (job(1, action="benchmark", text="a"), job(2, action="benchmark", text="b"))
    answer = execute_batch(Batch(jobs=jobs, blocks=3), run=run, place=Place())
    assert [result.status for result in answer.results] == ["error", "passed"]
    assert ran.count("job-1") == 1
    assert ran.count("job-2") == 3


def test_problems_of_a_kernel_share_a_process_and_each_gets_its_own_times() -> None:
    ran: list[list[int]] = []

    def run(one: Job, folder: Path) -> Result:
        seeds = [case.problem.seed for case in one.cases]
        ran.append(seeds)
        (folder / "x.bin").write_bytes(b"bytes")
        if 3 in seeds:
            return Result(job=one.id, status="crashed")
        blob = Blob(sha256=Blob.inlined(b"bytes").sha256, size=5, file="x.bin")
        outputs = tuple(
            GroupOutput(call=0, case=case, group=seed, rows=1, columns=1, data=blob, late_sha256=None, returned="c")
            for case, seed in enumerate(seeds)
        )
        return Result(job=one.id, status="passed", outputs=outputs)

    def batch(*numbers: int) -> Batch:
        jobs = [job(number, action="benchmark").model_copy(update={"row_key": 5}) for number in numbers]
        return Batch(jobs=tuple(jobs))

    answer = execute_batch(batch(1, 2), run=run, place=Place())
    assert ran == [[1, 2]]
    assert [(one.job, one.outputs[0].group) for one in answer.results] == [("job-1", 1), ("job-2", 2)]
    assert {one.outputs[0].data.read(None, source="C", most=5) for one in answer.results} == {b"bytes"}
    ran.clear()
    answer = execute_batch(batch(1, 3), run=run, place=Place())
    assert ran == [[1, 3], [1], [3]], "each by itself, so that it is known whose crash it was"
    assert [one.status for one in answer.results] == ["passed", "crashed"]


def device(remote: FakeRemote) -> RemoteDevice:
    return RemoteDevice(RemoteSession(remote), name="fake", gpu="B200")


def test_findings_name_the_users_own_file(tmp_path: Path) -> None:
    finding = Finding(kind="run", message="m", file=str(SOURCE / "sub" / "kernel.py"), line=3)

    def reply(batch: Batch) -> BatchResult:
        return BatchResult(batch=batch.id, results=(Result(job=batch.jobs[0].id, status="error", findings=(finding,)),))

    result = device(FakeRemote(reply)).run(job(), folder=tmp_path, base=tmp_path)
    assert result.findings[0].file == str(tmp_path / "sub" / "kernel.py")


def test_what_was_sent_ahead_is_used_whatever_its_seed(tmp_path: Path) -> None:
    remote = FakeRemote()
    one = device(remote)
    one.send_ahead([job(1, seed=11), job(2, seed=12)])
    taken = one.job_as_run(job(2, seed=99))
    assert taken.order_seed == 12
    assert one.run(taken, folder=tmp_path).job == taken.id
    assert len(remote.sent) == 2
    one.run(job(2, seed=55), folder=tmp_path)
    assert len(remote.sent) == 3, "a seed of the user's own is another run"


def test_a_benchmark_that_is_asked_for_twice_is_measured_twice(tmp_path: Path) -> None:
    remote = FakeRemote()
    one = device(remote)
    one.send_ahead([job(1, action="benchmark", seed=1)])
    for seed, sent in ((2, 1), (3, 2)):
        one.run(one.job_as_run(job(1, action="benchmark", seed=seed)), folder=tmp_path)
        assert len(remote.sent) == sent


def test_trouble_is_a_result_and_names_itself(tmp_path: Path) -> None:
    result = device(FakeRemote(lambda _: RemoteError("login", "no token", "log in"))).run(job(), folder=tmp_path)
    assert result.status == "unavailable"
    assert [(finding.kind, finding.message) for finding in result.findings] == [(REMOTE_ERROR, "no token; log in")]


@pytest.mark.parametrize(
    ("gpu", "capability"),
    [("B200", (10, 0)), ("h200", (9, 0)), ("H100:2", (9, 0)), ("H100!", (9, 0)), ("T4", (7, 5)), ("a100-80gb", (8, 0))],
)
def test_gpus_by_name(gpu: str, capability: tuple[int, int]) -> None:
    assert capability_of(RemoteOptions(gpu=gpu)) == capability


def test_no_gpu_is_taken_for_another() -> None:
    for gpu in ("any", "B200+", "B900", ""):
        with pytest.raises(RemoteError, match="--nvfp4-gpu-capability"):
            capability_of(RemoteOptions(gpu=gpu))
        assert capability_of(RemoteOptions(gpu=gpu, gpu_capability="11.0")) == (11, 0)
    with pytest.raises(RemoteError, match=r"write it as 10\.0"):
        capability_of(RemoteOptions(gpu_capability="sm_100a"))


def test_a_kernel_for_another_chip_is_known_without_asking() -> None:
    remote = FakeRemote(passed)
    assert device(remote).unsupported("sm_100a") is None
    assert "sm_90a" in (device(remote).unsupported("sm_90a") or "")
    assert remote.sent == []


LEAVES_MARKS = """
import builtins, os, pathlib, tempfile
places = [pathlib.Path(name, "nvfp4-mark") for name in (".", tempfile.gettempdir(), pathlib.Path.home())]
marked = [str(place) for place in places if place.exists()] + ["builtins"] * hasattr(builtins, "nvfp4_mark")
print("marked:", *marked)
for place in places:
    place.write_text("here")
builtins.nvfp4_mark = True


def custom_kernel(data):
    return data[2]
"""


@pytest.mark.slow
def test_each_batch_of_a_warm_container_has_a_process_that_has_not_run_its_kernel() -> None:
    """Else the second measurement of a benchmark would meet what the first one left."""
    pytest.importorskip("torch")
    batch, run = Batch(jobs=(job(text=LEAVES_MARKS),)), job_runner("host")
    results = [execute_batch(batch, run=run, place=Place()).results[0] for _ in range(2)]
    assert [result.stdout.strip() for result in results] == ["marked:"] * 2, results
