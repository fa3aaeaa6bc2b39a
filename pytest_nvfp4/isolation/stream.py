"""Run one command isolated and forward its output as it arrives."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_nvfp4.isolation.environment import scrubbed
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.monitor import ProcessMonitor
from pytest_nvfp4.isolation.start import started

OutputChunk = tuple[Literal["stdout", "stderr"], bytes]
"""The name of a stream, and bytes that were written to it."""
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Callback for each chunk of output."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """The end of a command: its exit status (negative for a signal), whether it timed out, and its seconds."""

    returncode: int
    timed_out: bool
    wall_s: float

    @property
    def exit_status(self) -> int:
        """Exit status as a shell reports it: 124 for a timeout (as ``timeout(1)``), 128 + n for signal n."""
        if self.timed_out:
            return 124
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def run_streamed(
    command: Sequence[str],
    *,
    cwd: Path,
    deadline_s: float,
    on_output: OnOutput,
    environ: Mapping[str, str] | None = None,
    stdin: Path | None = None,
) -> Streamed:
    """Run ``command`` isolated, as :func:`pytest_nvfp4.isolation.run` does, and forward its output.

    Args:
        command: Program and arguments.
        cwd: Working directory.
        deadline_s: Seconds after which it is killed.
        on_output: Called with each chunk of output. An exception that it raises ends the command.
        environ: Variables added to the scrubbed environment.
        stdin: File for the standard input; empty input if None.

    Raises:
        OSError: The command could not be started.
        StoppedError: This thread was stopped (see ``stopped_by``).
    """
    return forward_output(streamed(command, cwd=cwd, deadline_s=deadline_s, environ=environ, stdin=stdin), on_output)


def forward_output(chunks: Generator[OutputChunk, None, Streamed], on_output: OnOutput) -> Streamed:
    """Call a function with every chunk, and return how the command ended. An exception from it ends the command."""
    with contextlib.closing(chunks):
        while True:
            try:
                stream, data = next(chunks)
            except StopIteration as stop:
                end: Streamed = stop.value
                return end
            on_output(stream, data)


def streamed(
    command: Sequence[str],
    *,
    cwd: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    stdin: Path | None = None,
) -> Generator[OutputChunk, None, Streamed]:
    """Run a command as ``run_streamed`` does, as a generator of its output that returns its end.

    Closing the generator ends the command.
    """
    token = secrets.token_hex(16)
    start = time.monotonic()
    scrubbed_environ = scrubbed(os.environ, {PARENT_VARIABLE: str(os.getpid()), **(environ or {})})
    with started(command, cwd=cwd, environ=scrubbed_environ, token=token, stdin=stdin) as (process, result):
        monitor = ProcessMonitor(process, result, token=token, until=start + deadline_s)
        with contextlib.closing(monitor.output()) as output:
            for pipe, chunk in output:
                if pipe != "result":  # a program has no result; its pipe is only drained
                    yield pipe, chunk
        returncode = process.wait()
    return Streamed(returncode, monitor.timed_out, time.monotonic() - start)
