"""What is known about an isolated process once it has ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Captured:
    """The output of a stream: its beginning and its end, with what was dropped between them.

    Attributes:
        head: The first bytes, decoded.
        tail: The last bytes, decoded; empty when nothing was dropped.
        dropped: Bytes that were read and not kept.
    """

    head: str
    tail: str = ""
    dropped: int = 0

    @property
    def text(self) -> str:
        """Everything that was kept, with a line that says what is missing."""
        if not self.dropped:
            return self.head + self.tail
        return f"{self.head}\n[... {self.dropped} bytes not kept ...]\n{self.tail}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an isolated process ended.

    Attributes:
        returncode: Its exit status, negative for a signal (as ``subprocess`` has it).
        timed_out: It was killed because its deadline passed.
        result: What it wrote to its result pipe; None when it wrote nothing.
        result_overflow: It wrote more to its result pipe than was allowed, so the result was dropped.
        stdout: Its standard output.
        stderr: Its standard error.
        wall_s: Seconds from start to end.
        stragglers: Processes it left behind, which were killed.
    """

    returncode: int
    timed_out: bool
    result: bytes | None
    result_overflow: bool
    stdout: Captured
    stderr: Captured
    wall_s: float
    stragglers: int

    def describe_end(self) -> str:
        """The end in words: a time-out, a signal by name, or an exit status."""
        if self.timed_out:
            return f"did not finish within its deadline and was stopped after {self.wall_s:.1f} s"
        if self.returncode < 0:
            number = -self.returncode
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = f"signal {number}"
            hint = {
                "SIGSEGV": " (a crash in native code)",
                "SIGABRT": " (native code aborted)",
                "SIGKILL": " (the system ran out of memory, or someone stopped it)",
                "SIGXFSZ": " (it wrote a file larger than allowed)",
            }.get(name, "")
            return f"was ended by {name}{hint}"
        return f"exited with status {self.returncode}"
