"""Judge the outputs of a kernel, in the process that generated the inputs rather than the one that ran the kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pytest_nvfp4.device import call_plan, rotation
from pytest_nvfp4.device.attribution_verdict import judge_origins
from pytest_nvfp4.device.call_plan import PlannedCall
from pytest_nvfp4.device.job import Job, JobCase
from pytest_nvfp4.device.result import CaseReport, GroupOutput, Result, RoundSample, Status
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import HalfBits, Mask
from pytest_nvfp4.numerics.diagnose import explain, zeros
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.numerics.judge import GroupVerdict, Reference, judge
from pytest_nvfp4.numerics.oracle import exact_product

_SETS_JUDGED = 2
"""Sets of inputs whose rounds are judged; generating a set again takes as long as judging hundreds of its rounds."""
_FEWEST = 16
"""Wrong outputs that must equal an earlier call's before they count as left over from it."""


@dataclass(slots=True)
class CaseVerdict:
    """The verdict of one case over all of its calls.

    Attributes:
        groups: The numerical verdict of each group of each call.
        written_by: Who wrote its outputs, in a few words; empty if that is unknown.
    """

    case: JobCase
    status: Status
    findings: list[Finding] = field(default_factory=list)
    groups: list[GroupVerdict] = field(default_factory=list)
    written_by: str = ""


@dataclass(slots=True)
class _Expected:
    """The inputs of a call, and the reference output of each group."""

    inputs: ProblemInput
    references: list[Reference]

    @classmethod
    def of(cls, inputs: ProblemInput) -> _Expected:
        return cls(inputs, [Reference.of(group.exact()) for group in inputs.groups])


