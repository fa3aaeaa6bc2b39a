"""Experiment of a validation: calibration of the spin, then sessions, each a process with all arms interleaved."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pytest_nvfp4.bench.stats import Floats
from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Timing
from pytest_nvfp4.device.result import DeviceInfo, Measurement, Result
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.selfcheck.rates.dose import DoseError, Schedule, dosed

EQUAL_ARMS = 2
"""Number of arms without a dose: the baseline and an equal one."""

_CALIBRATION_CYCLES = (1, 20_000, 200_000)
_CALIBRATION_FRAME = 2_000_000
_CALIBRATION_PERIODS = 200

Sizes = tuple[tuple[int, int, int, int], ...]


class ExperimentError(RuntimeError):
    """A failed job, or rounds without the injected doses."""


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """Parameters of an experiment.

    Attributes:
        kernel: The kernel.
        problems: Problems of different sizes.
        effects: Slowdowns to inject, as shares of the kernel's time.
        periods: Rounds of each arm in a session.
        sessions: Number of sessions; each is a process.
        family: Input family.
        cold_l2: Whether the L2 cache is flushed before every round.
        seed: Seed of every order.
        budget_s: Seconds of device time after which no session starts.
        deadline_s: Timeout of a session in seconds.

    Raises:
        ValueError: There are no problems, two have the same sizes, or an effect is no share.
    """

    kernel: KernelSpec
    problems: tuple[Problem, ...]
    effects: tuple[float, ...] = (0.01, 0.03, 0.05)
    periods: int = 1000
    sessions: int = 8
    family: str = "gpumode"
    cold_l2: bool = True
    seed: int = 0
    budget_s: float = 240.0
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        sizes = [tuple(problem.sizes) for problem in self.problems]
        if len(set(sizes)) != len(sizes):
            raise ValueError("two problems have the same sizes: each needs its own, which select the injected doses")
        if not self.problems:
            raise ValueError("no problems were given")
        if wrong := [effect for effect in self.effects if not 0 < effect < 10]:
            raise ValueError(f"effect {wrong[0]}: an effect is a share of the kernel's time, such as 0.03")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Cost of a spin beside a kernel.

    Attributes:
        base_us: Median of the kernel with the shortest spin, in microseconds.
        us_per_cycle: Microseconds that a cycle of spin adds.
        seen: Measured spins: pairs of cycles and added microseconds, ascending in both.
    """

    base_us: float
    us_per_cycle: float
    seen: tuple[tuple[float, float], ...] = ()

    def cycles(self, effect: float) -> int:
        """Return the cycles of a spin that makes the kernel slower by a share."""
        added = effect * self.base_us
        cycles = added / self.us_per_cycle
        if self.seen and self.seen[0][1] <= added <= self.seen[-1][1]:
            cycles = float(np.interp(added, [us for _, us in self.seen], [count for count, _ in self.seen]))
        return max(1, round(cycles))


@dataclass(frozen=True, slots=True)
class Session:
    """Rounds of one process.

    Attributes:
        arms: Rounds of each arm by problem: ``EQUAL_ARMS`` arms without a dose, then one for each effect. Rounds with
            the same index are neighbours.
        measurements: Measurements by problem.
        wall_s: Duration in seconds.
    """

    arms: dict[str, list[Floats]]
    measurements: dict[str, Measurement]
    wall_s: float


@dataclass(slots=True)
class Data:
    """Measurements of an experiment.

    Attributes:
        device: The device.
        calibrations: Calibrations by problem.
        sessions: The sessions.
        wall_s: Seconds of device time.
        stopped: Why there are fewer sessions than planned; None if there are all.
    """

    device: DeviceInfo
    calibrations: dict[str, Calibration]
    sessions: list[Session] = field(default_factory=list)
    wall_s: float = 0.0
    stopped: str | None = None


def _sizes(problem: Problem) -> Sizes:
    return tuple(problem.sizes)


