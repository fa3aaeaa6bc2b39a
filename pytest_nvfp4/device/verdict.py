"""Judge the outputs of a kernel, in the process that generated the inputs rather than the one that ran the kernel."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_nvfp4.contracts.base import RowChange
from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.contracts.registry import contract_of, is_own
from pytest_nvfp4.device import call_plan, rotation
from pytest_nvfp4.device.attribution_verdict import judge_origins
from pytest_nvfp4.device.call_plan import PlannedCall
from pytest_nvfp4.device.job import GivenInputs, Job, JobCase
from pytest_nvfp4.device.result import CaseReport, GroupOutput, Result, RoundSample, Status
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.numerics.arrays import HalfBits, Mask
from pytest_nvfp4.numerics.diagnose import zeros
from pytest_nvfp4.numerics.judge import GroupVerdict, Reference, judge

_SETS_JUDGED = 2
"""Sets of inputs whose rounds are judged; generating a set again takes as long as judging hundreds of its rounds."""
_SETS_KEPT = 4
"""Sets of inputs whose references are kept: a third of a gigabyte each for the largest official benchmark."""
_FEW_ROWS = 8
"""Rows of the outputs of which one may have changed, beyond which the whole reference is made again."""
_FEWEST = 16
"""Wrong outputs that must equal an earlier call's before they count as left over from it."""
_MOST_EXPLAINED = 3
"""Most cases of a job whose wrong outputs are compared with those of known faults, which takes seconds for each."""


@dataclass(slots=True)
class CaseVerdict:
    """The verdict of one case over all of its calls.

    Attributes:
        groups: The numerical verdict of each group of each call.
        written_by: Who wrote its outputs, in a few words; empty if that is unknown.
        complete: Whether every call that was asked for returned its outputs, and they and their origin were judged.
    """

    case: JobCase
    status: Status
    findings: list[Finding] = field(default_factory=list)
    groups: list[GroupVerdict] = field(default_factory=list)
    written_by: str = ""
    complete: bool = False


@dataclass(slots=True)
class _Expected:
    """The inputs of a call, its outputs, and the reference of each."""

    inputs: Any
    outputs: tuple[Tensor, ...]
    references: list[Reference]

    @classmethod
    def of(cls, inputs: Any) -> _Expected:
        contract = contract_of(inputs.problem)
        return cls(inputs, contract.call(inputs).outputs, contract.references(inputs))

    def at(self, case: JobCase, *, index: int, visit: int, key: int) -> _Expected:
        """Return what is expected at a visit of the set whose first inputs these are.

        A visit changes a row of each output, so that most of a reference is that of the set.
        """
        changes = {
            (change.group, change.row): change
            for each in range(visit + 1)
            for change in rotation.changes(self.inputs, index=index, visit=each, key=key)
        }
        inputs = rotation.inputs_at(case, index=index, visit=visit, key=key, base=self.inputs)
        return self._changed(inputs, changes)

    def verified(self, case: JobCase, *, key: int) -> _Expected:
        """Return what is expected of a changed call of the verify job whose other calls' inputs these are."""
        changes = {(change.group, change.row): change for change in rotation.verified_changes(case, key=key)}
        inputs = contract_of(self.inputs.problem).changed(self.inputs, list(changes.values()))
        return self._changed(inputs, changes)

    def _changed(self, inputs: Any, changes: Mapping[tuple[int, int], RowChange]) -> _Expected:
        """Return what is expected of inputs, which differ from these in rows, by output and row."""
        if len(changes) > sum(output.rows for output in self.outputs) // _FEW_ROWS:
            return _Expected.of(inputs)
        contract = contract_of(inputs.problem)
        rows: list[dict[int, Reference]] = [{} for _ in self.outputs]
        for (output, row), change in changes.items():
            whole = slice(0, self.outputs[output].columns)
            rows[output][row] = contract.changed_part(self.inputs, change, whole)
        references = [old.with_rows(new) for old, new in zip(self.references, rows, strict=True)]
        return _Expected(inputs, contract.call(inputs).outputs, references)


