"""Run a Python program isolated: on a GPU of this machine, in the simulator, or on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path, PurePosixPath

from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError
from pytest_nvfp4.device.worker.child_start import BUILT, KEPT, UNRAISED
from pytest_nvfp4.device.worker.kernel_stack import read_start
from pytest_nvfp4.device.worker.program import SIMULATING_VARIABLE
from pytest_nvfp4.isolation import OnOutput, OutputChunk, ProcessEnd, blas, forward_output, streamed
from pytest_nvfp4.isolation.environment import NO_GPU
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.program_extensions import ProgramExtensions


def place_files(program: PythonProgram, folder: Path) -> None:
    """Write a program's files below a folder.

    Raises:
        RemoteError: A path leaves the folder.
        OSError: A file cannot be written.
    """
    for name, data in program.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
            raise RemoteError(
                "setup", f"the file {name!r} lies outside the program's folder", "give a relative path below it"
            )
        target = folder.joinpath(*path.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _mounted(program: PythonProgram) -> str | None:
    """Return which of a program's files is the program itself, so that `__file__` leads to what lies beside it."""
    source = program.source.encode()
    found = [name for name, data in program.files.items() if Path(name).name == program.name and data == source]
    return found[0] if len(found) == 1 else None


def execute(
    program: PythonProgram,
    *,
    backend: str,
    on_output: OnOutput,
    environ: dict[str, str] | None = None,
    visible: str = "",
    simulating: Simulating | None = None,
) -> ProcessEnd:
    """Run a program and forward its output.

    Its environment is scrubbed, like that of a kernel, with ``environ`` on top. Its working directory is a new folder
    with its files, which comes first in its import path and is removed afterwards.

    Args:
        backend: Its ``device="cuda"``: ``cuda``, ``sim`` (the simulator) or ``host`` (torch on the CPU).
        on_output: Called with each chunk of output; an exception that it raises ends the program.
        visible: Value of ``CUDA_VISIBLE_DEVICES``; unchanged if empty.
        simulating: Settings of the simulator: its schedule, and whether to search for races. If it reports an error
            then, a program that itself succeeded has exit status 1.

    Raises:
        RemoteError: The path of a file leaves the folder.
        OSError: Its files cannot be written, or it cannot be started.
    """
    if simulating is not None:
        environ = {**(environ or {}), SIMULATING_VARIABLE: simulating.model_dump_json()}
    return forward_output(execution(program, backend=backend, environ=environ, visible=visible), on_output)


def execution(
    program: PythonProgram, *, backend: str, environ: dict[str, str] | None = None, visible: str = ""
) -> Generator[OutputChunk, None, ProcessEnd]:
    """Run a program as ``execute`` does, as a generator of its output that returns its end; closing it ends the run."""
    with temporary_folder("exec") as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        place_files(program, work)
        main = work / mounted if (mounted := _mounted(program)) is not None else folder / program.name
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
        built = ProgramExtensions(program.name, program.source, program.files) if backend == "sim" else None
        if built is not None:
            built.copy(folder / BUILT)
        arguments = [str(main), str(folder), backend, *program.arguments]
        end = yield from streamed(
            worker("pytest_nvfp4.device.worker.program", *arguments),
            cwd=work,
            deadline_s=program.deadline_s,
            environ={**variables, **(environ or {}), **program.environ},
            stdin=stdin,
            wall=Wall(folder=str(folder), gpu=backend == "cuda"),
        )
        if built is not None:
            built.take(folder / KEPT)
        for file in sorted(folder.glob(f"{UNRAISED}-*")):  # one for each process that used the device
            if unraised := read_start(str(file)):
                yield "stderr", unraised.encode()
        return end
