"""Find and run NVIDIA's binary tools from pip wheels or the CUDA toolkit on the path."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

_WHEELS = {"nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump"}
_TIMEOUT_S = 60


class ToolUnavailableError(RuntimeError):
    """A binary tool is missing or failed; the message has the reason or the command that installs it."""


@lru_cache(maxsize=8)
def find(tool: str) -> Path | None:
    """Return the path of ``nvdisasm`` or ``cuobjdump``, or None."""
    try:
        for file in importlib.metadata.files(_WHEELS[tool]) or ():
            if file.name == tool:
                path = Path(str(file.locate()))
                if path.is_file():
                    return path
    except importlib.metadata.PackageNotFoundError:
        pass
    found = shutil.which(tool)
    return Path(found) if found else None


def run(tool: str, *arguments: str) -> str:
    """Run a tool and return its standard output.

    Raises:
        ToolUnavailableError: it is not installed, failed, or exceeded a minute.
    """
    path = find(tool)
    if path is None:
        raise ToolUnavailableError(f"{tool} is not installed: pip install {_WHEELS[tool]}")
    try:
        done = subprocess.run(
            [str(path), *arguments], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolUnavailableError(f"{tool} did not run: {error}") from error
    if done.returncode:
        raise ToolUnavailableError(f"{tool} ended with status {done.returncode}: {done.stderr.strip()[:400]}")
    return done.stdout
