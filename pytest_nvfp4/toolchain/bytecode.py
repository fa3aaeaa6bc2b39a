"""Bytecode of the DSL and of torch, written once by a process that runs no kernel.

Python writes the bytecode of a module when it is first imported. A worker cannot: behind its wall it writes no
installed package, or a kernel could change what later processes import. Installers such as uv do not write it either,
so that every fork server would compile the sources of the DSL (some 270 files) and of torch (some 1,300) again, which
doubles the time of their import.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 300.0


def write_missing(python: Path) -> None:
    """Write the bytecode of the DSL and of torch for an interpreter, if it is this one; failures are ignored."""
    if python != Path(sys.executable):
        return
    _write("cutlass", "cute", "-m", "compileall", "-q", "-j", "0")
    # Most of torch is never imported. The interpreter is isolated from the variable that turns bytecode off.
    _write("torch", "nn", "-c", "import torch")


@functools.cache
def _write(package: str, part: str, *command: str) -> None:
    """Run a command of the interpreter that writes the bytecode of a package, if a part of the package has none.

    ``compileall`` has the package's folder as its last argument, which an import ignores.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent
    probe = Path(importlib.util.cache_from_source(str(folder / part / "__init__.py")))
    if probe.exists() or not os.access(folder, os.W_OK):
        return
    try:
        subprocess.run(
            [sys.executable, "-I", *command, str(folder)],
            capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
