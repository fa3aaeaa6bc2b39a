"""Least time of a problem on a device, and measured times relative to it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.bench.peaks import Peaks, known_gpus, peaks_of
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem

IMPOSSIBLE = 0.9
"""Share of the hard floor below which a median cannot be true.

The margin covers clocks above the datasheet's boost clock (8 % on an H100 SXM, 6 % on a B200 at 1965 MHz) and the
resolution of a clock.
"""

Term = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a problem, with each input read once and each output written once.

    Attributes:
        flops: Two for each multiply-add of the contract, ``m * n * k`` for each product.
        read_bytes: Packed operands (half a byte an element) and their scale factors (one for 16 elements of k), without
            the padding of scale-factor tiles.
        written_bytes: C, two bytes an element.
    """

    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


def work_of(problem: Problem) -> Work:
    """Return the work of a problem, as its contract states it."""
    contract = contract_of(problem)
    return Work(2 * contract.multiply_adds(problem), *contract.traffic(problem))


@dataclass(frozen=True, slots=True)
class Roofline:
    """Least time of a problem on a device, in microseconds.

    Attributes:
        work: The work.
        peaks: Peak rates of the device.
        compute_us: Operations over the rate of the unit an NVFP4 GEMM runs on.
        memory_us: Bytes over the memory bandwidth.
        hard_us: Bound for any kernel: the fastest matrix unit of the device, reads only (writes may stay in the L2
            cache past the end), and with a warm L2 cache only the reads that it cannot hold.
        hard_term: Term that binds ``hard_us``.
    """

    work: Work
    peaks: Peaks
    compute_us: float
    memory_us: float
    hard_us: float
    hard_term: Term

    @property
    def floor_us(self) -> float:
        """Larger of the two terms."""
        return max(self.compute_us, self.memory_us)

    @property
    def term(self) -> Term:
        """Term that binds."""
        return "compute" if self.compute_us >= self.memory_us else "memory"

    def __str__(self) -> str:
        peaks = self.peaks
        if self.term == "compute":
            rate = f"{peaks.math.per_second / 1e12:.0f} TFLOP/s {peaks.math_unit}, {peaks.math.source}"
        else:
            rate = f"{peaks.memory.per_second / 1e12:.2f} TB/s, {peaks.memory.source}"
        return f"at least {self.floor_us:.2f} us, bound by {self.term} ({rate})"


@dataclass(frozen=True, slots=True)
class NoRoofline:
    """The reason why a device has no floor."""

    why: str

    def __str__(self) -> str:
        return self.why


def roofline(
    problem: Problem, device: DeviceInfo | None, *, l2: Literal["cold", "warm"] = "cold"
) -> Roofline | NoRoofline:
    """Return the floor of a problem on a device, or why there is none.

    Args:
        problem: The problem.
        device: The device; None if unknown.
        l2: State of the L2 cache before a call.
    """
    if device is None:
        return NoRoofline("no floor: the device that measured the times is unknown")
    if device.simulated:
        return NoRoofline(f"no floor: {device.name} is a simulator, and a simulator has no time")
    peaks = peaks_of(device.name)
    if peaks is None:
        return NoRoofline(
            f"no floor: the peak rates of {device.name!r} are not listed (listed are {', '.join(known_gpus())})"
        )
    work = work_of(problem)
    cached = 0
    if l2 == "warm":
        # With an unknown L2 size all inputs may have been cached: a missing fact must not produce a violation.
        cached = work.read_bytes if device.l2_bytes is None else device.l2_bytes
    terms: dict[Term, float] = {
        "compute": work.flops / peaks.fastest.per_second * 1e6,
        "memory": max(0, work.read_bytes - cached) / peaks.memory.per_second * 1e6,
    }
    hard: Term = "compute" if terms["compute"] >= terms["memory"] else "memory"
    return Roofline(
        work=work,
        peaks=peaks,
        compute_us=work.flops / peaks.math.per_second * 1e6,
        memory_us=work.bytes / peaks.memory.per_second * 1e6,
        hard_us=terms[hard],
        hard_term=hard,
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """A measurement in comparable units.

    Attributes:
        us: Median device time, in microseconds.
        p10_us: Tenth percentile.
        p90_us: Ninetieth percentile.
        host_us: Median host time until all work had ended; None if not measured.
        tflops: Operations over the median, in TFLOP/s.
        gbps: Bytes of ``Work`` over the median, in GB/s.
        percent: Floor over the median, in percent of the roofline; None without a floor.
    """

    us: float
    p10_us: float
    p90_us: float
    host_us: float | None
    tflops: float
    gbps: float
    percent: float | None


def percentile(values: tuple[float, ...], share: float) -> float:
    """Return a percentile, interpolated linearly between order statistics. Raises ValueError for no values."""
    if not values:
        raise ValueError("a percentile of no values")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def columns(measurement: Measurement, problem: Problem, device: DeviceInfo | None) -> Columns:
    """Return the derived columns of a measurement.

    Raises:
        ValueError: It has no rounds, or its median is not positive and finite.
    """
    if not measurement.device_us:
        raise ValueError(f"the measurement of {problem.name} has no rounds")
    median = statistics.median(measurement.device_us)
    if not 0 < median < float("inf"):
        raise ValueError(f"the median of {problem.name} is {median} us; times must be positive and finite")
    work = work_of(problem)
    line = roofline(problem, device, l2=measurement.l2)
    return Columns(
        us=median,
        p10_us=percentile(measurement.device_us, 0.1),
        p90_us=percentile(measurement.device_us, 0.9),
        host_us=statistics.median(measurement.host_us) if measurement.host_us else None,
        tflops=work.flops / median / 1e6,
        gbps=work.bytes / median / 1e3,
        percent=100 * line.floor_us / median if isinstance(line, Roofline) else None,
    )


def physics_violation(measurement: Measurement, problem: Problem, device: DeviceInfo | None) -> str | None:
    """Return why the times of a measurement cannot be true: the median is below ``IMPOSSIBLE`` times the hard floor.

    The result is None if they can be true, or the device has no floor.
    """
    line = roofline(problem, device, l2=measurement.l2)
    if not isinstance(line, Roofline) or not measurement.device_us:
        return None
    median = statistics.median(measurement.device_us)
    if median >= IMPOSSIBLE * line.hard_us:
        return None
    work = line.work
    if line.hard_term == "compute":
        needs, rate = f"{work.flops / 1e9:.2f} GFLOP", line.peaks.fastest
        means, limit = f"{work.flops / median / 1e6:.0f} TFLOP/s", f"{rate.per_second / 1e12:.0f} TFLOP/s"
    else:
        needs, rate = f"{work.read_bytes / 1e6:.1f} MB of inputs", line.peaks.memory
        means, limit = f"{work.read_bytes / median / 1e6:.2f} TB/s", f"{rate.per_second / 1e12:.2f} TB/s"
    return (
        f"a median of {median:.2f} us for {problem.name} cannot be true on a {line.peaks.gpu}: {needs} in that time is "
        f"{means}, and the device reaches {limit} at most ({rate.source}), so it takes at least {line.hard_us:.2f} us; "
        "some of the work was not done, or not within the timed calls"
    )
