"""Judge what a kernel left in memory: here, in the process that made the inputs, not in the one that ran the kernel."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import Job, JobCase
from pytest_nvfp4.device.result import GroupOutput, Result, RoundSample, Status
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import HalfBits
from pytest_nvfp4.numerics.diagnose import explain
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.judge import GroupVerdict, Reference, judge
from pytest_nvfp4.numerics.oracle import exact_product

_SETS_JUDGED = 2
"""Sets of inputs whose rounds are judged: making a set again takes as long as judging hundreds of its rounds."""


@dataclass(slots=True)
class CaseVerdict:
    """The judgement of one case: what was wrong with it, over all of its calls.

    Attributes:
        case: The case.
        status: Its status.
        findings: What was found, each in words.
        groups: The numeric verdict of each group of each call.
    """

    case: JobCase
    status: Status
    findings: list[Finding] = field(default_factory=list)
    groups: list[GroupVerdict] = field(default_factory=list)


def _error(kind: str, message: str) -> Finding:
    return Finding(kind=kind, message=message)


@dataclass(slots=True)
class _Expected:
    """The inputs of a call and what is due for each group."""

    inputs: ProblemInput
    references: list[Reference]

    @classmethod
    def of(cls, inputs: ProblemInput) -> _Expected:
        return cls(inputs, [Reference.of(group.exact()) for group in inputs.groups])


def _explained(expected: _Expected, index: int, c: HalfBits) -> str:
    """Lines that say what a wrong output equals, for the first one of a case: a hypothesis costs a matrix product."""
    reference = expected.references[index]
    with np.errstate(invalid="ignore"):
        wrong = (c != reference.want) & ~(reference.nan & fp16.is_nan(c)) & ~((c | reference.want) == fp16.SIGN)
    found = explain(expected.inputs, index, c, wrong)
    return "".join(f"\n  it {explanation}" for explanation in found[:3])


def _wrong_part(base: ProblemInput, sample: RoundSample, *, key: int) -> str:
    """What is wrong with a round's part of the rows that changed; empty where nothing is."""
    index, visit = sample.inputs
    due = {one.group: one for one in rotation.changes(base, index=index, visit=visit, key=key) if one.row >= 0}
    if sorted((part.group, part.row) for part in sample.parts) != sorted((one.group, one.row) for one in due.values()):
        return "the rows that came back are not those that changed"
    for part in sample.parts:
        inputs = base.groups[part.group]
        try:
            bits = np.frombuffer(bytes.fromhex(part.bits), dtype=np.uint16)[None, :]
        except ValueError:
            return f"group {part.group}: the part that came back cannot be read"
        columns = slice(part.column, part.column + bits.shape[1])
        if bits.size == 0 or part.column < 0 or columns.stop > inputs.group.n:
            return f"group {part.group}: no tensor of the right form came back"
        exact = exact_product(
            a=np.frombuffer(due[part.group].data, dtype=np.uint8)[None, :],
            b=inputs.b[columns],
            sfa=inputs.sfa[part.row : part.row + 1],
            sfb=inputs.sfb[columns],
        )
        judged = judge(bits, exact, group=part.group, poison=inputs.guard.poison)
        if not judged.ok:
            return (
                f"group {part.group}, row {part.row}, columns {columns.start}-{columns.stop - 1}: {judged.mismatches} "
                f"of {bits.size} outputs wrong ({judged.unwritten} not written), after this row of A was changed"
            )
    return ""