def _wrong(reference: Reference, c: HalfBits) -> Mask:
    """Return the outputs that are certainly wrong; NaN and the sign of zero as in ``judge``."""
    with np.errstate(invalid="ignore"):
        element = reference.element
        other = (c != reference.want) & ~(reference.nan & element.is_nan(c))
        other &= ~((c | reference.want) == element.sign)
        near = ~reference.order_free & (np.abs(element.to_float64(c) - reference.values) <= reference.bound)
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
            if self.cases[report.case].problem.shape == case.problem.shape and finding in report.findings
        ]
        manner = self.manner(min(calls))
        if not manner or manner.startswith(call_plan.FIRST):
            return finding
        return replace(finding, message=f"{finding.message}\n  in {self.name(min(calls))}")

    def left(self, output: GroupOutput, c: HalfBits, wrong: Mask, of: Tensor) -> str:
        """Return what wrong outputs hold that this call did not compute; empty if it computed them."""
        values, poison = c[wrong], int.from_bytes(of.poison, "little")
        if not values.size:
            return ""
        nothing = "; this call launched nothing" if self.launched.get(output.call) == 0 else ""
        if (values == poison).all():
            every = "it" if wrong.all() else "every wrong output"
            return f"{every} still holds the poison that was there before the call{nothing}"
        if text := zeros(c, wrong) if of.dtype == "float16" else "":
            return f"every wrong output {text}{nothing}"
        for earlier in self.outputs:
            # Few or constant values prove nothing: the results of two calls may agree in them.
            if earlier.call >= output.call or values.size < _FEWEST or (values == values[0]).all():
                continue
            held = self._bits(earlier, of)
            if held is not None and held.shape == c.shape and bool((held[wrong] == values).all()):
                who = "the C" if earlier.group == output.group else f"the C of group {earlier.group}"
                return f"every wrong output holds {who} of call {earlier.call}, an earlier call{nothing}"
        return nothing.removeprefix("; ")

    def _bits(self, output: GroupOutput, of: Tensor) -> HalfBits | None:
        try:
            return _split(_buffer(output, of, self.folder, source="an earlier output"), of)[1]
        except DoorError:
            return None


def _asked(job: Job, index: int, planned: _Calls, *, returned: set[int]) -> set[int]:
    """Return the calls of a case that have to return outputs."""
    if job.action == "benchmark":
        return set() if returned else {0}
    if planned.plan:
        return {at for at, call in enumerate(planned.plan) if call.case == index and call.other_sizes is None}
    return {index}


def _missing(job: Job, asked: set[int], reports: Sequence[CaseReport], *, returned: set[int]) -> list[Finding]:
    """Return a finding for the calls of a case that were not made, or whose outputs are missing without an error."""
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


def _buffer(output: GroupOutput, of: Tensor, folder: Path, *, source: str) -> HalfBits:
    """Return the buffer of an output with its guard rows; its size follows from the problem. Raises DoorError."""
    rows, columns = of.all_rows, of.columns
    data = output.data.read(folder, source=source, most=rows * columns * of.item)
    if (output.rows, output.columns) != (rows, columns):
        raise DoorError(source, f"has the shape {output.rows} x {output.columns}, not {rows} x {columns}")
    return np.frombuffer(data, dtype=f"u{of.item}").reshape(rows, columns)


def _split(buffer: HalfBits, of: Tensor) -> tuple[HalfBits, HalfBits, HalfBits]:
    """Split the buffer of an output into guard rows, elements and guard rows, as views."""
    top, end = of.rows_before, of.rows_before + of.rows
    return buffer[:top], buffer[top:end], buffer[end:]


