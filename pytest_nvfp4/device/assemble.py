"""Assemble a result from the events of a worker and the end of its process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from pytest_nvfp4.device.answer import check_result, refused
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.dialogue import Answer
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.profiling.record import ProfiledCase, ProfileRecord
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
from pytest_nvfp4.device.worker.kernel_stack import innermost
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import MOST_EVENTS, STRICT, Index, Sha256
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.isolation.event_reader import FRAME, SOURCE, read_events, whole_lines
from pytest_nvfp4.isolation.seal.kept import Kept
from pytest_nvfp4.toolchain.trace import FINDING, MOST_FINDINGS, more_findings

_OUTPUT_CHARACTERS = 20_000
_DETAIL_CHARACTERS = 4_000


class _Status(BaseModel):
    model_config = STRICT
    status: Status


class _Late(BaseModel):
    """A later hash of an output that was sent; ``after`` is the call that changed it."""

    model_config = STRICT
    call: Index
    case: Index
    group: Index
    sha256: Sha256
    after: Index | None = None


_MODELS: dict[str, type[BaseModel] | TypeAdapter[Finding]] = {
    **FRAME,
    "finding": FINDING,
    "status": _Status,
    "device": DeviceInfo,
    "output": GroupOutput,
    "late": _Late,
    "case": CaseReport,
    "measurement": Measurement,
    "sample": RoundSample,
    "simulated": SimulatedCall,
    "conversation": Blob,
    "profiled": ProfiledCase,
    "debug": Answer,
}
"""What each event of a worker carries (see ``isolation.event_sender``)."""


class _Events:
    """Collects the events of a worker one by one.

    Attributes:
        stage: What the worker did last.
        ended: Whether it has sent its last event.
        intact: Whether every line came from the worker (see ``isolation.event_sender``).
        kept: What the worker's keeper says, after the last event (see ``isolation.seal``).
        refused: Why an event was refused, which ends the reading; None if none was.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.status: Status | None = None
        self.device: DeviceInfo | None = None
        self.outputs: dict[tuple[int, int, int], GroupOutput] = {}
        self.cases: dict[tuple[int, int], CaseReport] = {}
        self.measurements: dict[int, Measurement] = {}
        self.samples: dict[tuple[int, int], RoundSample] = {}
        self.simulated: dict[tuple[int, int], SimulatedCall] = {}
        self.profiled: dict[int, ProfiledCase] = {}
        self.conversation: Blob | None = None
        self.stage = "start"
        self.ended = False
        self.intact = True
        self.kept: Kept | None = None
        self.refused: DoorError | None = None
        self._left_out = 0
        self._left_out_errors = False

    def read(self, data: bytes) -> None:
        """Read all lines of the result pipe, up to the first that is refused."""
        whole = whole_lines(data)
        try:
            for event in read_events(whole, most=MOST_EVENTS):
                after = self.ended and (event.name != "kept" or self.kept is not None)
                if after or event.forged:
                    self.intact = False
                self._add(event.name, event.fields, event.source)
        except DoorError as error:
            self.refused = error
            self.intact = _last_fits(whole)
        if self.ended and len(whole) < len(data):
            self.intact = False
        if self._left_out:
            severity: Literal["error", "warning"] = "error" if self._left_out_errors else "warning"
            self.findings.append(more_findings(self._left_out, severity=severity))

    def _add(self, name: str, event: dict[str, Any], source: str) -> None:
        if (model := _MODELS.get(name)) is None:
            raise DoorError(source, f"is of the unknown kind {name[:40]!r}")
        made: Any = validated(model, event, source=source)
        match name:
            case "stage":
                self.stage = made.name
            case "finding" if len(self.findings) < MOST_FINDINGS:
                self.findings.append(made)
            case "finding":
                self._left_out += 1
                self._left_out_errors |= made.severity == "error"
            case "status":
                if self.status is not None and self.status != made.status:
                    raise DoorError(source, f"contradicts the status {self.status} of an earlier one")
                self.status = made.status
            case "device":
                if self.device is not None and self.device != made:
                    raise DoorError(source, "describes another device than an earlier one")
                self.device = made
            case "output":
                _once(self.outputs, (made.case, made.call, made.group), made, source)
            case "late":
                self._late(made, source)
            case "case":
                _once(self.cases, (made.case, made.call), made, source)
            case "measurement":
                _once(self.measurements, made.case, made, source)
            case "sample":
                _once(self.samples, (made.case, made.call), made, source)
            case "conversation":
                if self.conversation is not None:
                    raise DoorError(source, "is a second conversation")
                self.conversation = made
            case "simulated":
                _once(self.simulated, (made.case, made.call), made, source)
            case "profiled":
                _once(self.profiled, made.case, made, source)
            case "end":
                self.ended = True
            case "kept":
                self.kept = made

    def _late(self, late: _Late, source: str) -> None:
        key = (late.case, late.call, late.group)
        output = self.outputs.get(key)
        if output is None:
            raise DoorError(source, f"is about an output that was not sent: case, call and group {key}")
        if output.late_sha256 is not None:
            raise DoorError(source, f"repeats an earlier one: case, call and group {key}")
        self.outputs[key] = output.model_copy(update={"late_sha256": late.sha256, "late_after": late.after})


