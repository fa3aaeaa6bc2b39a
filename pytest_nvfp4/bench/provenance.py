"""Where times come from: what is kept beside the rounds of a benchmark, and when two of them must not be compared."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_nvfp4.bench.roofline import columns
from pytest_nvfp4.device.job import ProblemSpec
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.problem import Problem

Aspect = Literal["device", "method", "l2", "dsl", "problem"]
"""What two benchmarks must agree on to be compared."""
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)


class ProvenanceError(ValueError):
    """What is kept beside rounds cannot be read; the message says why."""


class Provenance(BaseModel):
    """How the rounds of a benchmark were measured.

    Attributes:
        schema_version: Version of this form.
        device: The device.
        problem: The problem.
        method: How device time was measured.
        l2: State of the L2 cache before each call.
        sets: How many sets of inputs rotated.
        clocks_mhz: SM clock before, during and after, where it could be read.
        late_rounds: Rounds whose device time holds host time.
        outside_stream: Whether work ran outside the timed stream; None where that could not be seen.
        host_us: Median time until all work had ended, in microseconds; None where it was not measured.
        call_us: Median time until the call returned, in microseconds.
        kernel_sha256: Hash of the kernel's files, where it is known.
        tflops: Operations over the median, in TFLOP/s.
        gbps: Bytes moved once over the median, in GB/s.
        roofline_percent: The floor over the median, in percent; None where the device has no floor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    device: DeviceInfo
    problem: ProblemSpec
    method: str
    l2: Literal["cold", "warm"]
    sets: int
    clocks_mhz: tuple[int, ...] = ()
    late_rounds: int = 0
    outside_stream: bool | None = None
    host_us: float | None = None
    call_us: float | None = None
    kernel_sha256: str | None = None
    tflops: float | None = None
    gbps: float | None = None
    roofline_percent: float | None = None

    @classmethod
    def of(
        cls, measurement: Measurement, *, device: DeviceInfo, problem: Problem, kernel_sha256: str | None = None
    ) -> Provenance:
        """The provenance of a measurement. Raises ValueError for one without rounds."""
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
        """Read what ``extra_info`` holds.

        Raises:
            ProvenanceError: it is not what this version writes.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "it"
            raise ProvenanceError(
                f"what is kept beside its rounds cannot be read ({place}: {first['msg']}); it was saved by another "
                "version of this plugin, or edited"
            ) from error

    @property
    def clock_mhz(self) -> float | None:
        """The SM clock under load, in MHz: the first reading may be of an idle device, so it counts only alone."""
        loaded = self.clocks_mhz[1:] or self.clocks_mhz
        return statistics.median(loaded) if loaded else None

    def describe(self) -> str:
        """One line on how it was measured."""
        parts = [str(self.device), self.method, f"{self.l2} L2", f"{self.sets} sets of inputs"]
        if self.clock_mhz is not None:
            parts.append(f"SM clock {self.clock_mhz:.0f} MHz")
        parts.append(f"DSL {self.device.dsl}" if self.device.dsl else "no DSL")
        return ", ".join(parts)


def _shape(problem: ProblemSpec) -> str:
    return ", ".join(str(group) for group in problem.problem().groups)


def refusals(baseline: Provenance, current: Provenance, *, allow: Collection[Aspect] = ()) -> list[str]:
    """Why two benchmarks must not be compared, one sentence each; empty when they may be.

    Args:
        baseline: Where the stored rounds come from.
        current: Where the new ones come from.
        allow: What they may differ in all the same, such as ``dsl`` when an upgrade of the DSL is what is judged.
    """
    sides: dict[Aspect, tuple[str, str]] = {
        "device": (_device(baseline.device), _device(current.device)),
        "method": (baseline.method, current.method),
        "l2": (f"a {baseline.l2} L2 cache", f"a {current.l2} L2 cache"),
        "dsl": (_dsl(baseline.device), _dsl(current.device)),
        "problem": (_shape(baseline.problem), _shape(current.problem)),
    }
    words: dict[Aspect, str] = {
        "device": "on",
        "method": "by",
        "l2": "with",
        "dsl": "with",
        "problem": "for",
    }
    return [
        f"the baseline was measured {words[aspect]} {before}, and this run {words[aspect]} {now}"
        for aspect, (before, now) in sides.items()
        if before != now and aspect not in allow
    ]


def _device(device: DeviceInfo) -> str:
    kind = f"{device.name} (sm_{device.capability[0]}{device.capability[1]})"
    return f"a simulator of {kind}" if device.simulated else kind


def _dsl(device: DeviceInfo) -> str:
    return f"nvidia-cutlass-dsl {device.dsl}" if device.dsl else "no nvidia-cutlass-dsl"


def differences(baseline: Provenance, current: Provenance) -> list[str]:
    """What differs without ruling a comparison out, in words."""
    found = []
    for name, before, now in (
        ("driver", baseline.device.driver, current.device.driver),
        ("torch", baseline.device.torch, current.device.torch),
        ("Python", baseline.device.python, current.device.python),
        ("seed of the inputs", str(baseline.problem.seed), str(current.problem.seed)),
        ("sets of inputs", str(baseline.sets), str(current.sets)),
    ):
        if before != now:
            found.append(f"{name} {before or 'unknown'} -> {now or 'unknown'}")
    if baseline.device.uuid != current.device.uuid:
        found.append("another card of the same kind")
    return found