def _wrong(reference: Reference, c: HalfBits) -> Mask:
    """Return the outputs that are certainly wrong; NaN and the sign of zero as in ``judge``."""
    with np.errstate(invalid="ignore"):
        other = (c != reference.want) & ~(reference.nan & fp16.is_nan(c)) & ~((c | reference.want) == fp16.SIGN)
        near = ~reference.order_free & (np.abs(fp16.to_float64(c) - reference.values) <= reference.bound)
    return np.asarray(other & ~near)


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of a job, and how a wrong output is related to the calls before it.

    Attributes:
        cases: The cases of the job.
        outputs: The outputs of all calls.
        reports: The device's reports on all calls.
        launched: By call, the number of kernels that it launched.
        plan: The calls of a verify job, in order; empty for a job that is not planned.
        manners: For each of them, in what it differs from those before it.
        folder: Folder of the outputs.
    """

    cases: tuple[JobCase, ...]
    outputs: tuple[GroupOutput, ...]
    reports: tuple[CaseReport, ...]
    launched: dict[int, int]
    plan: list[PlannedCall]
    manners: list[str]
    folder: Path

    @classmethod
    def of(cls, job: Job, result: Result, folder: Path) -> _Calls:
        plan: list[PlannedCall] = []
        if job.action == "verify":
            plan = call_plan.plan_calls(
                job.cases, job.order_seed, side_stream=job.kernel is not None and job.kernel.side_stream
            )
        manners = [call_plan.describe(plan, position, job.cases) for position in range(len(plan))]
        launched = {report.call: len(report.launches) for report in result.cases if report.launches is not None}
        return cls(job.cases, result.outputs, result.cases, launched, plan, manners, folder)

    def name(self, call: int) -> str:
        """Return the name of a call, with its manner."""
        manner = self.manner(call)
        return f"call {call} ({manner})" if manner else f"call {call}"

    def manner(self, call: int) -> str:
        """Return in what a call differs from those before it; empty if that is unknown."""
        # The number comes from the worker, which is not trusted.
        return self.manners[call] if 0 <= call < len(self.manners) else ""

    def placed(self, finding: Finding, case: JobCase) -> Finding:
        """Return a finding of the device with the call that it first occurs in, if not every call may have it."""
        calls = [
            report.call
            for report in self.reports
            if self.cases[report.case].problem.sizes == case.problem.sizes and finding in report.findings
        ]
        manner = self.manner(min(calls))
        if not manner or manner.startswith(call_plan.FIRST):
            return finding
        return replace(finding, message=f"{finding.message}\n  in {self.name(min(calls))}")

    def left(self, output: GroupOutput, c: HalfBits, wrong: Mask, inputs: GroupInput) -> str:
        """Return what wrong outputs hold that this call did not compute; empty if it computed them."""
        values, poison = c[wrong], inputs.guard.poison
        if not values.size:
            return ""
        nothing = "; this call launched nothing" if self.launched.get(output.call) == 0 else ""
        if (values == poison).all():
            every = "it" if wrong.all() else "every wrong output"
            return f"{every} still holds the poison that was there before the call{nothing}"
        if text := zeros(c, wrong):
            return f"every wrong output {text}{nothing}"
        for earlier in self.outputs:
            # Few or constant values prove nothing: the results of two calls may agree in them.
            if earlier.call >= output.call or values.size < _FEWEST or (values == values[0]).all():
                continue
            held = self._bits(earlier, inputs)
            if held is not None and held.shape == c.shape and bool((held[wrong] == values).all()):
                who = "the C" if earlier.group == output.group else f"the C of group {earlier.group}"
                return f"every wrong output holds {who} of call {earlier.call}, an earlier call{nothing}"
        return nothing.removeprefix("; ")

    def _bits(self, output: GroupOutput, inputs: GroupInput) -> HalfBits | None:
        try:
            return inputs.split_c(_c_buffer(output, inputs, self.folder, source="an earlier output"))[1]
        except DoorError:
            return None


def _missing(
    job: Job, index: int, reports: Sequence[CaseReport], planned: _Calls, *, returned: set[int]
) -> list[Finding]:
    """Return a finding for the calls of a case that were not made, or whose outputs are missing without an error."""
    if job.action == "benchmark":
        asked = set() if returned else {0}
    elif planned.plan:
        asked = {at for at, call in enumerate(planned.plan) if call.case == index and call.other_sizes is None}
    else:
        asked = {index}
    failed = {report.call for report in reports if any(finding.severity == "error" for finding in report.findings)}
    missing = asked - returned - failed
    if job.action == "verify":  # every call has a report, which says what it launched and whether inputs changed
        missing |= asked - {report.call for report in reports}
    if not missing:
        return []
    if missing == asked:
        return [Finding("internal", "the device returned no output for this case")]
    calls = ", ".join(map(str, sorted(missing)))
    return [Finding("internal", f"the device did not return what was asked of call {calls} of this case")]


def _c_buffer(output: GroupOutput, inputs: GroupInput, folder: Path, *, source: str) -> HalfBits:
    """Return the buffer of C with its guard rows; its size follows from the problem. Raises DoorError."""
    rows, columns = inputs.c_shape
    data = output.data.read(folder, source=source, most=rows * columns * 2)
    if (output.rows, output.columns) != (rows, columns):
        raise DoorError(source, f"has the shape {output.rows} x {output.columns}, not {rows} x {columns}")
    return np.frombuffer(data, dtype=np.uint16).reshape(rows, columns)


def _explained(expected: _Expected, index: int, c: HalfBits, wrong: Mask) -> str:
    """Return lines that explain the first wrong output of a case; each hypothesis costs a matrix product."""
    return "".join(f"\n  it {explanation}" for explanation in explain(expected.inputs, index, c, wrong)[:3])


def _sample_error(base: ProblemInput, sample: RoundSample, *, key: int) -> str:
    """Return what is wrong with the sampled rows of a round, empty if they are right."""
    index, visit = sample.inputs
    changes = {change.group: change for change in rotation.changes(base, index=index, visit=visit, key=key)}
    sampled = sorted((part.group, part.row) for part in sample.parts)
    if sampled != sorted((change.group, change.row) for change in changes.values()):
        return "the sampled rows are not those that changed"
    for part in sample.parts:
        inputs = base.groups[part.group]
        try:
            bits = np.frombuffer(bytes.fromhex(part.bits), dtype=np.uint16)[None, :]
        except ValueError:
            return f"group {part.group}: the sample cannot be read"
        columns = slice(part.column, part.column + bits.shape[1])
        if bits.size == 0 or part.column < 0 or columns.stop > inputs.group.n:
            return f"group {part.group}: the sample does not have the shape of the output"
        exact = exact_product(
            a=np.frombuffer(changes[part.group].data, dtype=np.uint8)[None, :],
            b=inputs.b[columns],
            sfa=inputs.sfa[part.row : part.row + 1],
            sfb=inputs.sfb[columns],
        )
        judged = judge(bits, exact, group=part.group, poison=inputs.guard.poison)
        if not judged.ok:
            return (
                f"group {part.group}, row {part.row}, columns {columns.start}-{columns.stop - 1}: {judged.mismatches} "
                f"of {bits.size} outputs are wrong ({judged.unwritten} not written) after a change of this row of A"
            )
    return ""


class Judge:
    """Judges results. The expected outputs of each case of a job are computed once and cached until the next job."""

    def __init__(self) -> None:
        self._cases: dict[JobCase, _Expected] = {}
        self._drawn_by: int | None = None
        """Key of the job whose inputs the cached ones are; None for the inputs of the cases themselves."""

    def _expected(self, case: JobCase, *, drawn_by: int | None) -> _Expected:
        if drawn_by != self._drawn_by:
            self._cases.clear()
            self._drawn_by = drawn_by
        if case not in self._cases:
            inputs = rotation.set_inputs(case, 0) if drawn_by is None else rotation.verified_inputs(case, key=drawn_by)
            self._cases[case] = _Expected.of(inputs)
        return self._cases[case]

    def judge(self, job: Job, result: Result, *, folder: Path) -> list[CaseVerdict]:
        """Return the verdict of every case of a job, in order.

        Every case of a job that did not end properly has the status and findings of the job.
        """
        calls = _Calls.of(job, result, folder)
        return [self._case(index, job, result, calls) for index in range(len(job.cases))]

    def _case(self, index: int, job: Job, result: Result, planned: _Calls) -> CaseVerdict:
        case, key = job.cases[index], job.row_key
        if result.status != "passed":
            return CaseVerdict(case, result.status, list(result.findings))
        verdict = CaseVerdict(case, "passed")
        calls: dict[int, list[GroupOutput]] = {}
        for output in sorted(result.outputs, key=lambda output: (output.call, output.group)):
            if output.case == index:
                calls.setdefault(output.call, []).append(output)
        for call, made in calls.items():
            expected = self._for_call(case, made[0], planned, key=key)
            if [output.group for output in made] != list(range(len(expected.inputs.groups))):
                verdict.findings.append(Finding("internal", f"the worker did not return all outputs of call {call}"))
                continue
            for output in made:
                self._output(verdict, output, expected, planned)
        self._samples(verdict, [sample for sample in result.samples if sample.case == index], key=key)
        reports = [report for report in result.cases if report.case == index]
        reported = [planned.placed(finding, case) for report in reports for finding in report.findings]
        verdict.findings.extend(dict.fromkeys(reported))
        verdict.findings.extend(_missing(job, index, reports, planned, returned=set(calls)))
        if not any(finding.severity == "error" for finding in verdict.findings):  # a wrong C needs no author
            origins = [finding for report in reports for finding in judge_origins(job, report, folder=planned.folder)]
            verdict.findings.extend(dict.fromkeys(origins))
        verdict.written_by = next((one.attribution.summary for one in reports if one.attribution is not None), "")
        for report in reports:
            if report.inputs_before != report.inputs_after:
                message = f"call {report.call} changed its inputs (A, B or scale factors, guard rows included)"
                verdict.findings.append(Finding("inputs", message))
        for measurement in result.measurements:
            if measurement.case == index and measurement.outside_stream:
                verdict.findings.append(
                    Finding(
                        "cheat",
                        "outputs were written while the timed stream was held, or after the last work of the call on "
                        "that stream: the kernel runs on another stream, so its time is not measured; launch on "
                        "torch's current stream, or make your stream wait for it and it for yours",
                    )
                )
        verdict.findings.extend(finding for finding in result.findings if finding.severity == "warning")
        kinds = {finding.kind for finding in verdict.findings if finding.severity == "error"}
        if kinds:
            verdict.status = "cheated" if "cheat" in kinds else "crashed" if kinds == {"internal"} else "failed"
        return verdict

    def _for_call(self, case: JobCase, output: GroupOutput, planned: _Calls, *, key: int) -> _Expected:
        if planned.plan:
            if 0 <= output.call < len(planned.plan) and planned.plan[output.call].changed:
                return _Expected.of(rotation.verified_inputs(case, key=key, changed=True))
            return self._expected(case, drawn_by=key)
        where = output.inputs
        if where is None:
            return self._expected(case, drawn_by=None)
        return _Expected.of(rotation.inputs_at(case, index=where[0], visit=where[1], key=key))

    def _samples(self, verdict: CaseVerdict, samples: list[RoundSample], *, key: int) -> None:
        """Judge samples of the rounds of some sets of inputs, drawn here, where no kernel can predict them."""
        sets = sorted({sample.inputs[0] for sample in samples})
        for index in random.SystemRandom().sample(sets, min(_SETS_JUDGED, len(sets))):
            base = rotation.set_inputs(verdict.case, index)
            for sample in samples:
                if sample.inputs[0] == index and (error := _sample_error(base, sample, key=key)):
                    verdict.findings.append(Finding("mismatch", f"call {sample.call}, while it was timed: {error}"))

    def _output(self, verdict: CaseVerdict, output: GroupOutput, expected: _Expected, calls: _Calls) -> None:
        where = f"group {output.group}, call {output.call}"
        if output.returned not in ("c", "other"):
            kind = "cheat" if "not a tensor" in output.returned else "contract"
            verdict.findings.append(Finding(kind, f"{where}: {output.returned}"))
            return
        group = expected.inputs.groups[output.group]
        try:
            buffer = _c_buffer(output, group, calls.folder, source="its output")
        except DoorError as error:
            verdict.findings.append(Finding("internal", f"{where}: the output cannot be read: {error}"))
            return
        before, c, after = group.split_c(buffer)
        judged = judge(
            c,
            expected.references[output.group],
            group=output.group,
            guard_before=before,
            guard_after=after,
            poison=group.guard.poison,
        )
        verdict.groups.append(judged)
        if not judged.ok:
            message = f"{calls.name(output.call)}: {judged}"
            wrong = _wrong(expected.references[output.group], c)
            left = calls.left(output, c, wrong, group)
            if left:
                message += f"\n  {left}"
            if not any(finding.kind == "mismatch" for finding in verdict.findings):
                message += _explained(expected, output.group, c, wrong)
            verdict.findings.append(Finding("mismatch", message))
        if output.late_after is not None:
            by = calls.name(output.late_after)
            message = f"{where}: {by} changed this output, which belongs to the caller once its own call has returned"
            verdict.findings.append(Finding("mismatch", message))
        elif output.late_sha256 is not None and output.late_sha256 != output.data.sha256:
            verdict.findings.append(
                Finding(
                    "cheat",
                    f"{where}: the output changed after custom_kernel had returned and the device was synchronised: "
                    "the kernel deferred work to a thread or a later launch",
                )
            )
