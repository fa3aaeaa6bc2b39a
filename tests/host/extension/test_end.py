"""A compiler that an extension has started ends with the run, however the run ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_KERNEL = """
from torch.utils.cpp_extension import load_inline

module = load_inline(name="endless", cpp_sources="", cuda_sources="__global__ void f() {}", functions=[])


def custom_kernel(data):
    return module.f(data)
"""
_NVCC = """#!/bin/sh
case "$*" in *--dryrun*) exit 0 ;; esac
sh -c 'while :; do sleep 1; done' {mark}
"""
_WAIT_S = 120.0


def _running(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_compilers_end_with_pytest(tmp_path: Path, number: signal.Signals) -> None:
    home, mark = tmp_path / "toolkit", f"nvfp4-{os.getpid()}-{number}"
    (home / "bin").mkdir(parents=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(_NVCC.format(mark=mark))
    nvcc.chmod(0o755)
    (tmp_path / "endless.py").write_text(_KERNEL)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nnvfp4_kernels = ["endless.py"]\n')
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "endless.py", "-k", "compile"]
    environ = {**os.environ, "CUDA_HOME": str(home), "NVFP4_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        try:
            until = time.monotonic() + _WAIT_S
            while not _running(mark):
                assert time.monotonic() < until, "the compiler was not started"
                assert run.poll() is None, "the run has ended without it"
                time.sleep(0.1)
            run.send_signal(number)
            run.wait(_WAIT_S)
            while _running(mark):
                assert time.monotonic() < until + _WAIT_S, "the compiler outlives the run"
                time.sleep(0.1)
        finally:
            run.kill()
            for pid in _running(mark):
                os.kill(pid, signal.SIGKILL)
