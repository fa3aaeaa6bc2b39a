"""Judgement of who computed the outputs of a simulated call: the launched kernels must have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device import call_plan, rotation
from pytest_nvfp4.device.attribution import CallAttribution, GroupAttribution, Request, WrittenBy
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import CaseReport
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.numerics.judge import judge
from pytest_nvfp4.problem import Problem

_SENT = 3
"""Requests that a finding lists."""
ORIGIN = "origin"
"""Kind of the findings on what outputs descend from."""


def judge_origins(job: Job, report: CaseReport, *, folder: Path) -> list[Finding]:
    """Return the errors in who computed the outputs of a call; none if that is unknown.

    Args:
        folder: Folder of the job's outputs.
    """
    attribution = report.attribution
    if attribution is None or job.kernel is None:
        return []
    case = job.cases[report.case]
    found = attribution_findings(attribution, case.problem.problem(), torch_operators=job.kernel.torch_operators)
    if found or not attribution.after_reads:
        return found
    try:
        wrong = _wrong_replay(job, report, folder)
    except DoorError as error:
        return [*found, Finding("internal", f"the repeated outputs of call {report.call} cannot be read: {error}")]
    unknown = "" if report.replayed else attribution.not_replayed or "its requests were not repeated"
    finding = replay_finding(attribution, wrong=wrong, unknown=unknown)
    return found if finding is None else [*found, finding]


def _wrong_replay(job: Job, report: CaseReport, folder: Path) -> str:
    """Return what is wrong with the outputs of the repeated requests of a call; empty if nothing is, or none came."""
    side_stream = job.kernel is not None and job.kernel.side_stream
    plan = call_plan.plan_calls(job.cases, job.order_seed, side_stream=side_stream)
    changed = plan[report.call].changed
    inputs = rotation.replayed_inputs(job.cases[report.case], key=job.row_key, changed=changed, given=job.given)
    contract = contract_of(inputs.problem)
    outputs = contract.call(inputs).outputs
    for index, (reference, blob) in enumerate(zip(contract.references(inputs), report.replayed, strict=False)):
        want = reference.want
        bits = blob.read(folder, source=f"the repeated output of group {index}", most=want.nbytes)
        c = np.frombuffer(bits, dtype=want.dtype).reshape(want.shape)
        judged = judge(c, reference, group=index, poison=int.from_bytes(outputs[index].poison, "little"))
        if not judged.ok:
            return str(judged).partition("\n")[0]
    return ""


def attribution_findings(attribution: CallAttribution, problem: Problem, *, torch_operators: bool) -> list[Finding]:
    """Return the errors in who computed the outputs of a call.

    Args:
        torch_operators: Whether operators of torch may compute outputs.
    """
    groups = attribution.groups
    found = _copied(groups)
    computed = _by_request((group.group, request) for group in groups for request in group.computed)
    if computed and not torch_operators:
        found += [
            _finding(
                request,
                f"{_of_groups(numbers)} descends from {request}, which computes from the inputs on the device, so that "
                "the launched kernels need not: compute it in a kernel; for a reference or a baseline, set "
                "torch-operators = true",
            )
            for request, numbers in computed.items()
        ]
    needed = contract_of(problem).multiply_adds(problem)
    if attribution.multiply_adds < needed and not computed and not found:
        found.append(_too_few(attribution, needed))
    return found


def _copied(groups: Sequence[GroupAttribution]) -> list[Finding]:
    copies = [(group, written) for group in groups for written in group.written if written.kind == "copy"]
    by_request = _by_request((group.group, Request(what=w.what, file=w.file, line=w.line)) for group, w in copies)
    return [
        _finding(
            request,
            f"{_of_groups(numbers)} was written by a copy from the host: {request}{_extent(copies, request)}; outputs "
            "must be computed by kernels that are launched on the device",
        )
        for request, numbers in by_request.items()
    ]


def _extent(copies: Sequence[tuple[GroupAttribution, WrittenBy]], request: Request) -> str:
    """Describe the elements of the first group that a request wrote."""
    for group, written in copies:
        if (written.what, written.line) == (request.what, request.line) and written.first and written.last:
            (row, column), (last_row, last_column) = written.first, written.last
            where = f"from row {row}, column {column} to row {last_row}, column {last_column}"
            return f" wrote {written.elements:,} of the {group.elements:,} elements of group {group.group}, {where}"
    return ""


def _too_few(attribution: CallAttribution, needed: int) -> Finding:
    writers = _by_request(
        (group.group, Request(what=_named(written), file=written.file, line=written.line))
        for group in attribution.groups
        for written in group.written
    )
    by = f"C was written by {', '.join(map(str, list(writers)[:3]))}" if writers else "no request wrote C"
    message = (
        f"the launched kernels that C descends from did {attribution.multiply_adds:,} multiply-adds of the {needed:,} "
        f"that the problem needs (the sum of m n k over its groups); {by}"
    )
    return _finding(next(iter(writers), Request(what="")), message)


def _named(written: WrittenBy) -> str:
    return f"kernel {written.what}" if written.kind == "launch" else written.what


def replay_finding(attribution: CallAttribution, *, wrong: str = "", unknown: str = "") -> Finding | None:
    """Return the finding on what the host sent after a read, if C depends on it.

    Args:
        wrong: What is wrong with the outputs when the requests of the call are repeated on other inputs; empty if
            nothing is, so that C does not depend on what the host read.
        unknown: Why the requests were not repeated; empty if they were.
    """
    hosts = [(group.group, host) for group in attribution.groups for host in group.host]
    if not hosts or not (wrong or unknown):
        return None
    number = hosts[0][0]
    own = [host for group, host in hosts if group == number][:_SENT]
    sent = " and ".join(str(host.sent) for host in own)
    why = (
        f"the same requests give a wrong C on other inputs ({wrong}), so the host computed a part of it"
        if wrong
        else f"whether C depends on what the host read cannot be found out: {unknown}"
    )
    return _finding(
        own[0].sent,
        f"C of group {number} descends from what the host sent after it had read data that descend from the inputs: "
        f"{own[0].read}, then {sent}; {why}. Compute C from device memory in the launched kernels",
    )


def _by_request(pairs: Iterable[tuple[int, Request]]) -> dict[Request, list[int]]:
    found: dict[Request, list[int]] = {}
    for number, request in pairs:
        found.setdefault(request, []).append(number)
    return found


def _of_groups(numbers: Sequence[int]) -> str:
    distinct = sorted(set(numbers))
    if len(distinct) == 1:
        return f"C of group {distinct[0]}"
    return f"C of {len(distinct)} groups (the first: {distinct[0]})"


def _finding(request: Request, message: str) -> Finding:
    return Finding(ORIGIN, message, file=request.file, line=request.line)
