"""Replay times that were measured on a device into pytest-benchmark, so that everything it does with times works.

pytest-benchmark times a function with a timer. Here the timer stands still: before a round it is set to zero, and the
"function" sets it to what the device measured. ``stats.data`` then holds the measured times, and saving, comparing,
histograms and JSON follow. It needs a marker on the test before its ``benchmark`` fixture is made (``mark_item``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pytest_nvfp4.bench.baseline import Baseline, BaselineError, IncomparableError, baseline_rounds
from pytest_nvfp4.bench.mark import EXTRA_KEY, ReplayClock, mark_item, replay_mark
from pytest_nvfp4.bench.provenance import Provenance
from pytest_nvfp4.bench.stats import as_rounds
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem

__all__ = [
    "Baseline",
    "BaselineError",
    "BenchmarkReplay",
    "IncomparableError",
    "ReplayClock",
    "ReplayError",
    "baseline_rounds",
    "mark_item",
    "replay_mark",
]


class ReplayError(RuntimeError):
    """Times cannot be replayed; the message says why and what to do."""


class BenchmarkFixture(Protocol):
    """What is used of pytest-benchmark's ``benchmark`` fixture."""

    disabled: bool
    extra_info: dict[str, Any]

    def pedantic(
        self, target: Callable[[], object], *, setup: Callable[[], None], rounds: int, iterations: int
    ) -> object:
        """Run ``setup`` and time ``target``, ``rounds`` times."""


class BenchmarkReplay:
    """Replays one measurement into a test's ``benchmark`` fixture.

    Args:
        benchmark: The fixture, of a test that was marked for replay.

    Raises:
        ReplayError: the test was not marked.
    """

    def __init__(self, benchmark: BenchmarkFixture) -> None:
        clock = getattr(benchmark, "_timer", None)
        if not isinstance(clock, ReplayClock):
            raise ReplayError(
                "the benchmark fixture of this test has a clock of the host, so a device time cannot be put into it: "
                "mark the test with pytest_nvfp4.bench.replay.replay_mark(), or use the nvfp4_benchmark fixture"
            )
        self._benchmark = benchmark
        self._clock = clock

    @property
    def enabled(self) -> bool:
        """Whether times are wanted.

        False with ``--benchmark-disable`` and under pytest-xdist, which disables pytest-benchmark: then there is no use
        in measuring any. With ``--benchmark-skip`` the fixture skips the test before this object is made.
        """
        return not self._benchmark.disabled

    def replay(
        self, measurement: Measurement, *, device: DeviceInfo, problem: Problem, kernel_sha256: str | None = None
    ) -> Provenance:
        """Put a measurement into pytest-benchmark; returns what is kept beside its rounds.

        Args:
            measurement: The times.
            device: The device that measured them.
            problem: The problem they are of.
            kernel_sha256: Hash of the kernel's files (``KernelSpec.sha256``).

        Raises:
            stats.RoundsError: there are no rounds, or one is no time.
        """
        seconds = [float(time) / 1e6 for time in as_rounds(measurement.device_us, what=problem.name)]
        provenance = Provenance.of(measurement, device=device, problem=problem, kernel_sha256=kernel_sha256)
        self._benchmark.extra_info[EXTRA_KEY] = provenance.model_dump(mode="json")
        times = iter(seconds)

        def rewind() -> None:
            self._clock.now = 0.0

        def advance() -> None:
            # --benchmark-cprofile calls once more than there are rounds.
            self._clock.now = next(times, seconds[-1])

        self._benchmark.pedantic(advance, setup=rewind, rounds=len(seconds), iterations=1)
        return provenance
