"""Run one command isolated and forward its output as it arrives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pytest_nvfp4.isolation.monitor import monitored
from pytest_nvfp4.isolation.outcome import ProcessEnd
from pytest_nvfp4.isolation.wall.description import Wall
from pytest_nvfp4.isolation.worker import Worker

OutputChunk = tuple[Literal["stdout", "stderr"], bytes]
"""The name of a stream, and bytes that were written to it."""
OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Callback for each chunk of output."""


def forward_output(chunks: Generator[OutputChunk, None, ProcessEnd], on_output: OnOutput) -> ProcessEnd:
    """Call a function with every chunk, and return how the command ended. An exception from it ends the command."""
    with contextlib.closing(chunks):
        while True:
            try:
                stream, data = next(chunks)
            except StopIteration as stop:
                end: ProcessEnd = stop.value
                return end
            on_output(stream, data)


def streamed(
    command: Sequence[str] | Worker,
    *,
    cwd: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    stdin: Path | None = None,
    wall: Wall | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Generator[OutputChunk, None, ProcessEnd]:
    """Run ``command`` isolated, as :func:`pytest_nvfp4.isolation.run` does, as a generator of its output.

    Closing the generator ends the command. Its standard input is empty without ``stdin``. ``meanwhile`` is called many
    times a second while it runs; an exception from it ends the command.

    Raises:
        OSError: The command could not be started.
        StoppedError: This thread was stopped (see ``stopped_by``).
    """
    environ = {**(environ or {}), **(wall.variables if wall is not None else {})}
    with (
        monitored(
            command, cwd=cwd, deadline_s=deadline_s, environ=environ, stdin=stdin, meanwhile=meanwhile
        ) as monitor,
        contextlib.closing(monitor.output()) as output,
    ):
        for pipe, chunk in output:
            if pipe != "result":  # a program has no result; its pipe is only drained
                yield pipe, chunk
        return monitor.end()
