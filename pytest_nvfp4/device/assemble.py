"""Assemble a result from the events of a worker and the end of its process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import (
    CaseReport,
    DeviceInfo,
    GroupOutput,
    Measurement,
    Result,
    RoundSample,
    SimulatedCall,
    Status,
)
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.toolchain.trace import FINDING

_OUTPUT_CHARACTERS = 20_000
_DETAIL_CHARACTERS = 4_000


class _Events:
    """Collects the events of a worker one by one.

    Attributes:
        stage: What the worker did last.
        ended: Whether it has sent its last event.
        intact: Whether every line came from the worker (see ``worker.events``).
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.status: Status | None = None
        self.device: DeviceInfo | None = None
        self.outputs: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.cases: list[CaseReport] = []
        self.measurements: list[Measurement] = []
        self.samples: list[RoundSample] = []
        self.simulated: list[SimulatedCall] = []
        self.stage = "start"
        self.ended = False
        self.intact = True

    def read(self, data: bytes) -> None:
        """Read all lines of the result pipe, up to the first that is damaged."""
        digest = hashlib.sha256()
        for line in data.splitlines(keepends=True):
            try:
                event = json.loads(line)
                if self.ended or (event["event"] == "end" and event.get("sha256") != digest.hexdigest()):
                    self.intact = False
                digest.update(line)
                self._add(event)
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                self.damaged(error)
                break

    def damaged(self, error: Exception) -> None:
        """Record that an event cannot be read."""
        self.findings.append(Finding(kind="internal", message=f"an event of the worker cannot be read: {error}"))
        self.status = "error"

    def _add(self, event: dict[str, Any]) -> None:
        match event.pop("event"):
            case "begin":
                pass
            case "stage":
                self.stage = str(event["name"])
            case "finding":
                self.findings.append(FINDING.validate_python(event))
            case "status":
                self.status = event["status"]
            case "device":
                self.device = DeviceInfo.model_validate(event)
            case "output":
                self.outputs[_output_key(event)] = {**event, "late_sha256": None}
            case "late":
                late = {"late_sha256": str(event["sha256"]), "late_after": event.get("after")}
                self.outputs[_output_key(event)] |= late
            case "case":
                self.cases.append(CaseReport.model_validate(event))
            case "measurement":
                self.measurements.append(Measurement.model_validate(event))
            case "sample":
                self.samples.append(RoundSample.model_validate(event))
            case "simulated":
                self.simulated.append(SimulatedCall.model_validate(event))
            case "end":
                self.ended = True
            case other:
                raise ValueError(f"unknown event {other!r}")


def _output_key(event: dict[str, Any]) -> tuple[int, int, int]:
    """Return the case, call and group of an output; a benchmark numbers the calls of each case from 0."""
    return int(event["case"]), int(event["call"]), int(event["group"])


def assemble(job: Job, outcome: Outcome, *, source_names: Mapping[str, str] | None = None) -> Result:
    """Return the result of a job whose worker has ended.

    Args:
        outcome: The end of the worker's process, with the events that it sent.
        source_names: The user's own file for each of the worker's copies, for use in findings.
    """
    events = _Events()
    events.read(outcome.result or b"")
    status: Status = events.status or "passed"
    if outcome.timed_out:
        status = "timeout"
        events.findings.append(_abnormal_end("timeout", "it", events.stage, outcome))
    elif outcome.result_overflow:
        status = "crashed"
        message = (
            "the worker's result exceeds the size limit of its pipe and was dropped: the kernel wrote to that pipe, or "
            "to a descriptor that is not its own"
        )
        events.findings.append(Finding(kind="crash", message=message))
    elif not events.ended or outcome.returncode != 0:
        status = "crashed"
        events.findings.append(_abnormal_end("crash", "the process", events.stage, outcome))
    elif not events.intact:
        status = "cheated"
        message = "the worker's result contains events that the worker did not send: the kernel wrote to its pipe"
        events.findings.append(Finding(kind="cheat", message=message))
    try:
        outputs = tuple(GroupOutput.model_validate(output) for output in events.outputs.values())
    except ValidationError as error:
        outputs, status = (), "error"
        events.damaged(error)
    names = source_names or {}
    return Result(
        job=job.id,
        status=status,
        findings=_with_user_files(events.findings, names),
        device=events.device,
        outputs=outputs,
        cases=tuple(
            report.model_copy(update={"findings": _with_user_files(report.findings, names)}) for report in events.cases
        ),
        measurements=tuple(events.measurements),
        samples=tuple(events.samples),
        simulated=tuple(_call_with_user_files(call, names) for call in events.simulated),
        stdout=outcome.stdout.text[-_OUTPUT_CHARACTERS:],
        stderr=outcome.stderr.text[-_OUTPUT_CHARACTERS:],
        wall_s=round(outcome.wall_s, 3),
    )


def _abnormal_end(kind: str, subject: str, stage: str, outcome: Outcome) -> Finding:
    message = f"{subject} {outcome.describe_end()}, in stage {stage!r}"
    return Finding(kind=kind, message=message, detail=outcome.stderr.text.strip()[-_DETAIL_CHARACTERS:])


def _call_with_user_files(call: SimulatedCall, names: Mapping[str, str]) -> SimulatedCall:
    launches = tuple(
        launch.model_copy(update={"findings": _with_user_files(launch.findings, names)}) for launch in call.launches
    )
    return call.model_copy(update={"launches": launches})


def _with_user_files(findings: list[Finding] | tuple[Finding, ...], names: Mapping[str, str]) -> tuple[Finding, ...]:
    return tuple(
        replace(finding, file=names.get(finding.file, finding.file)) if finding.file is not None else finding
        for finding in findings
    )


def source_names(job: Job, folder: Path, base: Path) -> dict[str, str]:
    """Return, for each of the worker's copies of a source file, the user's own file below ``base``."""
    if job.kernel is None:
        return {}
    return {str(folder / "source" / file.path): str(base / file.path) for file in job.kernel.files}
