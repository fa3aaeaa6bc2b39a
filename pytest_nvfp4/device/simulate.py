"""Run a kernel once on each case in the simulator, and return the launches and counters of each call."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_nvfp4.contracts.registry import is_own
from pytest_nvfp4.device.answer import ANSWER
from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.batch import INCONCLUSIVE
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, Simulating
from pytest_nvfp4.device.result import RECORD_BYTES, DeviceInfo, Result, SimulatedCall, Status
from pytest_nvfp4.driver.memory import POISON
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.sim.fault import NEEDS_DATA
from pytest_nvfp4.temporary import folder_in

_RECORDS = (
    ("trace", "timeline"),
    ("protocol", "recorded protocol"),
    ("operands", "record of operands"),
    ("recording", "recording"),
)
"""Fields of a call that are files, and what they are."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The simulation of one case.

    Attributes:
        status: Its status; if no outputs were requested, it does not depend on their values.
        findings: Errors and warnings.
        call: The call as far as it ran; None if it did not reach a launch.
        device: The simulated device; None if unknown.
        stdout: End of the standard output of the kernel's host code.
        stderr: End of its standard error.
        trace: Timeline as JSON text, if requested.
        protocol: Recordings of the launches as JSON text, if requested.
        operands: What the MMAs read, as JSON text, if it was followed.
        recording: Recordings of the launches for the model of their times, if requested; ``model.storage.loads`` reads
            and checks them.
        notes: What the recordings do not say of how they were made.
        complete: Whether the call came to its end, and its outputs were requested and judged.
        conversation: What the host code asked of the device in the whole job, as JSON text, if requested.
    """

    case: JobCase
    status: Status
    findings: tuple[Finding, ...]
    call: SimulatedCall | None
    device: DeviceInfo | None = None
    stdout: str = ""
    stderr: str = ""
    trace: bytes | None = None
    protocol: bytes | None = None
    operands: bytes | None = None
    recording: bytes | None = None
    notes: tuple[str, ...] = ()
    conversation: bytes | None = None
    complete: bool = False

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that are errors."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def simulate(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    base: Path | None = None,
    deadline_s: float = 600.0,
    outputs: bool = False,
    origins: bool = False,
    trace_ctas: int = 0,
    races: bool = False,
    race_warnings: bool = False,
    provenance: bool = False,
    unwritten: bool = False,
    poison: int = POISON,
    schedule: str = "eager",
    protocol: bool = False,
    recording: bool = False,
    sampled: bool = False,
    ring_ctas: int = 0,
    later_calls: bool = False,
    regions: bool = False,
    launch_only: tuple[int, ...] = (),
    sms: int | None = None,
    conversation: bool = False,
    detailed: bool = False,
    debugging: bool = False,
    jobs: int = 1,
) -> list[SimulationResult]:
    """Simulate a kernel on every case, in order. A case that ends the process does not affect the others.

    A case that does not pass ``sampled`` is simulated again, wholly and with data.

    Args:
        device: The device; the status is ``unavailable`` if it is not a simulator.
        folder: Folder for the files of jobs, which are removed.
        base: The folder that the kernel's files are relative to.
        deadline_s: Timeout of a job in seconds.
        outputs: Whether to judge the outputs.
        origins: This option and those after it, but for ``jobs``, are the fields of ``Simulating``.
        jobs: Number of jobs that run at once, on a remote; each simulates a share of the cases.
    """
    settings = Simulating(
        outputs=outputs,
        origins=origins,
        trace_ctas=trace_ctas,
        races=races,
        race_warnings=race_warnings,
        provenance=provenance,
        unwritten=unwritten,
        poison=poison,
        schedule=schedule,
        protocol=protocol,
        recording=recording,
        sampled=sampled,
        ring_ctas=ring_ctas,
        later_calls=later_calls,
        regions=regions,
        launch_only=launch_only,
        sms=sms,
        conversation=conversation,
        detailed=detailed,
        debugging=debugging,
    )
    run = partial(_run, device, kernel, folder=folder, base=base, deadline_s=deadline_s)
    jobs = 1 if launch_only else min(jobs, len(cases))
    if jobs > 1:
        folder.mkdir(parents=True, exist_ok=True)
        shares = [cases[at::jobs] for at in range(jobs)]
        with ThreadPoolExecutor(jobs) as pool:
            # Each thread has a copy of this one's context, by which the run can be stopped.
            futures = [pool.submit(copy_context().run, run, share, settings=settings) for share in shares]
            results = [future.result() for future in futures]
        done = [results[at % jobs][at // jobs] for at in range(len(cases))]
    else:
        done = run(cases, settings=settings)
    if len(cases) > 1 and any(result.status in INCONCLUSIVE for result in done):
        alone = [settings.model_copy(update={"launch_only": (0,) * (at in launch_only)}) for at in range(len(cases))]
        done = [result for case, own in zip(cases, alone, strict=True) for result in run([case], settings=own)]
    if sampled:
        whole = settings.model_copy(update={"sampled": False})
        done = [each if _complete(each) else _with_data(each, run([each.case], settings=whole)[0]) for each in done]
    return done


def _complete(done: SimulationResult) -> bool:
    # With data, a simulation takes longer still.
    return done.status in ("unavailable", "unsupported", "timeout") or (done.status == "passed" and not done.errors)


def _with_data(sampled: SimulationResult, whole: SimulationResult) -> SimulationResult:
    """Return a complete simulation with the reason for it."""
    found = next((finding for finding in sampled.findings if finding.kind == NEEDS_DATA), None)
    reason = (
        "the simulation without data did not end" if found is None else found.message.partition(f"{NEEDS_DATA}: ")[2]
    )
    if found is not None and found.file is not None:
        reason = f"{Path(found.file).name}:{found.line} {reason}"
    return replace(whole, notes=(f"all clusters were simulated with data: {reason}",))


def _run(
    device: Device,
    kernel: KernelSpec,
    cases: Sequence[JobCase],
    *,
    folder: Path,
    base: Path | None,
    deadline_s: float,
    settings: Simulating,
) -> list[SimulationResult]:
    folder.mkdir(parents=True, exist_ok=True)
    with folder_in(folder, "job-") as job_folder:
        job = Job(
            id=job_folder.name,
            action="simulate",
            kernel=kernel,
            cases=tuple(cases),
            simulating=settings,
            deadline_s=deadline_s,
        )
        if settings.outputs or any(is_own(case.problem.contract) for case in cases):
            from pytest_nvfp4.device.judged_job import run_and_judge
            from pytest_nvfp4.device.verdict import Judge

            judge = Judge() if settings.outputs else None
            job, result, judged = run_and_judge(device, job, judge, folder=job_folder, base=base)
        else:
            result, judged = device.run(job, folder=job_folder, base=base), []
        if judged:
            verdicts = [(verdict.status, tuple(verdict.findings), verdict.complete) for verdict in judged]
        else:
            verdicts = [(*_without_outputs(result, index), False) for index in range(len(cases))]
        return [
            replace(
                _simulated(case, status, findings, result=result, index=index, folder=job_folder), complete=complete
            )
            for index, (case, (status, findings, complete)) in enumerate(zip(cases, verdicts, strict=True))
        ]


def _without_outputs(result: Result, index: int) -> tuple[Status, tuple[Finding, ...]]:
    """Return the status and findings of a case whose outputs were not requested."""
    if result.status != "passed":
        return result.status, result.findings
    findings = [finding for report in result.cases if report.case == index for finding in report.findings]
    for report in result.cases:
        if report.case == index and report.inputs_before != report.inputs_after:
            findings.append(Finding(kind="inputs", message="the call changed its inputs (A, B or scale factors)"))
    bad = any(finding.severity == "error" for finding in findings)
    return "failed" if bad else "passed", tuple(findings)


def _simulated(
    case: JobCase, status: Status, findings: tuple[Finding, ...], *, result: Result, index: int, folder: Path
) -> SimulationResult:
    call = next((call for call in result.simulated if call.case == index), None)
    read: dict[str, bytes] = {}
    for name, what in _RECORDS if call is not None else ():
        blob: Blob | None = getattr(call, name)
        if blob is None:
            continue
        try:
            read[name] = blob.read(folder, source=f"the {what}", most=RECORD_BYTES, exact=False)
        except DoorError as error:
            findings += (Finding(kind=ANSWER, message=f"{error}: it is not read", severity="warning"),)
    if result.conversation is not None:
        try:
            text = result.conversation.read(folder, source="the recorded host code", most=RECORD_BYTES, exact=False)
            read["conversation"] = text
        except DoorError as error:
            findings += (Finding(kind=ANSWER, message=f"{error}: it is not read", severity="warning"),)
    if call is not None:
        call = call.model_copy(update=dict.fromkeys([name for name, _ in _RECORDS]))
    return SimulationResult(case, status, findings, call, result.device, result.stdout, result.stderr, **read)  # type: ignore[arg-type]
