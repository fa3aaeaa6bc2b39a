"""Start one command in a session of its own, and end it with everything that it started."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, TOKEN_VARIABLE
from pytest_nvfp4.isolation.process_tree import kill_by_token, kill_group, kill_tree
from pytest_nvfp4.isolation.worker import Worker

if TYPE_CHECKING:
    from pytest_nvfp4.isolation.fork_server.process import ForkedProcess


@contextlib.contextmanager
def started(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], token: str, stdin: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes] | ForkedProcess, int]]:
    """Start a process for the length of a ``with`` block, and kill what is left of it and its descendants afterwards.

    Args:
        command: Program and arguments, or a worker, which is forked from a fork server if possible.
        cwd: Working directory.
        environ: Environment.
        token: Process token, added to the environment.
        stdin: File for the standard input; empty input if None.

    Yields:
        The process, and the reading end of its result pipe.
    """
    read_end, write_end = os.pipe()
    try:
        try:
            with (stdin or Path(os.devnull)).open("rb") as file:
                process = _start(command, cwd=cwd, environ=environ, token=token, stdin=file.fileno(), result=write_end)
        finally:
            os.close(write_end)
        try:
            yield process, read_end
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
            else:
                kill_group(process.pid)
            process.wait()
            kill_by_token(token)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            if not isinstance(process, subprocess.Popen):
                process.close()
    finally:
        os.close(read_end)


def _start(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], token: str, stdin: int, result: int
) -> subprocess.Popen[bytes] | ForkedProcess:
    if isinstance(command, Worker):
        from pytest_nvfp4.isolation.fork_server.messages import ForkRequest
        from pytest_nvfp4.isolation.fork_server.pool import FORK_SERVERS

        request = ForkRequest(cwd=cwd, environ=environ, token=token, stdin=stdin, result=result)
        forked = FORK_SERVERS.fork(command, request)
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
