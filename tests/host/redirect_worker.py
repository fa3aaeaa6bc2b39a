"""Run a test's script in a process of its own: environment first, stand-ins second, as the worker does."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect

PRELUDE = """
import json
from pytest_nvfp4.host import redirect, torch_cuda
from pytest_nvfp4.driver.launches import HostSideError, LaunchRejectedError
launches = []
on_launch = launches.append
side = redirect.install(lambda launch: on_launch(launch))
redirected = torch_cuda.install(side=side.device)
import ctypes
import struct
import cuda.bindings.driver as cuda
import cuda.bindings.runtime as cudart
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack, make_ptr
said = {}
"""
TORCH_PRELUDE = """
import json
import torch
from pytest_nvfp4.host import torch_cuda
said = {}
redirect = torch_cuda.install()
"""


def run_script(
    body: str, folder: Path, *, environment: Mapping[str, str] | None = None, prelude: str = PRELUDE
) -> dict[str, Any]:
    """Run ``body`` behind the prelude and return the dictionary ``said`` that it filled."""
    dump = folder / "dump"
    dump.mkdir()
    script = folder / "script.py"
    script.write_text(prelude + body + "\nprint('SAID', json.dumps(said))\n")
    path = os.pathsep.join([str(Path(redirect.__file__).parents[2]), str(folder)])
    variables = {**os.environ, **redirect.environment(dump), "PYTHONPATH": path, **(environment or {})}
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("SAID ")]
    assert lines, f"the worker failed ({result.returncode}):\n{result.stdout}\n{result.stderr}"
    said: dict[str, Any] = json.loads(lines[-1].removeprefix("SAID "))
    return said