class Judge:
    """Judges results; what is expected is computed once a case and kept."""

    def __init__(self) -> None:
        self._cases: dict[tuple[str, str], _Expected] = {}

    def _expected(self, case: JobCase) -> _Expected:
        key = (case.problem.model_dump_json(), case.family)
        if key not in self._cases:
            self._cases[key] = _Expected.of(family(case.family).generate(case.problem.problem()))
        return self._cases[key]

    def judge(self, job: Job, result: Result, *, folder: Path) -> list[CaseVerdict]:
        """The verdict of every case of a job, in the job's order.

        A job that did not come to its end gives its status and findings to every case.
        """
        return [
            self._case(
                case,
                [output for output in result.outputs if output.case == index],
                index,
                result,
                folder=folder,
                key=job.row_key,
            )
            for index, case in enumerate(job.cases)
        ]

    def _case(
        self, case: JobCase, outputs: list[GroupOutput], index: int, result: Result, *, folder: Path, key: int
    ) -> CaseVerdict:
        if result.status != "passed":
            return CaseVerdict(case, result.status, list(result.findings))
        verdict = CaseVerdict(case, "passed")
        calls: dict[int, list[GroupOutput]] = {}
        for output in sorted(outputs, key=lambda output: (output.call, output.group)):
            calls.setdefault(output.call, []).append(output)
        for call, made in calls.items():
            expected = self._for_call(case, made, key=key)
            if [output.group for output in made] != list(range(len(expected.inputs.groups))):
                verdict.findings.append(_error("internal", f"call {call} did not return an output for every group"))
                continue
            for output in made:
                self._output(verdict, output, expected, folder)
        self._samples(verdict, [sample for sample in result.samples if sample.case == index], key=key)
        found = [finding for report in result.cases if report.case == index for finding in report.findings]
        verdict.findings.extend(dict.fromkeys(found))
        if not calls and not found:
            verdict.findings.append(_error("internal", "the device returned no output for this case"))
        for report in result.cases:
            if report.case == index and report.inputs_before != report.inputs_after:
                verdict.findings.append(
                    _error("inputs", f"call {report.call} changed its inputs (A, B or scale factors, guards included)")
                )
        for measurement in result.measurements:
            if measurement.case == index and measurement.outside_stream:
                verdict.findings.append(
                    _error(
                        "cheat",
                        "outputs were written while the timed stream was held, or after the last of what the call left "
                        "on it: the work runs on another stream, so its time is not measured; launch on torch's "
                        "current stream, or make your stream wait for it and it for yours",
                    )
                )
        kinds = {finding.kind for finding in verdict.findings if finding.severity == "error"}
        if kinds:
            verdict.status = "cheated" if "cheat" in kinds else "crashed" if kinds == {"internal"} else "failed"
        return verdict

    def _for_call(self, case: JobCase, outputs: list[GroupOutput], *, key: int) -> _Expected:
        where = outputs[0].inputs
        if where is None:
            return self._expected(case)
        return _Expected.of(rotation.inputs_at(case, index=where[0], visit=where[1], key=key))

    def _samples(self, verdict: CaseVerdict, samples: list[RoundSample], *, key: int) -> None:
        """Judge parts of the rounds of some sets of inputs, drawn here, where no kernel can know it before."""
        sets = sorted({sample.inputs[0] for sample in samples})
        for index in random.SystemRandom().sample(sets, min(_SETS_JUDGED, len(sets))):
            base = rotation.set_inputs(verdict.case, index)
            for sample in samples:
                if sample.inputs[0] == index and (wrong := _wrong_part(base, sample, key=key)):
                    verdict.findings.append(_error("mismatch", f"call {sample.call}, while it was timed: {wrong}"))

    def _output(self, verdict: CaseVerdict, output: GroupOutput, expected: _Expected, folder: Path) -> None:
        where = f"group {output.group}, call {output.call}"
        if output.returned not in ("c", "other"):
            kind = "cheat" if "not a tensor" in output.returned else "contract"
            verdict.findings.append(_error(kind, f"{where}: {output.returned}"))
            return
        group = expected.inputs.groups[output.group]
        try:
            bits = np.frombuffer(output.data.read(folder), dtype=np.uint16)
            buffer = bits.reshape(output.rows, output.columns)
            if buffer.shape != group.c_buffer().shape:
                raise ValueError(f"an output of {buffer.shape}, not {group.c_buffer().shape}")
        except (ValueError, OSError) as error:
            verdict.findings.append(_error("internal", f"{where}: the output cannot be read: {error}"))
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
            said = f"call {output.call}: {judged}"
            if not any(finding.kind == "mismatch" for finding in verdict.findings):
                said += _explained(expected, output.group, c)
            verdict.findings.append(_error("mismatch", said))
        if output.late_sha256 is not None and output.late_sha256 != output.data.sha256:
            verdict.findings.append(
                _error(
                    "cheat",
                    f"{where}: the output changed after the device had been synchronised: work was still to come when "
                    "custom_kernel returned and everything it had launched had ended (a thread, or a later launch)",
                )
            )
