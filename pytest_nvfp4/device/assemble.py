"""Make a result of what a worker said and how it ended."""

from __future__ import annotations

import hashlib
import json
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

_TAIL = 20_000


class _Said:
    """The events of a worker, read one by one; the first that is damaged ends the reading."""

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
        self.undisturbed = True

    def take(self, event: dict[str, Any]) -> None:
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
                self.outputs[_which(event)] = {**event, "late_sha256": None}
            case "late":
                self.outputs[_which(event)]["late_sha256"] = str(event["sha256"])
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


def _which(event: dict[str, Any]) -> tuple[int, int, int]:
    """Which output an event is of. A benchmark numbers the calls of each case from 0."""
    return int(event["case"]), int(event["call"]), int(event["group"])


def assemble(job: Job, outcome: Outcome, *, source_names: dict[str, str] | None = None) -> Result:
    """The result of a job whose worker has ended.

    Args:
        job: The job.
        outcome: How the worker ended, with the events it sent.
        source_names: The user's own file for each of the worker's copies, so that findings name what the user knows.
    """
    said = _Said()
    heard = hashlib.sha256()
    for line in (outcome.result or b"").splitlines(keepends=True):
        try:
            event = json.loads(line)
            if said.ended or (event["event"] == "end" and event.get("said") != heard.hexdigest()):
                said.undisturbed = False
            heard.update(line)
            said.take(event)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            said.findings.append(Finding(kind="internal", message=f"the worker's answer is damaged: {error}"))
            said.status = "error"
            break
    status: Status = said.status or "passed"
    if outcome.timed_out:
        status = "timeout"
        said.findings.append(_ending("timeout", f"it {outcome.describe_end()}", said.stage, outcome))
    elif outcome.result_overflow:
        status = "crashed"
        said.findings.append(
            Finding(
                kind="crash",
                message="more came over the worker's result pipe than any answer holds, so nothing of it was kept: the "
                "kernel wrote to the pipe, or to a descriptor that is not its own",
            )
        )
    elif not said.ended or outcome.returncode != 0:
        status = "crashed"
        said.findings.append(_ending("crash", f"the process {outcome.describe_end()}", said.stage, outcome))
    elif not said.undisturbed:
        status = "cheated"
        said.findings.append(
            Finding(kind="cheat", message="the worker's answer holds what it did not say: the kernel wrote to its pipe")
        )
    cases = [
        report.model_copy(update={"findings": tuple(_renamed(f, source_names or {}) for f in report.findings)})
        for report in said.cases
    ]
    try:
        outputs = tuple(GroupOutput.model_validate(output) for output in said.outputs.values())
    except ValidationError as error:
        outputs, status = (), "error"
        said.findings.append(Finding(kind="internal", message=f"the worker's answer is damaged: {error}"))
    return Result(
        job=job.id,
        status=status,
        findings=tuple(_renamed(finding, source_names or {}) for finding in said.findings),
        device=said.device,
        outputs=outputs,
        cases=tuple(cases),
        measurements=tuple(said.measurements),
        samples=tuple(said.samples),
        simulated=tuple(_own_names(call, source_names or {}) for call in said.simulated),
        stdout=outcome.stdout.text[-_TAIL:],
        stderr=outcome.stderr.text[-_TAIL:],
        wall_s=round(outcome.wall_s, 3),
    )


def _ending(kind: str, what: str, stage: str, outcome: Outcome) -> Finding:
    return Finding(kind=kind, message=f"{what}, in stage {stage!r}", detail=outcome.stderr.text.strip()[-4000:])


def _own_names(call: SimulatedCall, names: dict[str, str]) -> SimulatedCall:
    launches = tuple(
        launch.model_copy(update={"findings": tuple(_renamed(finding, names) for finding in launch.findings)})
        for launch in call.launches
    )
    return call.model_copy(update={"launches": launches})


def _renamed(finding: Finding, names: dict[str, str]) -> Finding:
    if finding.file is None or finding.file not in names:
        return finding
    return replace(finding, file=names[finding.file])


def source_names(job: Job, folder: Path, base: Path) -> dict[str, str]:
    """For each of the worker's copies of a source file, the user's own file below ``base``."""
    if job.kernel is None:
        return {}
    return {str(folder / "source" / file.path): str(base / file.path) for file in job.kernel.files}
