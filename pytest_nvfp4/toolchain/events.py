"""Events of a tracing worker: JSON lines that cross the process boundary, validated one by one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.trace import FINDING, LaunchFact, Value


@dataclass(slots=True)
class Events:
    """Events that a worker sent before it ended."""

    findings: list[Finding] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    launches: list[LaunchFact] = field(default_factory=list)
    launch_count: int = 0
    dependencies: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    dsl_version: str | None = None
    dsl_folder: str | None = None
    ended: bool = False

    @property
    def last_stage(self) -> str:
        """Name of the last stage that began."""
        return next(reversed(self.stages), "start")

    @classmethod
    def parse(cls, lines: Iterable[bytes]) -> Events:
        """Read the lines of a worker's result; an invalid line ends the reading and becomes a finding."""
        events = cls()
        for line in lines:
            try:
                events.add(json.loads(line))
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                events.findings.append(Finding("internal", f"the worker sent an invalid event: {error}"))
                break
        return events

    def add(self, event: dict[str, Any]) -> None:
        """Add one event. Raises ValueError, KeyError, TypeError or ValidationError for an invalid one."""
        match event.pop("event"):
            case "finding":
                self.findings.append(FINDING.validate_python(event))
            case "stage":
                self.stages[str(event["name"])] = float(event["seconds"])
            case "dsl":
                self.dsl_version, self.dsl_folder = str(event["version"]), str(event["folder"])
            case "launch":
                self.launches.append(LaunchFact.model_validate(event))
            case "values":
                self.values = [
                    Value(name=name, type=text, file=file, line=line) for name, text, file, line in event["values"]
                ]
                self.launch_count = int(event["launches"])
            case "dependencies":
                self.dependencies = [str(file) for file in event["files"]]
            case "end":
                self.ended = True
            case other:
                raise ValueError(f"unknown event {other!r}")
