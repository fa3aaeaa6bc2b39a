"""What a calibration's process reports, as JSON lines: the GPU, its state, and the readings of each launch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Extent, Index, Name, Sentence, Size
from pytest_nvfp4.isolation.door.json_values import Bounds, read_lines
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.model.calibrate.benchmark import Benchmark, Machine

MARKER = "nvfp4-calibration "
"""Beginning of each line that is part of the report; a library may print others."""
MOST_BYTES = 32 << 20
_MOST_REPEATS = 64
_MOST_SAMPLES = 1 << 16
_SOURCE = "the calibration's report"
_LINE = Bounds(size=4 << 20, depth=6, values=200_000)

Value = Annotated[float, Field(ge=0, lt=1e15)]
Repeats = Annotated[tuple[Value, ...], Field(min_length=1, max_length=_MOST_REPEATS)]


class Gpu(BaseModel):
    """The GPU.

    Attributes:
        free_bytes: Bytes of its memory that were free.
        shared_bytes: Largest shared memory of a CTA, the system's part included.
        clusters: By size, the clusters that can be resident with one CTA an SM.
    """

    model_config = STRICT
    kind: Literal["gpu"] = "gpu"
    name: Name
    capability: tuple[Index, Index]
    driver: Name
    sms: Extent
    l2_bytes: Size
    free_bytes: Size
    shared_bytes: Size
    clusters: Annotated[dict[Literal["2", "4", "8", "16"], Index], Field(max_length=4)]

    def machine(self) -> Machine:
        """Return what the sizes of its benchmarks follow from. Raises ValueError if there are none for it."""
        return Machine.of(
            capability=self.capability,
            sms=self.sms,
            l2_bytes=self.l2_bytes,
            free_bytes=self.free_bytes,
            shared_bytes=self.shared_bytes,
        )


class State(BaseModel):
    """The state of the GPU before or after the benchmarks.

    Attributes:
        processes: Other processes that use the GPU; None if NVML does not say.
        utilisation: Per cent of the last sample period in which a kernel ran.
        throttled: Reasons why the clocks are lower than requested, but for idleness and the power limit under load.
        sm_mhz: SM clock, and its maximum.
    """

    model_config = STRICT
    kind: Literal["state"] = "state"
    when: Literal["before", "after"]
    processes: Index | None = None
    utilisation: Annotated[int, Field(ge=0, le=100)] | None = None
    throttled: Annotated[tuple[Name, ...], Field(max_length=16)] = ()
    sm_mhz: tuple[Index, Index] | None = None


class Begun(BaseModel):
    """The number of the benchmark that the process begins, in the order of the plan."""

    model_config = STRICT
    kind: Literal["begun"] = "begun"
    number: Index


class Reading(BaseModel):
    """Repeated launches of one point of a benchmark.

    Attributes:
        cycles: Most cycles of a CTA, of each repeat; 0 where launches are timed by events.
        ns: Nanoseconds from the first CTA's start to the last one's end, or between two events.
        operations: Numbers of operations that CTAs counted, each once.
        samples: Cycles of single operations: the median of the repeats.
    """

    model_config = STRICT
    kind: Literal["reading"] = "reading"
    benchmark: Name
    point: Index
    cycles: Repeats
    ns: Repeats
    operations: Annotated[tuple[Index, ...], Field(max_length=64)]
    samples: Annotated[tuple[Value, ...], Field(max_length=_MOST_SAMPLES)] = ()


class Refusal(BaseModel):
    """Why nothing, or one benchmark, was measured."""

    model_config = STRICT
    kind: Literal["refusal"] = "refusal"
    benchmark: Name = ""
    reason: Sentence


Line = Gpu | State | Begun | Reading | Refusal
_KINDS: dict[str, type[Line]] = {"gpu": Gpu, "state": State, "begun": Begun, "reading": Reading, "refusal": Refusal}


class Report(BaseModel):
    """What a calibration's processes reported.

    Attributes:
        begun: Number of the last benchmark that was begun.
    """

    model_config = STRICT
    gpu: Gpu | None = None
    states: tuple[State, ...] = ()
    begun: Index | None = None
    readings: tuple[Reading, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the process got to the end."""
        return any(state.when == "after" for state in self.states)

    def followed_by(self, later: Report) -> Report:
        """Return this report with that of the process that went on."""
        return Report(
            gpu=self.gpu or later.gpu,
            states=self.states + later.states,
            begun=later.begun,
            readings=self.readings + later.readings,
            refusals=self.refusals + later.refusals,
        )

    def refused(self) -> str:
        """Return why the readings must not be used as a whole, or an empty text."""
        general = [refusal.reason for refusal in self.refusals if not refusal.benchmark]
        in_use = [text for state in self.states if (text := busy(state))]
        return next(iter([*general, *in_use]), "" if self.gpu else "the process reported no GPU")


