"""A container's device for tests of many jobs: it returns what is right, unless a kernel's text says otherwise.

It runs no kernel and starts no process, so that what a test waits for is the way there and back. A kernel's text may
name problems that come out wrong (``WRONG = {"p3"}``), the job in which the container is killed (``DIES_AT = 7``; by
another signal than ``SIGKILL`` with ``DIES_BY = "SIGINT"``) or a problem of it (``DIES_ON = "p3"``, once), how long a
job takes (``TAKES_S = 0.1``), and how many containers must be at work before a job ends (``MEETS = 8``).
``NVFP4_EXACT_LOG`` gets a line a job.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.call_plan import plan_calls
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Blob, CaseReport, DeviceInfo, GroupOutput, Result
from pytest_nvfp4.numerics.judge import Reference

LONGEST_S = 120.0
DEVICE = DeviceInfo(name="Test stand-in that runs nothing", capability=(10, 0), simulated=True)


def run(job: Job, folder: Path) -> Result:
    """Do a verify job."""
    del folder
    if job.action != "verify" or job.kernel is None:
        return Result(job=job.id, status="passed", device=DEVICE)
    text = next(file.text for file in job.kernel.files if file.path == job.kernel.main)
    names = [case.problem.name for case in job.cases]
    with Path(os.environ["NVFP4_EXACT_LOG"]).open("a") as log:
        log.write(json.dumps([os.getpid(), job.kernel.main, names]) + "\n")
    if len(_lines()) == _said(text, "DIES_AT", 0):
        os.kill(os.getpid(), signal.Signals[_said(text, "DIES_BY", "SIGKILL")])
    begun = [json.loads(line)[1:] for line in _lines()]
    if _said(text, "DIES_ON", "") in names and begun.count([job.kernel.main, names]) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(_said(text, "TAKES_S", 0.0))
    until = time.monotonic() + LONGEST_S
    while len({json.loads(line)[0] for line in _lines()}) < _said(text, "MEETS", 0):
        if time.monotonic() > until:
            raise RuntimeError(f"{len(_lines())} jobs, and fewer containers than are to meet")
        time.sleep(0.02)
    wrong = _said(text, "WRONG", set())
    outputs = []
    plan = plan_calls(job.cases, job.order_seed, side_stream=job.kernel.side_stream)
    judged = [(position, call) for position, call in enumerate(plan) if call.other_sizes is None]
    for position, call in judged:
        case = job.cases[call.case]
        inputs = rotation.verified_inputs(case, key=job.row_key, changed=call.changed)
        for number, group in enumerate(inputs.groups):
            buffer = group.c_buffer()
            _, c, _ = group.split_c(buffer)
            c[...] = Reference.of(group.exact()).want
            if case.problem.name in wrong:
                c[0, 0] ^= 1
            blob = Blob.inlined(np.ascontiguousarray(buffer).tobytes())
            outputs.append(
                GroupOutput(
                    call=position,
                    case=call.case,
                    group=number,
                    rows=buffer.shape[0],
                    columns=buffer.shape[1],
                    data=blob,
                    late_sha256=None,
                    returned="c",
                )
            )
    reports = tuple(CaseReport(call=at, case=call.case, inputs_before="", inputs_after="") for at, call in judged)
    return Result(job=job.id, status="passed", device=DEVICE, outputs=tuple(outputs), cases=reports)


def _lines() -> list[str]:
    return Path(os.environ["NVFP4_EXACT_LOG"]).read_text().splitlines()


def _said(text: str, name: str, default: Any) -> Any:
    found = re.search(rf"^{name} = (.*)$", text, re.MULTILINE)
    return default if found is None else ast.literal_eval(found[1])
