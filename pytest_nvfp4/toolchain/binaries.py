"""Find and run NVIDIA's binary tools from pip wheels or the CUDA toolkit on the path."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pytest_nvfp4 import isolation
from pytest_nvfp4.isolation import blas
from pytest_nvfp4.isolation.environment import NO_GPU, UNATTENDED
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.isolation.wall.program import Ended, ended
from pytest_nvfp4.temporary import temporary_folder

_WHEELS = {"nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump"}
_PROGRAM = "pytest_nvfp4.isolation.wall.program"
_TIMEOUT_S = 60
_MEMORY_BYTES = 4 << 30
_OUTPUT_BYTES = 256 << 20


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


def run(tool: str, *options: str, cubin: Path) -> str:
    """Run a tool on a CUBIN and return its standard output. Raises ToolUnavailableError, see ``run_each``."""
    (answer,) = run_each([(tool, *options)], cubin=cubin)
    if isinstance(answer, ToolUnavailableError):
        raise answer
    return answer


def run_each(commands: Sequence[tuple[str, ...]], *, cubin: Path) -> list[str | ToolUnavailableError]:
    """Run tools with options on a CUBIN, which a kernel's process wrote, behind a wall.

    Returns:
        For each the standard output, or why there is none: it is not installed, failed, exceeded a minute or its
        limits.
    """
    places = {tool: find(tool) for tool, *_ in commands}
    asked = [[str(places[tool]), *options, str(cubin.resolve())] for tool, *options in commands if places[tool]]
    answers = iter(_behind_a_wall(asked, cubin, [path for path in places.values() if path]) if asked else [])
    return [
        _answer(tool, next(answers))
        if places[tool]
        else ToolUnavailableError(f"{tool} is not installed: pip install {_WHEELS[tool]}")
        for tool, *_ in commands
    ]


def _behind_a_wall(commands: list[list[str]], cubin: Path, programs: Sequence[Path]) -> list[Ended | str]:
    """Return how each command ended; a text says why that is unknown."""
    with temporary_folder("tools") as folder:
        wall = Wall(
            folder=str(folder),
            readable=(*map(str, programs), str(cubin.resolve())),
            memory_bytes=_MEMORY_BYTES,
            file_bytes=_OUTPUT_BYTES,
        )
        try:
            outcome = isolation.run(
                worker(_PROGRAM, json.dumps(commands), preload=(_PROGRAM,)),
                cwd=folder,
                deadline_s=_TIMEOUT_S,
                # Those of contracts: it is forked from the same server.
                environ={**NO_GPU, **blas.variables(), **UNATTENDED},
                wall=wall,
                result_bytes=_OUTPUT_BYTES,
            )
        except OSError as error:
            return [f"did not run: {error}"] * len(commands)
    done: list[Ended | str] = list(ended(outcome.result or b""))
    why = "printed too much" if outcome.result_overflow else outcome.describe_end()
    unknown = f"{why}: {outcome.stderr.text.strip()[-400:]}"
    return [*done, *[unknown] * len(commands)][: len(commands)]


def _answer(tool: str, done: Ended | str) -> str | ToolUnavailableError:
    if isinstance(done, str):
        return ToolUnavailableError(f"{tool} {done}")
    status, printed, errors = done
    if status:
        return ToolUnavailableError(f"{tool} ended with status {status}: {errors.strip()[:400]}")
    return printed