class Experiment:
    """A plan on a device.

    Args:
        device: The device.
        plan: Parameters of the experiment.
        folder: An existing folder for the files of the jobs.
        report: Receives a line of progress.
        now: Clock of the budget, in seconds.
    """

    def __init__(
        self,
        device: Device,
        plan: ExperimentPlan,
        *,
        folder: Path,
        report: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._plan = plan
        self._folder = folder
        self._report = report
        self._now = now

    def run(self) -> Data:
        """Calibrate, then run sessions until all are done or the budget is spent.

        Raises:
            ExperimentError: A job did not pass, or its rounds do not show the doses.
        """
        start = self._now()
        calibrations, device = self._calibrate()
        data = Data(device, calibrations)
        longest = self._now() - start
        for index in range(self._plan.sessions):
            spent = self._now() - start
            if index and spent + longest > self._plan.budget_s:
                data.stopped = (
                    f"{index} of {self._plan.sessions} sessions: the budget of {self._plan.budget_s:g} s is spent"
                )
                self._report(data.stopped)
                break
            began = self._now()
            session = self._session(index, calibrations)
            data.sessions.append(session)
            longest = max(longest, self._now() - began) if index else self._now() - began
            self._report(f"session {index + 1} of {self._plan.sessions}: {session.wall_s:.1f} s")
        data.wall_s = self._now() - start
        return data

    def _calibrate(self) -> tuple[dict[str, Calibration], DeviceInfo]:
        schedule = Schedule.make(
            _CALIBRATION_CYCLES, frame_cycles=_CALIBRATION_FRAME, periods=_CALIBRATION_PERIODS, seed=self._plan.seed
        )
        result, arms = self._job("calibrate", {_sizes(problem): schedule for problem in self._plan.problems})
        if result.device is None:
            raise ExperimentError(f"{self._device.name}: the result of the calibration names no device")
        rough = {}
        for problem in self._plan.problems:
            base, short, long = arms[problem.name]
            slope = float(np.median(long - short)) / (_CALIBRATION_CYCLES[2] - _CALIBRATION_CYCLES[1])
            if slope <= 0:
                raise ExperimentError(
                    f"{problem.name}: a longer spin did not take longer; the spin does not run on this device"
                )
            rough[problem.name] = Calibration(float(np.median(base)), slope)
            self._report(
                f"{problem.name}: {rough[problem.name].base_us:.2f} us with the shortest spin, "
                f"{1e3 * slope:.4f} ns a cycle of spin"
            )
        return self._refined(rough), result.device

    def _refined(self, rough: dict[str, Calibration]) -> dict[str, Calibration]:
        """Measure spins about as long as the doses: the first cycles of a spin cost more than later ones."""
        schedules, tried = {}, {}
        for problem in self._plan.problems:
            calibration = rough[problem.name]
            shares = {factor * effect for effect in self._plan.effects for factor in (0.5, 1.0, 2.0)}
            tried[problem.name] = sorted({calibration.cycles(share) for share in shares})
            schedules[_sizes(problem)] = Schedule.make(
                [1, *tried[problem.name]],
                frame_cycles=calibration.cycles(1.0),
                periods=_CALIBRATION_PERIODS,
                seed=self._plan.seed,
            )
        _, arms = self._job("refine", schedules)
        refined = {}
        for name, calibration in rough.items():
            base, *longer = arms[name]
            added = np.maximum.accumulate([0.0, *(float(np.median(arm - base)) for arm in longer)])
            seen = tuple(zip((1.0, *map(float, tried[name])), map(float, added), strict=True))
            refined[name] = replace(calibration, seen=seen)
        return refined

    def _session(self, index: int, calibrations: dict[str, Calibration]) -> Session:
        plan = self._plan
        schedules = {}
        for problem in plan.problems:
            calibration = calibrations[problem.name]
            doses = [calibration.cycles(effect) for effect in plan.effects]
            schedules[_sizes(problem)] = Schedule.make(
                [1] * EQUAL_ARMS + doses,
                frame_cycles=calibration.cycles(1.0),
                periods=plan.periods,
                seed=plan.seed * 1000 + index,
            )
        result, arms = self._job(f"session-{index}", schedules, order_seed=plan.seed * 1000 + index)
        measurements = {plan.problems[measurement.case].name: measurement for measurement in result.measurements}
        return Session(arms, measurements, result.wall_s)

    def _job(
        self, name: str, schedules: dict[Sizes, Schedule], *, order_seed: int = 0
    ) -> tuple[Result, dict[str, list[Floats]]]:
        plan = self._plan
        job = Job(
            id=name,
            action="benchmark",
            kernel=dosed(plan.kernel, schedules),
            cases=tuple(JobCase(problem=ProblemSpec.of(problem), family=plan.family) for problem in plan.problems),
            order_seed=order_seed,
            timing=Timing(rounds=max(schedule.rounds for schedule in schedules.values()), cold_l2=plan.cold_l2),
            deadline_s=plan.deadline_s,
        )
        folder = self._folder / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        result = self._device.run(job, folder=folder)
        if result.status != "passed":
            raise ExperimentError(f"{name} ended as {result.status}: {result.reason}")
        by_case = {measurement.case: measurement for measurement in result.measurements}
        arms = {}
        for index, problem in enumerate(plan.problems):
            if index not in by_case:
                raise ExperimentError(f"{name} returned no times of {problem.name}")
            try:
                arms[problem.name] = schedules[_sizes(problem)].split(by_case[index].device_us)
            except DoseError as error:
                raise ExperimentError(f"{name}, {problem.name}: {error}") from error
        return result, arms


def windows(arms: Sequence[Floats], length: int) -> list[list[Floats]]:
    """Return disjoint stretches of ``length`` periods, each with the rounds of every arm."""
    count = min(arm.size for arm in arms) // length
    return [[arm[index * length : (index + 1) * length] for arm in arms] for index in range(count)]
