"""What is looked at of every timed round: on a clock that is made up, and torch's stand-in device."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.assemble import assemble
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Timing
from pytest_nvfp4.device.result import Blob, GroupOutput, Result, RoundSample, RowPart
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.outcome import Captured
from pytest_nvfp4.numerics.judge import Reference
from pytest_nvfp4.problem import parse_shape

KERNELS = Path(__file__).parent / "kernels"
CASE = JobCase(problem=ProblemSpec.of(parse_shape("5x256x256,0x128x256,3x128x512")), family="gpumode")
KEY = 77


def job(folder: Path, text: str = "") -> Job:
    path = folder / "kernel.py"
    path.write_text((KERNELS / "honest.py").read_text() + text)
    spec, _ = KernelSpec.from_files(path, arch="sm_100a")
    return Job(
        id="b", action="benchmark", kernel=spec, cases=(CASE,), order_seed=4, row_key=KEY, timing=Timing(rounds=12)
    )


def sample(call: int, *, visit: int) -> RoundSample:
    """What an honest kernel leaves in a round, computed from the inputs of that round as a whole."""
    inputs = rotation.inputs_at(CASE, index=0, visit=visit, key=KEY)
    changed = rotation.changes(rotation.set_inputs(CASE, 0), index=0, visit=visit, key=KEY)
    parts = []
    for change in changed:
        if change.row >= 0:
            want = Reference.of(inputs.groups[change.group].exact()).want
            bits = np.ascontiguousarray(want[change.row, 64:128]).tobytes().hex()
            parts.append(RowPart(group=change.group, row=change.row, column=64, bits=bits))
    return RoundSample(case=0, call=call, inputs=(0, visit), parts=tuple(parts))


def whole() -> tuple[GroupOutput, ...]:
    """A round whose outputs came back whole, and are right."""
    made = []
    for number, group in enumerate(rotation.inputs_at(CASE, index=0, visit=0, key=KEY).groups):
        buffer = group.c_buffer()
        group.split_c(buffer)[1][...] = Reference.of(group.exact()).want
        blob = Blob.inlined(np.ascontiguousarray(buffer).tobytes())
        rows, columns = buffer.shape
        made.append(
            GroupOutput(
                call=0, case=0, group=number, rows=rows, columns=columns, data=blob, late_sha256=None, returned="c",
                inputs=(0, 0),
            )
        )  # fmt: skip
    return tuple(made)


@pytest.fixture
def judged(tmp_path: Path):
    asked = job(tmp_path)
    result = Result(job=asked.id, status="passed", outputs=whole())

    def judge(*samples: RoundSample) -> CaseVerdict:
        (verdict,) = Judge().judge(asked, result.model_copy(update={"samples": samples}), folder=tmp_path)
        return verdict

    return judge


def test_rounds_of_an_honest_kernel_are_right(judged) -> None:
    rounds = [sample(call, visit=call) for call in range(4)]
    assert len(rounds[0].parts) == 2
    assert judged(*rounds).status == "passed"


def changed(one: RoundSample, **what: object) -> RoundSample:
    return one.model_copy(update={"parts": (one.parts[0].model_copy(update=what), *one.parts[1:])})


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"bits": "5afe" * 64}, "64 of 64 outputs are wrong .64 not written."),
        ({"bits": ""}, "not have the shape"),
        ({"bits": "xyz"}, "cannot be read"),
        ({"column": 250}, "not have the shape"),
        ({"column": -1}, "not have the shape"),
        ({"row": 4000}, "not those that changed"),
    ],
)
def test_a_round_that_is_wrong_is_found(judged, what: dict[str, object], words: str) -> None:
    verdict = judged(sample(0, visit=0), changed(sample(1, visit=1), **what))
    assert verdict.status == "failed"
    (finding,) = verdict.findings
    assert finding.message.startswith("call 1, while it was timed: ")
    assert re.search(words, finding.message), finding.message


def test_the_answer_of_the_round_before_is_wrong(judged) -> None:
    kept = sample(1, visit=0).model_copy(update={"inputs": (0, 1)})
    assert judged(kept).status == "failed"
    assert judged(changed(sample(1, visit=1), bits=sample(1, visit=0).parts[0].bits)).status == "failed"


def test_a_group_that_is_left_out_is_missed(judged) -> None:
    one = sample(0, visit=0)
    assert judged(one.model_copy(update={"parts": one.parts[:1]})).status == "failed"


SCRIPT = """
import os, sys
from pathlib import Path
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.worker import benchmark
from pytest_nvfp4.device.worker.clock import Round
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import HostMemory
from pytest_nvfp4.host import torch_cuda
from pytest_nvfp4.toolchain.worker import contract
from pytest_nvfp4.toolchain.worker.loading import load

class Clock:
    def __init__(self, memory, *, l2_bytes):
        self.memory = memory
    def fill16(self, address, value, count):
        self.memory.write(address, value.to_bytes(2, "little") * count)
    def device_round(self, call, *, cold, expected_call_us):
        call()
        return Round(20.0, 5.0, late=False)
    def host_round(self, call, *, cold):
        call()
        return 30.0, 5.0
    def ran_outside(self, call, **_):
        return False
    def ran_after(self, call, **_):
        return False

benchmark.DeviceClock = Clock
torch_cuda.install()
import torch
folder = Path(sys.argv[1])
job = Job.model_validate_json((folder / "asked.json").read_text())
events = Events(int(sys.argv[2]))
runner = benchmark.BenchmarkRunner(torch, HostMemory(), events, folder)
contract.provide_task(beside=folder)
runner.run(job, load(folder / "kernel.py").custom_kernel, None)
events.end()
"""


def timed(folder: Path, text: str = "") -> tuple[Result, CaseVerdict]:
    asked = job(folder, text)
    (folder / "asked.json").write_text(asked.model_dump_json())
    read_end, write_end = os.pipe()
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(write_end)],
        pass_fds=(write_end,), env={**os.environ, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read()
    nothing = Captured("")
    outcome = Outcome(
        returncode=process.wait(), timed_out=False, result=said, result_overflow=False, stdout=nothing, stderr=nothing,
        wall_s=1.0, stragglers=0,
    )  # fmt: skip
    result = assemble(asked, outcome)
    (verdict,) = Judge().judge(asked, result, folder=folder)
    return result, verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    "returns", ["", "\n_one = custom_kernel\ndef custom_kernel(d):\n    return [c.clone() for c in _one(d)]\n"]
)
def test_every_round_sends_its_part(tmp_path: Path, returns: str) -> None:
    pytest.importorskip("torch")
    result, verdict = timed(tmp_path, returns)
    assert (result.status, verdict.status) == ("passed", "passed"), (result.findings, verdict.findings)
    assert len(result.samples) == 12
    assert {len(one.parts) for one in result.samples} == {2}
    assert len({output.call for output in result.outputs}) == 2
    assert json.loads(result.model_dump_json())["samples"]


KEEPS = """
KEPT = {}
honest = custom_kernel


def custom_kernel(data):
    key = tuple(b.view(torch.uint8).flatten()[:64].sum().item() for _, b, _ in data[0])
    if key not in KEPT:
        KEPT[key] = [c.clone() for c in honest(data)]
    for (_, _, c), answer in zip(data[0], KEPT[key], strict=True):
        c.copy_(answer)
    return [c for _, _, c in data[0]]
"""


@pytest.mark.slow
def test_a_kernel_that_keeps_the_answer_of_a_set_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, verdict = timed(tmp_path, KEEPS)
    assert verdict.status == "failed"
    assert any("while it was timed" in finding.message for finding in verdict.findings), verdict.findings
