"""What tests of far sides share: jobs, programs that tell their process ids, and a look at what is left."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.problem import parse_shape
from tests.waiting import until

KERNELS = Path(__file__).parents[1] / "kernels"
HONEST = KERNELS / "honest.py"

SLEEPS = """
import os, subprocess, sys
sleeps = "import time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", sleeps, {file!r}], start_new_session=True)
os.execv(sys.executable, [sys.executable, "-c", "print('up', flush=True); " + sleeps, {file!r}])
"""
"""A program that starts a child in a session of its own, becomes another program, and sleeps.

Both have the name of a file as an argument, because in a sandbox a process neither writes one nor knows its number.
"""


def batch_of(kernel: Path, *, deadline_s: float = 120.0, action: str = "verify", identity: str = "job") -> Batch:
    """One small job."""
    spec, _ = KernelSpec.from_files(kernel, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256")), family="gpumode")
    job = Job(id=identity, action=action, kernel=spec, cases=(case,), deadline_s=deadline_s)  # type: ignore[arg-type]
    return Batch(jobs=(job,))


def read_pids(file: Path) -> list[int]:
    """The process ids of ``SLEEPS``, which are noted in the file when they are first seen."""
    mark = str(file).encode()

    def both() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if (entry / "cmdline").read_bytes().split(b"\0")[-2:-1] == [mark]:
                        found.append(int(entry.name))
        return found if len(found) == 2 else []

    if not file.exists():
        pids: list[int] = []
        assert until(lambda: pids.extend(both()) or pids), "the program was not started"
        file.write_text(" ".join(map(str, pids)))
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
