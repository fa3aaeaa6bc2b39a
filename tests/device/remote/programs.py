"""What tests of far sides share: jobs, programs that tell their process ids, and a look at what is left."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.problem import parse_shape
from tests.waiting import until

KERNELS = Path(__file__).parents[1] / "kernels"
HONEST = KERNELS / "honest.py"

SLEEPS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open({file!r} + ".new", "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({file!r} + ".new", {file!r})
print("up", flush=True)
time.sleep(600)
"""
"""A program that starts a child in a session of its own, tells both process ids, and sleeps."""


def batch_of(kernel: Path, *, deadline_s: float = 120.0, action: str = "verify", identity: str = "job") -> Batch:
    """One small job."""
    spec, _ = KernelSpec.from_files(kernel, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256")), family="gpumode")
    job = Job(id=identity, action=action, kernel=spec, cases=(case,), deadline_s=deadline_s)  # type: ignore[arg-type]
    return Batch(jobs=(job,))


def read_pids(file: Path) -> list[int]:
    """The process ids that ``SLEEPS`` wrote."""
    assert until(file.exists), "the program was not started"
    return [int(word) for word in file.read_text().split()]


def children(pid: int) -> list[int]:
    """Every process below one."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        open_ = [child for parent in open_ for child in below.get(parent, [])]
        found += open_
    return found


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def plant(secrets: dict[str, str]) -> None:
    """Put secrets into this process's environment, where a user's tokens are."""
    os.environ.update(secrets)
