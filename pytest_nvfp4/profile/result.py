"""The result of a profile: the same model for every tool and for every saved report.

A metric that is absent, not finite or of a unit that is not known is *unknown*: its value is None, it says why, and no
conclusion may rest on it. A tool that did not run is *unavailable* with the reason.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pytest_nvfp4.device.job import Model, ProfileMode
from pytest_nvfp4.device.profiling.record import ToolRun
from pytest_nvfp4.isolation.door.fields import Count, Index, Name, Sentence, Sha256, Size

SCHEMA: Literal[1] = 1
"""Version of the JSON of a profile."""
MOST_LAUNCHES = 10_000
MOST_METRICS = 20_000
"""Most metrics of a launch: a GB100 has 3,872 counters with a few submetrics each, and a report holds hundreds."""

Extents = tuple[Index, Index, Index]


class Metric(Model):
    """One metric.

    Attributes:
        value: Its value, finite; None if it is unknown.
        unit: Unit of the value, such as ``%``, ``us`` or ``byte``; empty for a plain number.
        because: Why it is unknown.
    """

    value: float | None = None
    unit: Annotated[str, Field(max_length=100)] = ""
    because: Sentence = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.value is None) != bool(self.because):
            raise ValueError("a metric has either a value or the reason why it is unknown")
        return self

    @classmethod
    def of(cls, value: float | None, unit: str = "") -> Metric:
        """Return the metric with a value; unknown if the value is absent or not finite."""
        if value is None:
            return cls(unit=unit, because="the report does not contain it")
        if not math.isfinite(value):
            return cls(unit=unit, because=f"the tool reports {value}")
        return cls(value=value, unit=unit)

    @classmethod
    def unknown(cls, because: str, unit: str = "") -> Metric:
        """Return an unknown metric."""
        return cls(unit=unit, because=because)

    def __str__(self) -> str:
        if self.value is None:
            return "unknown"
        return f"{self.value:,.6g} {self.unit}".rstrip()


ABSENT = Metric.of(None)
"""The metric that a report does not contain."""
Metrics = Annotated[dict[Name, Metric], Field(max_length=MOST_METRICS)]


class Rule(Model):
    """What a rule of the tool itself says.

    Attributes:
        name: Identifier of the rule.
        section: Identifier of its section.
        kind: ``optimization``, ``warning``, ``message`` or ``error``.
        text: Its message.
        speedup_pct: Speed-up that it estimates, in percent.
        scope: Whether the estimate is for the whole launch (``global``) or for the unit that it names (``local``).
    """

    name: Name
    section: Name = ""
    kind: Literal["optimization", "warning", "message", "error"] = "message"
    text: Sentence
    speedup_pct: float | None = None
    scope: Literal["global", "local", ""] = ""


class SourceMarker(Model):
    """What the tool says of one line of the author's source."""

    file: Name
    line: Index
    text: Sentence
    kind: Literal["optimization", "warning", "message", "error"] = "message"


class LineSamples(Model):
    """Samples of the warps' program counters on one source line: how many, and of them how many by stall reason."""

    file: Name
    line: Index
    samples: Count
    stalls: Annotated[dict[Name, Count], Field(max_length=100)] = Field(default_factory=dict)


class ProfiledLaunch(Model):
    """One launch of a kernel, or all launches of one name where a tool only summarises.

    Attributes:
        index: Position among the launches of the report.
        name: Name of the kernel as the tool shows it.
        instances: Number of launches that the figures summarise.
        grid: CTAs, None if unknown; so for the next two.
        block: Threads of a CTA.
        cluster: CTAs of a cluster.
        metrics: The metrics of ``profile.metrics``, by their names there, in the units that it names.
        stalls: Warps stalled for each reason per issued instruction, by the reason (``long_scoreboard``, ...).
        counters: Every metric of the report by the tool's own name (``dram__bytes_read.sum``), in base units.
        texts: Values that are no number, by the tool's own name.
        sections: Metrics of reports that have display names only, by section and name.
        rules: What the tool's own rules say.
        markers: What they say of a source line.
        lines: Samples by source line, most first.
    """

    index: Index = 0
    name: Name
    instances: Count = 1
    grid: Extents | None = None
    block: Extents | None = None
    cluster: Extents | None = None
    metrics: Metrics = Field(default_factory=dict)
    stalls: Metrics = Field(default_factory=dict)
    counters: Metrics = Field(default_factory=dict)
    texts: Annotated[dict[Name, Sentence], Field(max_length=MOST_METRICS)] = Field(default_factory=dict)
    sections: Annotated[dict[Name, Metrics], Field(max_length=1000)] = Field(default_factory=dict)
    rules: Annotated[tuple[Rule, ...], Field(max_length=10_000)] = ()
    markers: Annotated[tuple[SourceMarker, ...], Field(max_length=10_000)] = ()
    lines: Annotated[tuple[LineSamples, ...], Field(max_length=10_000)] = ()

    def metric(self, name: str) -> Metric:
        """Return a metric of ``profile.metrics`` by its name; unknown if the report does not contain it."""
        return self.metrics.get(name, ABSENT)

    def value(self, name: str) -> float | None:
        """Return the value of such a metric; None if it is unknown."""
        return self.metric(name).value

    def counter(self, name: str) -> Metric:
        """Return a metric by the tool's own name; unknown if the report does not contain it."""
        return self.counters.get(name, ABSENT)


