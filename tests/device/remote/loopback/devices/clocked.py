"""A container's device for tests of benchmarks: right answers, and times of a clock that is made up.

It is no part of the package and stands in for no GPU: it says by its name what it is. A kernel says in its own text
how long it takes (``TAKES_US = 20.0``), and where it knows that its launches are counted (``COUNTED_US = 90.0``);
compiled with ``--opt-level 2`` it takes 10 % more. The clock drifts by 2 % a block, as a GPU that warms up, and what
ran in which order is written to ``NVFP4_CLOCKED_LOG``.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import numpy as np

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.device_work import CountedLaunches
from pytest_nvfp4.device.job import Job, JobCase
from pytest_nvfp4.device.result import Blob, DeviceInfo, GroupOutput, Measurement, Result, RoundSample, RowPart
from pytest_nvfp4.numerics.judge import Reference

_DRIFT = 1.02
_NOISE = 0.001
_blocks: list[str] = []


def run(job: Job, folder: Path) -> Result:
    """Do a benchmark job."""
    del folder
    name = os.environ.get("NVFP4_CLOCKED_NAME", "Test stand-in with a made-up clock")
    device = DeviceInfo(name=name, capability=(10, 0), torch="0", dsl="0", python="0")
    if job.action != "benchmark" or job.kernel is None:
        return Result(job=job.id, status="unavailable", device=device)
    text = next(file.text for file in job.kernel.files if file.path == job.kernel.main)
    takes = {name: float(us) for name, us in re.findall(r"^(TAKES_US|COUNTED_US) = (.*)$", text, re.MULTILINE)}
    us = takes.get("COUNTED_US", takes["TAKES_US"]) if job.timing.counted else takes["TAKES_US"]
    options = " ".join(job.kernel.compile_options)
    if "--opt-level 2" in options:
        us *= 1.1
    us *= _DRIFT ** len(_blocks)
    _blocks.append(options)
    with Path(os.environ["NVFP4_CLOCKED_LOG"]).open("a") as log:
        problems = [case.problem.name for case in job.cases]
        log.write(json.dumps([os.getpid(), options, problems, job.timing.rounds, job.timing.counted]) + "\n")
    draw = random.Random(job.order_seed)
    wrong = "WRONG = True" in text
    return Result(
        job=job.id,
        status="passed",
        device=device,
        outputs=tuple(
            output
            for index, case in enumerate(job.cases)
            for output in _outputs(index, case, wrong=wrong, key=job.row_key)
        ),
        measurements=tuple(_times(index, us, job, draw) for index in range(len(job.cases))),
        samples=tuple(
            RoundSample(case=index, call=call, inputs=(0, 0), parts=parts)
            for index, case in enumerate(job.cases)
            for parts in [_changed_rows(case, key=job.row_key)]
            for call in range(job.timing.rounds)
        ),
    )


def _times(case: int, takes: float, job: Job, draw: random.Random) -> Measurement:
    rounds = job.timing.rounds
    return Measurement(
        case=case,
        device_us=tuple(takes * (1 + _NOISE * draw.uniform(-1, 1)) for _ in range(rounds)),
        host_us=tuple(takes + 30.0 for _ in range(max(5, rounds // 4))),
        call_us=25.0,
        late_rounds=0,
        outside_stream=False,
        method="a clock that is made up",
        l2="cold",
        sets=3,
        launches=CountedLaunches(unavailable="a clock that is made up") if job.timing.counted else None,
    )


def _changed_rows(case: JobCase, *, key: int) -> tuple[RowPart, ...]:
    """The right outputs in the rows that changed."""
    groups = rotation.inputs_at(case, index=0, visit=0, key=key).groups
    parts = []
    for change in rotation.changes(rotation.set_inputs(case, 0), index=0, visit=0, key=key):
        want = Reference.of(groups[change.group].exact()).want[change.row, :64]
        bits = np.ascontiguousarray(want).tobytes().hex()
        parts.append(RowPart(group=change.group, row=change.row, column=0, bits=bits))
    return tuple(parts)


def _outputs(index: int, case: JobCase, *, wrong: bool, key: int) -> list[GroupOutput]:
    inputs = rotation.inputs_at(case, index=0, visit=0, key=key)
    made = []
    for number, group in enumerate(inputs.groups):
        buffer = group.c_buffer()
        _, c, _ = group.split_c(buffer)
        c[...] = Reference.of(group.exact()).want
        if wrong:
            c[0, 0] ^= 1
        bits = np.ascontiguousarray(buffer).tobytes()
        made.append(
            GroupOutput(
                call=0,
                case=index,
                group=number,
                rows=buffer.shape[0],
                columns=buffer.shape[1],
                data=Blob.inlined(bits),
                late_sha256=None,
                returned="c",
                inputs=(0, 0),
            )
        )
    return made
