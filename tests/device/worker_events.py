"""Events of a worker, and the result that is assembled from them."""

from __future__ import annotations

import hashlib
import json

from pytest_nvfp4.device.assemble import assemble
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, SourceFile, Timing
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.outcome import Captured
from pytest_nvfp4.problem import parse_shape

JOB = Job(id="j", action="probe")
_KERNEL = KernelSpec(
    files=(SourceFile(path="k.py", text="", sha256=hashlib.sha256(b"").hexdigest()),), main="k.py", arch="sm_100a"
)
_CASES = tuple(
    JobCase(problem=ProblemSpec.of(parse_shape(shape)), family="gpumode") for shape in ("5x256x256", "5x256x512")
)
BENCHMARK = Job(id="j", action="benchmark", kernel=_KERNEL, cases=_CASES, timing=Timing(counted=1))
DEVICE = {"event": "device", "name": "NVIDIA B200", "capability": [10, 0]}


def line(**event: object) -> bytes:
    return json.dumps(event).encode() + b"\n"


def answer(*said: bytes, then: bytes = b"") -> bytes:
    whole = line(event="begin", word="w") + b"".join(said)
    return whole + then + line(event="end", sha256=hashlib.sha256(whole).hexdigest())


def result(data: bytes | None, *, returncode: int = 0, overflow: bool = False, job: Job = JOB) -> Result:
    nothing = Captured("")
    outcome = Outcome(
        returncode=returncode,
        timed_out=False,
        result=data,
        result_overflow=overflow,
        stdout=nothing,
        stderr=nothing,
        wall_s=1.0,
    )
    return assemble(job, outcome)