class TimedRange(Model):
    """Time within an NVTX range: ``warmup`` or ``profile_region``."""

    name: Name
    instances: Count
    total_us: Metric
    device: bool = False
    """Whether it is time on the device; else between the calls that begin and end the range on the host."""


class Defect(Model):
    """A defect that compute-sanitizer reports.

    Attributes:
        kind: Type of the record, such as ``Invalid __global__ write``.
        text: What happened, with thread, block and address.
        severity: ``error`` or ``warning``.
        kernel: Name of the kernel, if any.
        file: Source file of the author; so for ``line``.
        count: Number of records that say the same.
    """

    kind: Name
    text: Sentence
    severity: Literal["error", "warning"] = "error"
    kernel: Name = ""
    file: Name | None = None
    line: Index | None = None
    count: Count = 1


class ProfiledKernel(Model):
    """The kernel that was profiled: its name, its file as the user named it, and the hash of its files."""

    name: Name
    path: Name
    sha256: Sha256 | None = None


class ProfiledDevice(Model):
    """Where it ran; what a report does not say is None. Clocks are those while it was profiled."""

    name: Name
    capability: tuple[Index, Index] | None = None
    sms: Index | None = None
    driver: Name | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None


class Configuration(Model):
    """How it was profiled."""

    mode: ProfileMode
    problem: Name = ""
    sizes: Annotated[tuple[tuple[Count, Count, Count, Count], ...], Field(max_length=10_000)] = ()
    warmup: Index = 0
    rounds: Index = 1
    metric_set: Name = ""
    sanitizer_tool: Name = ""
    launch_skip: Index = 0
    launch_count: Index | None = None


class Judgement(Model):
    """What the exact oracle says of the profiled calls: a status of ``device.result.Status``, and why."""

    status: Name
    because: Sentence = ""


class Artifact(Model):
    """A file that came with the profile: its name below the profile's folder, its size in bytes and its hash."""

    name: Name
    size: Size
    sha256: Sha256


class Profile(Model):
    """A profile.

    Attributes:
        source: Name of the saved report; empty for one of this run.
        configuration: How it was profiled; None for a report of others.
        verdict: Whether the profiled calls were right; None if nobody judged them.
        attempts: The tools in the order in which they were tried; the figures are of the last that ran.
        device: Where it ran.
        launches: The launches.
        ranges: Times of NVTX ranges.
        defects: What compute-sanitizer found.
        notes: Remarks: warnings of the tool, what was left out.
        artifacts: Files of the tools.
    """

    schema_version: Literal[1] = SCHEMA
    source: Name = ""
    kernel: ProfiledKernel | None = None
    configuration: Configuration | None = None
    verdict: Judgement | None = None
    attempts: Annotated[tuple[ToolRun, ...], Field(max_length=100)] = ()
    device: ProfiledDevice | None = None
    launches: Annotated[tuple[ProfiledLaunch, ...], Field(max_length=MOST_LAUNCHES)] = ()
    ranges: Annotated[tuple[TimedRange, ...], Field(max_length=1000)] = ()
    defects: Annotated[tuple[Defect, ...], Field(max_length=10_000)] = ()
    notes: Annotated[tuple[Sentence, ...], Field(max_length=1000)] = ()
    artifacts: Annotated[tuple[Artifact, ...], Field(max_length=1000)] = ()

    @property
    def tool(self) -> ToolRun | None:
        """The tool that the figures are of; None if none ran."""
        return next((run for run in reversed(self.attempts) if run.state == "ran"), None)

    def named(self, pattern: str) -> Profile:
        """Return the profile with only those launches whose names contain a text."""
        kept = tuple(launch for launch in self.launches if pattern in launch.name)
        return self.model_copy(update={"launches": kept})