def busy(state: State) -> str:
    """Return why a GPU in a state cannot be measured, or an empty text."""
    if state.throttled:
        return f"the GPU's clocks are throttled ({', '.join(state.throttled)}): let it cool down, and try again"
    if state.processes:
        return f"{state.processes} other processes use the GPU: end them, or choose another with CUDA_VISIBLE_DEVICES"
    if state.when == "before" and state.utilisation is not None and state.utilisation > _MOST_IDLE_PERCENT:
        return f"the GPU is busy ({state.utilisation} % of the time): try again when it is idle"
    return ""


_MOST_IDLE_PERCENT = 5


def read_report(data: bytes) -> Report:
    """Return the report in a process's output.

    Raises:
        DoorError: A line of the report is not valid.
    """
    marker = MARKER.encode()
    lines = [line[len(marker) :] for line in data.split(b"\n") if line.startswith(marker)]
    found: dict[str, list[Line]] = {name: [] for name in _KINDS}
    for _, value in read_lines(b"\n".join(lines), source=_SOURCE, most=20_000, bounds=_LINE):
        name = value.get("kind") if isinstance(value, dict) else None
        if name not in _KINDS:
            raise DoorError(_SOURCE, f"has a line of kind {str(name)[:40]!r}")
        line = validated(_KINDS[name], value, source=_SOURCE)
        assert isinstance(line, Gpu | State | Begun | Reading | Refusal)
        found[name].append(line)
    if len(found["gpu"]) > 1:
        raise DoorError(_SOURCE, "describes two GPUs")
    return Report(
        gpu=next((line for line in found["gpu"] if isinstance(line, Gpu)), None),
        states=tuple(line for line in found["state"] if isinstance(line, State)),
        begun=max((line.number for line in found["begun"] if isinstance(line, Begun)), default=None),
        readings=tuple(line for line in found["reading"] if isinstance(line, Reading)),
        refusals=tuple(line for line in found["refusal"] if isinstance(line, Refusal)),
    )


def wrong_reading(benchmark: Benchmark, reading: Reading) -> str:
    """Return why a reading is none of its benchmark, or an empty text."""
    if reading.point >= len(benchmark.points):
        return f"has no point {reading.point}"
    point = benchmark.points[reading.point]
    expected = point.n if benchmark.launches != "one" else point.operations
    if reading.operations != (expected,):
        counted = ", ".join(map(str, reading.operations[:4])) or "nothing"
        return f"counted {counted} operations, and {expected} were asked for"
    if benchmark.samples and len(reading.samples) != benchmark.samples:
        return f"returned {len(reading.samples)} samples instead of {benchmark.samples}"
    if len(reading.cycles) != len(reading.ns):
        return f"has {len(reading.cycles)} readings of cycles and {len(reading.ns)} of time"
    return ""


def by_name(readings: Iterable[Reading]) -> dict[str, dict[int, Reading]]:
    """Return readings by benchmark and point."""
    found: dict[str, dict[int, Reading]] = {}
    for reading in readings:
        found.setdefault(reading.benchmark, {})[reading.point] = reading
    return found
