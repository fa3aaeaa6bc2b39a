"""The protocol of GPU MODE's evaluation: ``key: value`` lines on the descriptor that ``POPCORN_FD`` names, exit codes.

Keys are ``test-count``, ``test.N.spec|status|error|message``, ``benchmark-count``,
``benchmark.N.spec|status|error|runs|mean|std|err|best|worst`` (times in nanoseconds) and ``check: pass|fail``.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.text import visible


class PopcornExit(IntEnum):
    """Exit codes of the protocol."""

    FINE = 0
    CUDA = 110
    PIPE = 111
    VALIDATION = 112
    SPEC = 113
    TIMEOUT = 114


def spec_line(problem: Problem) -> str:
    """Return a problem in the protocol's form: ``m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111``."""
    fields = {**contract_of(problem).spec(problem), "seed": problem.seed}
    return "; ".join(f"{name}: {value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True)
class Statistics:
    """Times of one benchmark in nanoseconds; ``err`` is the standard error of the mean."""

    runs: int
    mean: float
    std: float
    err: float
    best: float
    worst: float

    @classmethod
    def of(cls, microseconds: Sequence[float]) -> Statistics:
        """Return the statistics of at least one time."""
        times = [time * 1e3 for time in microseconds]
        std = statistics.stdev(times) if len(times) > 1 else 0.0
        return cls(len(times), statistics.fmean(times), std, std / math.sqrt(len(times)), min(times), max(times))


class Popcorn:
    """Writes the protocol's lines.

    Args:
        write: Receives one line with its line end.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def log(self, key: str, value: object) -> None:
        """Write one ``key: value`` line, with line ends and control characters of the value escaped."""
        text = visible(str(value).replace("\\", "\\\\"))
        self._write(f"{key}: {text}\n")

    def statistics(self, key: str, times: Statistics) -> None:
        """Write the times of a benchmark."""
        for name in ("runs", "mean", "std", "err", "best", "worst"):
            self.log(f"{key}.{name}", getattr(times, name))


def writer(environ: dict[str, str], fallback: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that writes lines to ``POPCORN_FD`` if it is set, else ``fallback``.

    Raises:
        OSError: The descriptor is not open.
        ValueError: The descriptor is not a number.
    """
    given = environ.get("POPCORN_FD")
    if given is None:
        return fallback
    descriptor = int(given)
    os.fstat(descriptor)
    return lambda line: _write_all(descriptor, line.encode())


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
