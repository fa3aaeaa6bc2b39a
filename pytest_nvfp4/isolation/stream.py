"""Run one command isolated and pass its output on as it comes."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_nvfp4.isolation.environment import scrubbed
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.run import kill_family, kill_group, kill_marked, started

Piece = tuple[Literal["stdout", "stderr"], bytes]
"""Something that one of the two streams said."""
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Takes a piece of one of the two streams."""

_DRAIN_S = 1.0
_CHUNK = 1 << 16


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
    with (
        started(command, cwd=cwd, environ=settings, token=token, stdin=stdin) as (process, result),
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        sinks: dict[int, Literal["stdout", "stderr"] | None] = {
            process.stdout.fileno(): "stdout",
            process.stderr.fileno(): "stderr",
            result: None,  # a program returns nothing on the pipe of results: what it writes there is dropped
        }
        for descriptor in sinks:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        until, ended, timed_out = start + deadline_s, False, False
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                if ended:
                    break  # a straggler holds a pipe open: it is killed below
                timed_out = ended = True
                kill_family(process.pid)
                until = time.monotonic() + _DRAIN_S
                continue
            for key, _ in selector.select(timeout=min(left, 0.05)):
                try:
                    chunk = os.read(key.fd, _CHUNK)
                except BlockingIOError:
                    continue
                name = sinks[key.fd]
                if not chunk:
                    selector.unregister(key.fd)
                elif name is not None:
                    yield name, chunk
            if not ended and process.poll() is not None:
                kill_group(process.pid)
                kill_marked(token, os.getpid())
                ended, until = True, min(until, time.monotonic() + _DRAIN_S)
        if not ended:
            try:
                process.wait(timeout=max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
                kill_family(process.pid)
        returncode = process.wait()
    return Streamed(returncode, timed_out, time.monotonic() - start)
