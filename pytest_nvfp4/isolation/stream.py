"""Run one command isolated and pass its output on as it comes."""

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

Piece = tuple[Literal["stdout", "stderr"], bytes]
"""Something that one of the two streams said."""
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Takes a piece of one of the two streams."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """How a command ended: its exit status (negative for a signal), and whether its deadline stopped it."""

    returncode: int
    timed_out: bool
    wall_s: float

    @property
    def exit_status(self) -> int:
        """The status as a shell gives it: 124 for a deadline (as ``timeout`` does), 128 + n for signal n."""
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
    """Run ``command`` isolated, as :func:`pytest_nvfp4.isolation.run` does, without keeping what it says.

    Args:
        command: Program and arguments.
        cwd: Its working directory.
        deadline_s: Seconds after which it is killed.
        on_output: Gets each piece of output. An exception it raises ends the command.
        environ: Variables on top of the scrubbed environment.
        stdin: The file that is its standard input; empty without one.

    Raises:
        OSError: the command could not be started.
        StoppedError: this thread was to stop meanwhile (see ``stopped_by``).
    """
    pieces = streamed(command, cwd=cwd, deadline_s=deadline_s, environ=environ, stdin=stdin)
    return hand_over(pieces, on_output)


def hand_over(pieces: Generator[Piece, None, Streamed], on_output: OnOutput) -> Streamed:
    """Give every piece to a function, and return how the command ended. What the function raises ends the command."""
    with contextlib.closing(pieces):
        while True:
            try:
                stream, data = next(pieces)
            except StopIteration as ended:
                how: Streamed = ended.value
                return how
            on_output(stream, data)


def streamed(
    command: Sequence[str],
    *,
    cwd: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    stdin: Path | None = None,
) -> Generator[Piece, None, Streamed]:
    """The pieces of output of ``run_streamed`` as they come, and its end. Closing the generator ends the command."""
    token = secrets.token_hex(16)
    start = time.monotonic()
    settings = scrubbed(os.environ, {PARENT_VARIABLE: str(os.getpid()), **(environ or {})})
    with started(command, cwd=cwd, environ=settings, token=token, stdin=stdin) as (process, result):
        watch = ProcessMonitor(process, result, token=token, until=start + deadline_s)
        with contextlib.closing(watch.output()) as output:
            for pipe, chunk in output:
                if pipe != "result":  # a program returns nothing there: what it writes is dropped
                    yield pipe, chunk
        returncode = process.wait()
    return Streamed(returncode, watch.timed_out, time.monotonic() - start)