def _explained(expected: _Expected, index: int, c: HalfBits, wrong: Mask) -> str:
    """Return lines that explain the first wrong output of a case; each hypothesis costs a matrix product."""
    found = contract_of(expected.inputs.problem).explain(expected.inputs, index, c, wrong)
    return "".join(f"\n  it {explanation}" for explanation in found[:3])


def _sample_error(base: Any, sample: RoundSample, *, key: int) -> str:
    """Return what is wrong with the sampled rows of a round, empty if they are right."""
    index, visit = sample.inputs
    contract = contract_of(base.problem)
    outputs = contract.call(base).outputs
    made = rotation.changes(base, index=index, visit=visit, key=key)
    changes = {change.group: change for change in made if change.group >= 0}
    sampled = sorted((part.group, part.row) for part in sample.parts)
    if sampled != sorted((change.group, change.row) for change in changes.values()):
        return "the sampled rows are not those that changed"
    for part in sample.parts:
        of = outputs[part.group]
        try:
            bits = np.frombuffer(bytes.fromhex(part.bits), dtype=f"u{of.item}")[None, :]
        except ValueError:
            return f"group {part.group}: the sample cannot be read"
        columns = slice(part.column, part.column + bits.shape[1])
        if bits.size == 0 or part.column < 0 or columns.stop > of.columns:
            return f"group {part.group}: the sample does not have the shape of the output"
        reference = contract.changed_part(base, changes[part.group], columns)
        judged = judge(bits, reference, group=part.group, poison=int.from_bytes(of.poison, "little"))
        if not judged.ok:
            return (
                f"group {part.group}, row {part.row}, columns {columns.start}-{columns.stop - 1}: {judged.mismatches} "
                f"of {bits.size} outputs are wrong ({judged.unwritten} not written) after a change of this row of A"
            )
    return ""


