"""Start one command in a session of its own, and leave nothing of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE
from pytest_nvfp4.isolation.killing import kill_family, kill_group, kill_marked
from pytest_nvfp4.isolation.worker import Worker

if TYPE_CHECKING:
    from pytest_nvfp4.isolation.nursery import Forked

RESULT_VARIABLE = "NVFP4_RESULT_FD"
"""Environment variable that names the descriptor on which the process returns its result."""


@contextlib.contextmanager
def started(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], token: str, stdin: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes] | Forked, int]]:
    """The started process and the reading end of its result pipe; whatever happens, nothing of it is left.

    Its standard input is the file ``stdin``, or empty.
    """
    read_end, write_end = os.pipe()
    try:
        try:
            with (stdin or Path(os.devnull)).open("rb") as given:
                process = _start(command, cwd=cwd, environ=environ, token=token, stdin=given.fileno(), result=write_end)
        finally:
            os.close(write_end)
        try:
            yield process, read_end
        finally:
            if process.poll() is None:
                kill_family(process.pid)
            else:
                kill_group(process.pid)
            process.wait()
            kill_marked(token, os.getpid())
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            if not isinstance(process, subprocess.Popen):
                process.close()
    finally:
        os.close(read_end)


def _start(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], token: str, stdin: int, result: int
) -> subprocess.Popen[bytes] | Forked:
    """Have it forked where that can be, and start it from nothing otherwise."""
    if isinstance(command, Worker):
        from pytest_nvfp4.isolation.nursery import NURSERIES, Birth

        birth = Birth(
            cwd=cwd, environ=environ, token=token, stdin=stdin, result=result, result_variable=RESULT_VARIABLE
        )
        forked = NURSERIES.fork(command, birth)
        if forked is not None:
            return forked
        command = command.command
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**environ, RESULT_VARIABLE: str(result), TOKEN_VARIABLE: token},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(result,),
        start_new_session=True,
    )
