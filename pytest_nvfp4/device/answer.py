"""Whether a result answers its job: every index, count and size lies within what was asked.

A result comes from a worker or from another machine, whose word nothing depends on. A result that does not fit its job
is replaced by an error with one finding, so that whoever reads it may index, loop over and allocate by its fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.device import call_plan
from pytest_nvfp4.device.given import outputs_of
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.profiling.record import MOST_FILE_BYTES, ProfileRecord
from pytest_nvfp4.device.result import CaseReport, GroupOutput, Measurement, Result, RoundSample, SimulatedCall
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.toolchain.trace_archive import MOST_BYTES

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.call import Tensor

ANSWER = "answer"
"""Kind of the finding that reports a refused answer."""
CALL_STRIDE = 1_000_000
"""Distance of the call numbers of two blocks of a benchmark (``remote.schedule``); no two outputs share a number."""
_MOST_BLOCKS = 64
_MOST_SETS = 64
"""Sets of inputs of a benchmark; a worker uses a few (``worker.benchmark``)."""
_OTHER_VISITS = 256
"""Visits of a benchmark in addition to its rounds: warm-up, host times, looks at its streams; a lower limit."""
_WHOLE_OUTPUTS = 4
"""Rounds of a benchmark whose whole outputs are returned; a worker returns fewer."""
_GUARD_ROWS = 4096
"""Guard rows of a buffer of C; their exact number follows from the inputs (``numerics.inputs.Guard``)."""


def check_result(job: Job, result: Result, *, source: str = "the worker's result") -> Result:
    """Return a result that fits its job, else an error whose finding says what does not fit.

    Args:
        job: The job that was sent.
        result: Its result; other blocks of a benchmark may be merged into it.
        source: Where the result came from, for the finding.
    """
    try:
        _check(job, result, source)
    except DoorError as error:
        return refused(job, error, result)
    return result


def most_output_bytes(job: Job) -> int:
    """Return the largest number of bytes of the outputs that a job asks for."""
    sizes = [
        sum((tensor.rows + _GUARD_ROWS) * tensor.columns * tensor.item for tensor in outputs_of(job, case))
        for case in range(len(job.cases))
    ]
    match job.action:
        case "verify":
            side = job.kernel is not None and job.kernel.side_stream
            plan = call_plan.plan_calls(job.cases, job.order_seed, side_stream=side)
            return sum(sizes[call.case] for call in plan if call.other_sizes is None)
        case "benchmark":
            return sum(sizes) * _WHOLE_OUTPUTS
        case "trace":
            return MOST_BYTES
        case "profile":
            return sum(sizes) + MOST_FILE_BYTES
    return sum(sizes)


def refused(job: Job, error: DoorError, result: Result | None = None) -> Result:
    """Return the result of a job whose answer was refused, with the output of the process if there is any."""
    finding = Finding(kind=ANSWER, message=f"{error}: the answer is refused")
    kept = {} if result is None else {"stdout": result.stdout, "stderr": result.stderr, "wall_s": result.wall_s}
    return Result(job=job.id, status="error", findings=(finding,)).model_copy(update=kept)


def is_refused(result: Result) -> bool:
    """Return whether a result stands for a refused answer."""
    return any(finding.kind == ANSWER for finding in result.findings)


def _check(job: Job, result: Result, source: str) -> None:
    if result.job != job.id:
        raise DoorError(source, f"is that of job {result.job[:80]!r}, not of {job.id!r}")
    kinds = {
        "outputs": job.action in ("verify", "benchmark", "profile")
        or (job.action == "simulate" and job.simulating.outputs),
        "cases": job.action in ("verify", "simulate", "profile"),
        "measurements": job.action == "benchmark",
        "samples": job.action == "benchmark",
        "simulated": job.action in ("verify", "simulate"),
    }
    for name, asked in kinds.items():
        if getattr(result, name) and not asked:
            raise DoorError(source, f"has {name}, which a {job.action} job does not ask for")
    if result.conversation is not None and not job.simulating.conversation:
        raise DoorError(source, "has a recording of host code, which the job does not ask for")
    if result.trace is not None and job.action != "trace":
        raise DoorError(source, f"has a trace, which a {job.action} job does not ask for")
    if result.profile is not None:
        _check_profile(job, result.profile, source)
    calls = _Calls(job, source)
    for output in result.outputs:
        calls.output(output)
    for report in result.cases:
        calls.report(report)
    for sample in result.samples:
        calls.sample(sample)
    for measurement in result.measurements:
        calls.measurement(measurement)
    for simulated in result.simulated:
        calls.simulated(simulated)
    _unique(((one.case, one.call, one.group) for one in result.outputs), "output", source)
    _unique(((one.case, one.call) for one in result.cases), "report", source)
    _unique(((one.case, one.call) for one in result.samples), "sample", source)
    _unique(((one.case, one.call) for one in result.simulated), "simulated call", source)
    _unique(((one.case,) for one in result.measurements), "measurement", source)


def _check_profile(job: Job, profile: ProfileRecord, source: str) -> None:
    if job.profiling is None:
        raise DoorError(source, f"has a profile, which this {job.action} job does not ask for")
    if job.action == "probe" and (profile.files or profile.cases):
        raise DoorError(source, "has files of a profile, which a probe does not ask for")
    for case in profile.cases:
        if case.case >= len(job.cases) or len(case.region_us) != job.profiling.rounds:
            raise DoorError(source, f"has the profile of case {case.case}, which does not fit the job")
    _unique(((one.case,) for one in profile.cases), "profiled case", source)
    _unique(((one.name,) for one in profile.files), "file of a tool", source)
    if (size := sum(one.data.size for one in profile.files)) > MOST_FILE_BYTES:
        raise DoorError(source, f"has files of {size} bytes, and at most {MOST_FILE_BYTES} are read")


def _unique(keys: Iterable[tuple[object, ...]], what: str, source: str) -> None:
    seen = set()
    for key in keys:
        if key in seen:
            raise DoorError(source, f"has two entries for one {what}: {key}")
        seen.add(key)


class _Calls:
    """The calls that a job asks for."""

    def __init__(self, job: Job, source: str) -> None:
        self._job = job
        self._source = source
        self._signatures: dict[int, tuple[Tensor, ...]] = {}
        self._plan: Sequence[call_plan.PlannedCall] = ()
        if job.action == "verify":
            side = job.kernel is not None and job.kernel.side_stream
            self._plan = call_plan.plan_calls(job.cases, job.order_seed, side_stream=side)
        elif job.action in ("simulate", "profile"):
            self._plan = [call_plan.PlannedCall(case) for case in range(len(job.cases))]

    def fail(self, what: str, problem: str) -> DoorError:
        return DoorError(self._source, f"has {what}, {problem}")

    def check(self, case: int, call: int, what: str) -> None:
        """Refuse a case that the job does not have, and a call that it does not make of this case."""
        if case >= len(self._job.cases):
            raise self.fail(what, f"of case {case}, and the job has {len(self._job.cases)}")
        if self._job.action == "benchmark":
            block, position = divmod(call, CALL_STRIDE)
            if block >= _MOST_BLOCKS or position >= self._job.timing.judged_calls:
                raise self.fail(what, f"and the job asks for {self._job.timing.judged_calls} calls")
        elif call >= len(self._plan) or self._plan[call].case != case or self._plan[call].other_sizes is not None:
            raise self.fail(what, f"which is no call of case {case} that the job asks for")

    def _outputs(self, case: int) -> tuple[Tensor, ...]:
        """Return the outputs of a case, without their contents."""
        if case not in self._signatures:
            self._signatures[case] = outputs_of(self._job, case)
        return self._signatures[case]

    def output(self, output: GroupOutput) -> None:
        what = f"an output of call {output.call}"
        self.check(output.case, output.call, what)
        outputs = self._outputs(output.case)
        if output.group >= len(outputs):
            raise self.fail(what, f"of group {output.group}, and its problem has {len(outputs)}")
        of = outputs[output.group]
        what = f"an output of group {output.group}"
        if output.columns != of.columns or not of.rows <= output.rows <= of.rows + _GUARD_ROWS:
            shown = f"{of.rows} x {of.columns}"
            raise self.fail(what, f"of {output.rows} x {output.columns}, and C is {shown} with guard rows")
        if output.data.size != output.rows * output.columns * of.item:
            size = output.rows * output.columns * of.item
            raise self.fail(what, f"of {output.data.size} bytes, and C has {size}")
        if self._job.action == "benchmark":
            self._inputs(output.inputs, what)
        elif output.inputs is not None:
            raise self.fail(what, f"of inputs {output.inputs}, which only a benchmark has")

    def report(self, report: CaseReport) -> None:
        what = f"the report on call {report.call}"
        self.check(report.case, report.call, what)
        outputs = self._outputs(report.case)
        groups = () if report.attribution is None else report.attribution.groups
        for group in groups:
            if group.group >= len(outputs) or group.elements != _elements(outputs[group.group]):
                raise self.fail(what, f"on {group.elements} elements of group {group.group}, which the problem lacks")
        if len({group.group for group in groups}) != len(groups):
            raise self.fail(what, "which names a group twice")
        if report.replayed and len(report.replayed) != len(outputs):
            raise self.fail(what, f"with {len(report.replayed)} repeated outputs, and its problem has {len(outputs)}")

    def _inputs(self, inputs: tuple[int, int] | None, what: str) -> None:
        timing = self._job.timing
        visits = timing.rounds * 2 + timing.repeats + timing.warmup + _OTHER_VISITS
        if inputs is None or inputs[0] >= _MOST_SETS or inputs[1] >= visits:
            raise self.fail(what, f"of inputs {inputs}, which no round of the job has")

    def sample(self, sample: RoundSample) -> None:
        what = f"a sample of call {sample.call}"
        self.check(sample.case, sample.call, what)
        self._inputs(sample.inputs, what)
        if len(sample.parts) > len(self._outputs(sample.case)):
            raise self.fail(what, f"of {len(sample.parts)} groups, and its problem has fewer")

    def measurement(self, measurement: Measurement) -> None:
        what = "a measurement"
        self.check(measurement.case, 0, what)
        rounds = self._job.timing.rounds
        if len(measurement.device_us) > rounds:
            raise self.fail(what, f"of {len(measurement.device_us)} rounds, and the job asks for {rounds}")
        if len(measurement.host_us) > rounds + _MOST_BLOCKS * _OTHER_VISITS:
            raise self.fail(what, f"with {len(measurement.host_us)} host times, and the job asks for {rounds} rounds")
        counted = self._job.timing.counted
        if (measurement.launches is not None) != (counted > 0):
            raise self.fail(what, f"that does not fit the {counted} inputs on which the job has launches counted")
        if measurement.launches is not None and measurement.launches.unavailable is None:
            for call in measurement.launches.calls:
                self._inputs(call.inputs, "a counted call")
            ways = Counter(call.way for call in measurement.launches.calls)
            if any(ways[way] != counted for way in ("timed", "plain")):
                raise self.fail(what, f"with the launches of {dict(ways)} calls, and the job asks for {counted} each")

    def simulated(self, call: SimulatedCall) -> None:
        what = f"a simulated call {call.call}"
        self.check(call.case, call.call, what)
        outputs = self._outputs(call.case)
        for writes in call.outputs:
            if writes.group >= len(outputs):
                raise self.fail(what, f"that writes group {writes.group}, and its problem has {len(outputs)}")
            size = _elements(outputs[writes.group])
            if writes.elements != size:
                raise self.fail(what, f"with {writes.elements} elements of group {writes.group}, which has {size}")


def _elements(output: Tensor) -> int:
    return output.size // output.item
