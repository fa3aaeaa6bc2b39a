"""The outcome of an isolated process."""

from __future__ import annotations

import signal
from dataclasses import dataclass

_SIGNAL_HINTS = {
    "SIGSEGV": " (a crash in native code)",
    "SIGABRT": " (native code aborted)",
    "SIGKILL": " (the system ran out of memory, or another process killed it)",
    "SIGXFSZ": " (it wrote a file larger than allowed)",
}


@dataclass(frozen=True, slots=True)
class Captured:
    """The output of a stream: its start and its end.

    Attributes:
        head: The first bytes, decoded.
        tail: The last bytes, decoded; empty if nothing was dropped.
        dropped: Number of bytes dropped between them.
    """

    head: str
    tail: str = ""
    dropped: int = 0

    @property
    def text(self) -> str:
        """The stored output, with a line in place of the dropped bytes."""
        if not self.dropped:
            return self.head + self.tail
        return f"{self.head}\n[... {self.dropped} bytes dropped ...]\n{self.tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """The end of an isolated process.

    Attributes:
        returncode: Exit status, negative for a signal (as in ``subprocess``).
        timed_out: Whether it was killed at its deadline.
        wall_s: Seconds from start to end.
    """

    returncode: int
    timed_out: bool
    wall_s: float

    @property
    def exit_status(self) -> int:
        """Exit status as a shell reports it: 124 for a timeout (as ``timeout(1)``), 128 + n for signal n."""
        if self.timed_out:
            return 124
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    def describe_end(self) -> str:
        """Return how the process ended, as a predicate: a timeout, the name of a signal, or an exit status."""
        if self.timed_out:
            return f"did not finish within its deadline and was stopped after {self.wall_s:.1f} s"
        if self.returncode < 0:
            try:
                name = signal.Signals(-self.returncode).name
            except ValueError:
                name = f"signal {-self.returncode}"
            return f"was ended by {name}{_SIGNAL_HINTS.get(name, '')}"
        return f"exited with status {self.returncode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(ProcessEnd):
    """The end of an isolated process, and what it returned.

    Attributes:
        result: Bytes that it wrote to its result pipe; None if it wrote nothing.
        result_overflow: Whether it wrote more to its result pipe than allowed, so that the result was dropped.
        stdout: Standard output.
        stderr: Standard error.
    """

    result: bytes | None
    result_overflow: bool
    stdout: Captured
    stderr: Captured