class Judge:
    """Judges results. The expected outputs of each case of a job are computed once and cached until the next job.

    Those of a benchmark's sets of inputs are the same for all jobs with its cases, and are kept longer.
    """

    def __init__(self) -> None:
        self._cases: dict[JobCase, _Expected] = {}
        self._sets: OrderedDict[tuple[JobCase, int], _Expected] = OrderedDict()
        self._given: tuple[GivenInputs, ...] = ()
        self._drawn_by: int | None = None
        """Key of the job whose inputs the cached ones are; None for the inputs of the cases themselves."""
        self._to_explain = 0
        """Cases of the job whose wrong outputs may still be compared with those of known faults."""

    def _expected(self, case: JobCase, *, drawn_by: int | None) -> _Expected:
        if drawn_by != self._drawn_by:
            self._cases.clear()
            self._drawn_by = drawn_by
        if case not in self._cases:
            given = self._given
            inputs = (
                rotation.set_inputs(case, 0, given=given)
                if drawn_by is None
                else rotation.verified_inputs(case, key=drawn_by, given=given)
            )
            self._cases[case] = _Expected.of(inputs)
        return self._cases[case]

    def judge(self, job: Job, result: Result, *, folder: Path) -> list[CaseVerdict]:
        """Return the verdict of every case of a job, in order.

        Every case of a job that did not end properly has the status and findings of the job. Outputs of launches that
        are only recorded are not judged.
        """
        calls = _Calls.of(job, result, folder)
        self._to_explain = _MOST_EXPLAINED
        if self._given != job.given:
            self._cases.clear()
            self._given = job.given
        return [self._case(index, job, result, calls) for index in range(len(job.cases))]

    def _case(self, index: int, job: Job, result: Result, planned: _Calls) -> CaseVerdict:
        case, key = job.cases[index], job.row_key
        if result.status != "passed":
            return CaseVerdict(case, result.status, list(result.findings))
        verdict = CaseVerdict(case, "passed")
        calls: dict[int, list[GroupOutput]] = {}
        executed = index not in job.simulating.launch_only
        for output in sorted(result.outputs, key=lambda output: (output.call, output.group)):
            if output.case == index and executed:
                calls.setdefault(output.call, []).append(output)
        for call, made in calls.items():
            expected = self._for_call(case, made[0], planned, key=key)
            if [output.group for output in made] != list(range(len(expected.outputs))):
                verdict.findings.append(Finding("internal", f"the worker did not return all outputs of call {call}"))
                continue
            for output in made:
                self._output(verdict, output, expected, planned)
        self._samples(verdict, [sample for sample in result.samples if sample.case == index], key=key)
        reports = [report for report in result.cases if report.case == index]
        reported = [planned.placed(finding, case) for report in reports for finding in report.findings]
        verdict.findings.extend(dict.fromkeys(reported))
        asked = _asked(job, index, planned, returned=set(calls)) if executed else set()
        verdict.findings.extend(_missing(job, asked, reports, returned=set(calls)))
        if not any(finding.ends_judgement for finding in verdict.findings):  # a wrong C needs no author
            verdict.complete = asked <= calls.keys()
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
                if is_own(case.problem.contract):
                    return _Expected.of(rotation.verified_inputs(case, key=key, changed=True, given=self._given))
                return self._expected(case, drawn_by=key).verified(case, key=key)
            return self._expected(case, drawn_by=key)
        where = output.inputs
        if where is None:
            return self._expected(case, drawn_by=None)
        index, visit = where
        if is_own(case.problem.contract):  # whose process computes the reference of each content once
            return _Expected.of(rotation.inputs_at(case, index=index, visit=visit, key=key, given=self._given))
        return self._set(case, index).at(case, index=index, visit=visit, key=key)

    def _set(self, case: JobCase, index: int) -> _Expected:
        if (case, index) not in self._sets:
            self._sets[case, index] = _Expected.of(rotation.set_inputs(case, index))
            if len(self._sets) > _SETS_KEPT:
                self._sets.popitem(last=False)
        self._sets.move_to_end((case, index))
        return self._sets[case, index]

    def _samples(self, verdict: CaseVerdict, samples: list[RoundSample], *, key: int) -> None:
        """Judge samples of the rounds of some sets of inputs, drawn here, where no kernel can predict them."""
        sets = sorted({sample.inputs[0] for sample in samples})
        for index in random.SystemRandom().sample(sets, min(_SETS_JUDGED, len(sets))):
            known = self._sets.get((verdict.case, index))
            base = rotation.set_inputs(verdict.case, index, given=self._given) if known is None else known.inputs
            for sample in samples:
                if sample.inputs[0] == index and (error := _sample_error(base, sample, key=key)):
                    verdict.findings.append(Finding("mismatch", f"call {sample.call}, while it was timed: {error}"))

    def _output(self, verdict: CaseVerdict, output: GroupOutput, expected: _Expected, calls: _Calls) -> None:
        where = f"group {output.group}, call {output.call}"
        if output.returned not in ("c", "other"):
            kind = "cheat" if "not a tensor" in output.returned else "contract"
            verdict.findings.append(Finding(kind, f"{where}: {output.returned}"))
            return
        of = expected.outputs[output.group]
        try:
            buffer = _buffer(output, of, calls.folder, source="its output")
        except DoorError as error:
            verdict.findings.append(Finding("internal", f"{where}: the output cannot be read: {error}"))
            return
        before, c, after = _split(buffer, of)
        judged = judge(
            c,
            expected.references[output.group],
            group=output.group,
            guard_before=before,
            guard_after=after,
            poison=int.from_bytes(of.poison, "little"),
        )
        verdict.groups.append(judged)
        if not judged.ok:
            message = f"{calls.name(output.call)}: {judged}"
            wrong = _wrong(expected.references[output.group], c)
            left = calls.left(output, c, wrong, of)
            if left:
                message += f"\n  {left}"
            if self._to_explain and not any(finding.kind == "mismatch" for finding in verdict.findings):
                explained = _explained(expected, output.group, c, wrong)
                self._to_explain = 0 if explained else self._to_explain - 1
                message += explained
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
