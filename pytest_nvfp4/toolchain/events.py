"""Events of a tracing worker: JSON lines that cross the process boundary, validated one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Index, Name, Sentence
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.isolation.event_reader import FRAME, Event, read_events, whole_lines
from pytest_nvfp4.isolation.seal.kept import Kept
from pytest_nvfp4.toolchain.trace import FINDING, MOST_FINDINGS, LaunchFact, Value, more_findings

_MOST_EVENTS = 200_000
_MOST_STAGES = 10_000


class _Dsl(BaseModel):
    model_config = STRICT
    version: Name
    folder: Name


class _Values(BaseModel):
    """Values as (name, type, file, line), the number of values that were recorded, and the number of launches."""

    model_config = STRICT
    captured: Index
    values: Annotated[tuple[tuple[Name, Sentence, Name, Index], ...], Field(max_length=1_000_000)]
    launches: Index


class _Dependencies(BaseModel):
    model_config = STRICT
    files: Annotated[tuple[Name, ...], Field(max_length=100_000)]
    read: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()


_MODELS: dict[str, type[BaseModel] | TypeAdapter[Finding]] = {
    **FRAME,
    "finding": FINDING,
    "dsl": _Dsl,
    "launch": LaunchFact,
    "values": _Values,
    "dependencies": _Dependencies,
}
"""What each event carries."""


@dataclass(slots=True)
class Events:
    """Events that a worker sent before it ended."""

    findings: list[Finding] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    launches: list[LaunchFact] = field(default_factory=list)
    launch_count: int = 0
    dependencies: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    dsl_version: str | None = None
    dsl_folder: str | None = None
    ended: bool = False
    refused: bool = False
    captured: int = 0
    kept: Kept | None = None

    @property
    def last_stage(self) -> str:
        """Name of the last stage that began."""
        return next(reversed(self.stages), "start")

    @classmethod
    def parse(cls, data: bytes) -> Events:
        """Read a worker's result; an event that is refused ends the reading and becomes a finding."""
        events = cls()
        try:
            for event in read_events(whole_lines(data), most=_MOST_EVENTS):
                events.add(event)
        except DoorError as error:
            events.refused = True
            events.findings.append(Finding("answer", f"{error}: the answer is refused"))
        if (left_out := len(events.findings) - MOST_FINDINGS) > 0:
            rest = events.findings[MOST_FINDINGS:]
            severity: Literal["error", "warning"] = (
                "error" if any(finding.severity == "error" for finding in rest) else "warning"
            )
            events.findings[MOST_FINDINGS:] = [more_findings(left_out, severity=severity)]
        return events

    def add(self, event: Event) -> None:
        """Add one event. Raises DoorError for one that is refused."""
        name, source = event.name, event.source
        if (model := _MODELS.get(name)) is None:
            raise DoorError(source, f"is of the unknown kind {name[:40]!r}")
        if self.ended and (name != "kept" or self.kept is not None):
            raise DoorError(source, "follows the end")
        made: Any = validated(model, event.fields, source=source)
        match name:
            case "finding":
                self.findings.append(made)
            case "stage":
                if len(self.stages) >= _MOST_STAGES:
                    raise DoorError(source, f"begins more than {_MOST_STAGES} stages")
                self.stages[made.name] = made.seconds
            case "dsl":
                self.dsl_version, self.dsl_folder = made.version, made.folder
            case "launch":
                self.launches.append(made)
            case "values":
                self.values = [
                    Value.model_construct(name=name, type=text, file=file, line=line)
                    for name, text, file, line in made.values
                ]
                self.launch_count, self.captured = made.launches, made.captured
            case "dependencies":
                self.dependencies, self.read = list(made.files), list(made.read)
            case "end":
                if event.forged:
                    raise DoorError(
                        source, "does not have the hash of the events before it: the kernel wrote to the pipe"
                    )
                self.ended = True
                if self.captured != len(self.values):
                    raise DoorError(source, f"follows {len(self.values)} values, and {self.captured} were recorded")
            case "kept":
                if not self.ended:
                    raise DoorError(source, "precedes the end")
                self.kept = made
