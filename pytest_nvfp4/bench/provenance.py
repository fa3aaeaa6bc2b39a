"""Provenance of times: the conditions stored beside the rounds of a benchmark, and which of them must agree."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from pytest_nvfp4.bench.roofline import columns
from pytest_nvfp4.device.job import ProblemSpec
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Index, Microseconds, Name
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.problem import Problem

Aspect = Literal["device", "method", "l2", "dsl", "problem"]
"""An aspect that two benchmarks must agree on to be compared."""


class ProvenanceError(ValueError):
    """Stored provenance that cannot be read."""


class Provenance(BaseModel):
    """How the rounds of a benchmark were measured.

    Attributes:
        schema_version: Version of this schema.
        device: The device.
        problem: The problem.
        method: How device time was measured.
        l2: State of the L2 cache before each call.
        sets: Number of sets of inputs that rotated.
        clocks_mhz: SM clock before, during and after; empty if it cannot be read.
        late_rounds: Number of rounds whose device time includes host time.
        outside_stream: Whether work ran outside the timed stream; None if unknown.
        host_us: Median time until all work had ended, in microseconds; None if not measured.
        call_us: Median time until the call returned, in microseconds.
        kernel_sha256: Hash of the kernel's files; None if unknown.
        tflops: Operations over the median time, in TFLOP/s.
        gbps: Bytes of ``roofline.Work`` over the median time, in GB/s.
        roofline_percent: Floor over the median, in percent; None if the device has no floor.
    """

    model_config = STRICT

    schema_version: Literal[1] = 1
    device: DeviceInfo
    problem: ProblemSpec
    method: Name
    l2: Literal["cold", "warm"]
    sets: Index
    clocks_mhz: Annotated[tuple[Index, ...], Field(max_length=1000)] = ()
    late_rounds: Index = 0
    outside_stream: bool | None = None
    host_us: Microseconds | None = None
    call_us: Microseconds | None = None
    kernel_sha256: Name | None = None
    tflops: float | None = None
    gbps: float | None = None
    roofline_percent: float | None = None

    @classmethod
    def of(
        cls, measurement: Measurement, *, device: DeviceInfo, problem: Problem, kernel_sha256: str | None = None
    ) -> Provenance:
        """Return the provenance of a measurement. Raises ValueError if it has no rounds."""
        derived = columns(measurement, problem, device)
        return cls(
            device=device,
            problem=ProblemSpec.of(problem),
            method=measurement.method,
            l2=measurement.l2,
            sets=measurement.sets,
            clocks_mhz=measurement.clocks_mhz,
            late_rounds=measurement.late_rounds,
            outside_stream=measurement.outside_stream,
            host_us=derived.host_us,
            call_us=measurement.call_us,
            kernel_sha256=kernel_sha256,
            tflops=derived.tflops,
            gbps=derived.gbps,
            roofline_percent=derived.percent,
        )

    @classmethod
    def read(cls, data: Any) -> Provenance:
        """Parse an entry of ``extra_info``.

        Raises:
            ProvenanceError: The entry does not have this version's schema.
        """
        try:
            return validated(cls, data, source="its provenance")
        except DoorError as error:
            reason = f"its provenance cannot be read: it {error.problem}"
            raise ProvenanceError(f"{reason}; another version of this plugin saved it, or it was edited") from error

    @property
    def clock_mhz(self) -> float | None:
        """SM clock under load, in MHz; None if it was not read."""
        # The first reading may be that of an idle device, so it counts only if there is no other.
        loaded = self.clocks_mhz[1:] or self.clocks_mhz
        return statistics.median(loaded) if loaded else None

    def describe(self) -> str:
        """Return one line on how the rounds were measured."""
        parts = [str(self.device), self.method, f"{self.l2} L2", f"{self.sets} sets of inputs"]
        if self.clock_mhz is not None:
            parts.append(f"SM clock {self.clock_mhz:.0f} MHz")
        parts.append(f"DSL {self.device.dsl}" if self.device.dsl else "no DSL")
        return ", ".join(parts)


def _shape(problem: ProblemSpec) -> str:
    return ", ".join(str(group) for group in problem.problem().groups)


def refusals(baseline: Provenance, current: Provenance, *, allow: Collection[Aspect] = ()) -> list[str]:
    """Return why two benchmarks must not be compared, one sentence a reason; empty if they may be.

    Args:
        baseline: Provenance of the stored rounds.
        current: Provenance of the new rounds.
        allow: Aspects in which they may differ, such as ``dsl`` to judge an upgrade of the DSL.
    """
    sides: tuple[tuple[Aspect, str, str, str], ...] = (
        ("device", "on", _device(baseline.device), _device(current.device)),
        ("method", "by", baseline.method, current.method),
        ("l2", "with", f"a {baseline.l2} L2 cache", f"a {current.l2} L2 cache"),
        ("dsl", "with", _dsl(baseline.device), _dsl(current.device)),
        ("problem", "for", _shape(baseline.problem), _shape(current.problem)),
    )
    return [
        f"the baseline was measured {preposition} {before}, and this run {preposition} {now}"
        for aspect, preposition, before, now in sides
        if before != now and aspect not in allow
    ]


def _device(device: DeviceInfo) -> str:
    kind = f"{device.name} (sm_{device.capability[0]}{device.capability[1]})"
    return f"a simulator of {kind}" if device.simulated else kind


def _dsl(device: DeviceInfo) -> str:
    return f"nvidia-cutlass-dsl {device.dsl}" if device.dsl else "no nvidia-cutlass-dsl"


def differences(baseline: Provenance, current: Provenance) -> list[str]:
    """Describe the differences that do not prevent a comparison."""
    sides = (
        ("driver", baseline.device.driver, current.device.driver),
        ("torch", baseline.device.torch, current.device.torch),
        ("Python", baseline.device.python, current.device.python),
        ("seed of the inputs", str(baseline.problem.seed), str(current.problem.seed)),
        ("sets of inputs", str(baseline.sets), str(current.sets)),
    )
    notes = [f"{name} {before or 'unknown'} -> {now or 'unknown'}" for name, before, now in sides if before != now]
    if baseline.device.uuid != current.device.uuid:
        notes.append("another card of the same kind")
    return notes
