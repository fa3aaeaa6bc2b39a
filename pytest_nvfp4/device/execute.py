"""Run a Python program in a process of its own, on a GPU of this machine, in the simulator, or on the CPU."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path, PurePosixPath

from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.remote.base import Execution, RemoteError
from pytest_nvfp4.device.worker.program import SIMULATING_VARIABLE
from pytest_nvfp4.isolation import blas
from pytest_nvfp4.isolation.environment import NO_GPU
from pytest_nvfp4.isolation.stream import OnOutput, OutputChunk, Streamed, forward_output, streamed
from pytest_nvfp4.toolchain.launcher import worker

_PROGRAM = "program.py"


def place_files(program: Execution, folder: Path) -> None:
    """Write a program's files below a folder.

    Raises:
        RemoteError: a path leaves the folder.
        OSError: a file cannot be written.
    """
    for name, data in program.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
            raise RemoteError("setup", f"the file {name!r} would leave the program's folder", "give a relative path")
        target = folder.joinpath(*path.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def execute(
    program: Execution,
    *,
    backend: str,
    on_output: OnOutput,
    environ: dict[str, str] | None = None,
    visible: str = "",
    simulating: Simulating | None = None,
) -> Streamed:
    """Run a program, and pass its output on as it comes.

    Its environment is scrubbed, as a kernel's is. Its working directory is a new folder that holds its files and is
    removed afterwards; the folder is where it imports from first.

    Args:
        program: The program.
        backend: What its ``device="cuda"`` is: ``cuda``, ``sim`` (the simulator) or ``host`` (torch on the CPU).
        on_output: Gets each piece of output; what it raises ends the program.
        environ: Further variables.
        visible: ``CUDA_VISIBLE_DEVICES``; as it is where empty.
        simulating: How the simulator runs: its schedule, and whether races are looked for. An error among what it
            finds then is the exit status 1 of a program that itself ended well.

    Raises:
        RemoteError: a file's path leaves the folder.
        OSError: there is no room for its files, or it cannot be started.
    """
    if simulating is not None:
        environ = {**(environ or {}), SIMULATING_VARIABLE: simulating.model_dump_json()}
    return forward_output(execution(program, backend=backend, environ=environ, visible=visible), on_output)


def execution(
    program: Execution, *, backend: str, environ: dict[str, str] | None = None, visible: str = ""
) -> Generator[OutputChunk, None, Streamed]:
    """The pieces of output of ``execute`` as they come, and its end. Closing the generator ends the program."""
    with tempfile.TemporaryDirectory(prefix="nvfp4-exec-") as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        place_files(program, work)
        main = folder / _PROGRAM
        main.write_text(program.source, encoding="utf-8")
        stdin = folder / "stdin"
        stdin.write_bytes(program.stdin)
        variables = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if backend == "sim":
            variables |= blas.variables()
        if backend != "cuda":
            variables |= NO_GPU
        elif visible:
            variables["CUDA_VISIBLE_DEVICES"] = visible
        variables["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).exists())
        arguments = [str(main), str(folder), backend, *program.arguments]
        return (
            yield from streamed(
                worker("pytest_nvfp4.device.worker.program", *arguments).command,
                cwd=work,
                deadline_s=program.deadline_s,
                environ={**variables, **(environ or {}), **program.environ},
                stdin=stdin,
            )
        )
