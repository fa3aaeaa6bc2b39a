"""Benchmarks whose clock is replaced, and the samples that their rounds return."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.assemble import assemble
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Timing
from pytest_nvfp4.device.result import GroupOutput, Result, RoundSample, RowPart
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
        id="b",
        action="benchmark",
        kernel=spec,
        cases=(CASE,),
        order_seed=4,
        row_key=KEY,
        timing=Timing(rounds=12, counted=2),
    )


def sample(call: int, *, visit: int) -> RoundSample:
    """What an honest kernel leaves in a round, computed from the inputs of that round as a whole."""
    inputs = rotation.inputs_at(CASE, index=0, visit=visit, key=KEY)
    changed = rotation.changes(rotation.set_inputs(CASE, 0), index=0, visit=visit, key=KEY)
    parts = []
    for change in changed:
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


def changed(one: RoundSample, **what: object) -> RoundSample:
    return one.model_copy(update={"parts": (one.parts[0].model_copy(update=what), *one.parts[1:])})


SCRIPT = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from torch.utils._python_dispatch import TorchDispatchMode
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.worker import benchmark
from pytest_nvfp4.device.worker.clock import Round
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.launch_counter import LaunchCounter
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
        return Round(20.0, late=False)
    def plain_call(self, call):
        return call()
    def host_round(self, call, *, cold):
        call()
        return 30.0, 5.0
    def ran_outside(self, call, **_):
        return False
    def ran_after(self, call, **_):
        return False

class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        names.append(str(function))
        return function(*args, **(kwargs or {}))

def event(at, name):
    kind = {"mm": "kernel", "gate": "kernel", "copy": "gpu_memcpy"}[name]
    given = {"name": "nvfp4_gate" if name == "gate" else name, "activity_type": kind, "start_ns": 10_000 * at,
             "duration_ns": 9_000}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in given.items()})

class Counter(LaunchCounter):
    # The profiler's place is taken by one that records products of matrices as launches.
    def __init__(self):
        self._missing = self._config = self._cuda = None
        self._prepare = lambda *_: None
    def _enable(self, *_):
        names.clear()
        self.mode = Operators()
        self.mode.__enter__()
    def _disable(self):
        self.mode.__exit__(None, None, None)
        kinds = ["gate"] + ["mm" if "mm" in name else "copy" for name in names if "mm" in name or "copy" in name]
        return SimpleNamespace(events=lambda: [event(at, kind) for at, kind in enumerate(kinds)])

names = []
benchmark.LaunchCounter = Counter
benchmark.DeviceClock = Clock
torch_cuda.install()
import torch
folder = Path(sys.argv[1])
job = Job.model_validate_json((folder / "asked.json").read_text())
events = Events(int(sys.argv[2]))
runner = benchmark.BenchmarkRunner(torch, HostMemory(), events, folder)
contract.provide_task()
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
        wall_s=1.0,
    )  # fmt: skip
    result = assemble(asked, outcome)
    (verdict,) = Judge().judge(asked, result, folder=folder)
    return result, verdict
