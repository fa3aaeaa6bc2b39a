"""Bytecode of the DSL, written once by a process that runs no kernel.

Python writes the bytecode of a module when it is first imported. A worker cannot: behind its wall it writes no
installed package, or a kernel could change what later processes import. Installers such as uv do not write it either,
so that every compile would read the sources of the DSL again (some 270 files).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 300.0


def write_missing(python: Path) -> None:
    """Write the bytecode of the DSL of an interpreter, if it is this one's and has none; failures are ignored."""
    if python != Path(sys.executable):
        return
    try:
        spec = importlib.util.find_spec("cutlass")
    except (ImportError, ValueError):
        return
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent
    probe = Path(importlib.util.cache_from_source(str(folder / "cute" / "__init__.py")))
    if probe.exists() or not os.access(folder, os.W_OK):
        return
    command = [str(python), "-I", "-m", "compileall", "-q", "-j", "0", str(folder)]
    try:
        subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return