def _last_fits(lines: bytes) -> bool:
    """Return whether the worker's last line is no ``end``, or has the hash of the lines before it."""
    before = lines[: lines.rfind(b"\n", 0, len(lines) - 1) + 1]
    try:
        last = read_json(lines[len(before) :], source=SOURCE)
    except DoorError:
        return True
    if isinstance(last, dict) and last.get("event") == "kept" and before:
        return _last_fits(before)
    if not isinstance(last, dict) or last.get("event") != "end":
        return True
    return bool(last.get("sha256") == hashlib.sha256(before).hexdigest())


def _once(made: dict[Any, Any], key: object, value: object, source: str) -> None:
    """Add an entry. Raises DoorError if there is one with this key."""
    if key in made:
        raise DoorError(source, f"repeats an earlier one: {key}")
    made[key] = value


def assemble(
    job: Job,
    outcome: Outcome,
    *,
    source_names: Mapping[str, str] | None = None,
    stack: str = "",
    kept: bool = False,
    by_tool: bool = False,
) -> Result:
    """Return the result of a job whose worker has ended.

    Args:
        outcome: The end of the worker's process, with the events that it sent.
        source_names: The user's own file for each of the worker's copies, for use in findings.
        stack: The stack of the kernel's process, which it wrote shortly before its deadline or when it crashed.
        kept: Whether the worker has a keeper, without whose word nothing passes.
        by_tool: Whether a tool started the worker, whose exit status is then not the worker's.
    """
    events = _Events()
    events.read(outcome.result or b"")
    status: Status = events.status or "passed"
    if outcome.timed_out:
        status = "timeout"
        file, line = innermost(stack or outcome.stderr.text, (source_names or {}).__contains__)
        finding = _abnormal_end("timeout", "it", events.stage, outcome)
        events.findings.append(replace(finding, file=file, line=line))
    elif outcome.result_overflow:
        status = "crashed"
        message = (
            "the worker's result exceeds the size limit of its pipe and was dropped: the kernel wrote to that pipe, or "
            "to a descriptor that is not its own"
        )
        events.findings.append(Finding(kind="crash", message=message))
    elif (outcome.returncode != 0 and not by_tool) or not (events.ended or events.refused):
        status = "crashed"
        events.findings.append(_abnormal_end("crash", "the process", events.stage, outcome))
    elif not events.intact:
        return _forged(job, events, outcome, source_names or {})
    elif events.refused is not None:
        return refused(job, events.refused).model_copy(update=_output(outcome))
    elif kept and job.kernel is not None and status in ("passed", "cheated"):
        status = _with_keeper(events, status)
    names = source_names or {}
    result = Result(
        job=job.id,
        status=status,
        findings=_with_user_files(events.findings, names),
        device=events.device,
        outputs=tuple(events.outputs.values()),
        cases=tuple(
            report.model_copy(
                update={
                    "findings": _with_user_files(report.findings, names),
                    "attribution": None if report.attribution is None else report.attribution.with_files(names),
                }
            )
            for report in events.cases.values()
        ),
        measurements=tuple(events.measurements.values()),
        samples=tuple(events.samples.values()),
        simulated=tuple(_call_with_user_files(call, names) for call in events.simulated.values()),
        conversation=events.conversation,
        profile=ProfileRecord(cases=tuple(events.profiled.values())) if events.profiled else None,
    )
    return check_result(job, result.model_copy(update=_output(outcome)))


def _output(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a result that follow from the end of the process."""
    return {
        "stdout": outcome.stdout.text[-_OUTPUT_CHARACTERS:],
        "stderr": outcome.stderr.text[-_OUTPUT_CHARACTERS:],
        "wall_s": round(outcome.wall_s, 3),
    }


def _forged(job: Job, events: _Events, outcome: Outcome, names: Mapping[str, str]) -> Result:
    """Return the result of a job whose events are not all the worker's: nothing of them but the findings."""
    message = "the worker's result contains events that the worker did not send: the kernel wrote to its pipe"
    findings = [*events.findings, Finding(kind="cheat", message=message)]
    if events.kept is not None:
        findings[:0] = events.kept.findings()
    result = Result(job=job.id, status="cheated", findings=_with_user_files(findings, names))
    return result.model_copy(update=_output(outcome))


def _with_keeper(events: _Events, status: Status) -> Status:
    """Add the findings of the worker's keeper, and return the status with them."""
    if events.kept is None:
        message = "the memory of the kernel's process was not compared with what it was before the kernel ran"
        events.findings.append(Finding("internal", message))
        return "error"
    found = events.kept.findings()
    events.findings[:0] = found
    return "cheated" if any(finding.severity == "error" for finding in found) else status


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
