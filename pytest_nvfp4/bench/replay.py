"""Replay of device times into pytest-benchmark, so that its saving, comparing, histograms and JSON apply to them.

pytest-benchmark times a function with a timer. The timer here is set: to zero before a round, and to the measured time
by the function of the round, so ``stats.data`` holds the measured times. The test needs a marker before its
``benchmark`` fixture is made (``mark.mark_item``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pytest_nvfp4.bench.mark import EXTRA_KEY, ReplayClock
from pytest_nvfp4.bench.modelled_facts import origin
from pytest_nvfp4.bench.provenance import Provenance
from pytest_nvfp4.bench.stats import as_rounds
from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem


class ReplayError(RuntimeError):
    """Times that cannot be replayed."""


class BenchmarkFixture(Protocol):
    """The part of pytest-benchmark's ``benchmark`` fixture that is used."""

    disabled: bool
    extra_info: dict[str, Any]

    def pedantic(
        self, target: Callable[[], object], *, setup: Callable[[], None], rounds: int, iterations: int
    ) -> object:
        """Run ``setup`` and time ``target``, ``rounds`` times."""


class BenchmarkReplay:
    """Replay of one measurement into a test's ``benchmark`` fixture.

    Args:
        benchmark: The fixture of a test that is marked for replay.

    Raises:
        ReplayError: The test is not marked.
    """

    def __init__(self, benchmark: BenchmarkFixture) -> None:
        clock = getattr(benchmark, "_timer", None)
        if not isinstance(clock, ReplayClock):
            raise ReplayError(
                "the benchmark fixture of this test reads a host clock, so it cannot hold device times: mark the test "
                "with pytest_nvfp4.bench.mark.replay_mark(), or use the nvfp4_benchmark fixture"
            )
        self._benchmark = benchmark
        self._clock = clock

    @property
    def enabled(self) -> bool:
        """Whether pytest-benchmark records times: not with ``--benchmark-disable``, nor under pytest-xdist."""
        return not self._benchmark.disabled

    def replay(
        self, measurement: Measurement, *, device: DeviceInfo, problem: Problem, kernel_sha256: str | None = None
    ) -> Provenance:
        """Store a measurement in pytest-benchmark, and return the provenance that is stored beside its rounds.

        Args:
            measurement: The times.
            device: The device that measured them.
            problem: The problem.
            kernel_sha256: Hash of the kernel's files (``KernelSpec.sha256``).

        Raises:
            stats.RoundsError: There are no rounds, or one is not a positive number.
        """
        seconds = [float(time) / 1e6 for time in as_rounds(measurement.device_us, what=problem.name)]
        provenance = Provenance.of(measurement, device=device, problem=problem, kernel_sha256=kernel_sha256)
        self._benchmark.extra_info[EXTRA_KEY] = provenance.model_dump(mode="json")
        self._rounds(seconds)
        return provenance

    def replay_modelled(self, call: ModelledCall) -> None:
        """Store a modelled time in pytest-benchmark, with what it was modelled with; there is one round."""
        self._benchmark.extra_info[EXTRA_KEY] = {"is_a_measurement": False, "machine": call.machine, **origin(call)}
        self._rounds([call.us / 1e6])

    def _rounds(self, seconds: Sequence[float]) -> None:
        times = iter(seconds)

        def rewind() -> None:
            self._clock.now = 0.0

        def advance() -> None:
            # pytest-benchmark's --benchmark-cprofile calls the function once more after the rounds.
            self._clock.now = next(times, seconds[-1])

        self._benchmark.pedantic(advance, setup=rewind, rounds=len(seconds), iterations=1)
