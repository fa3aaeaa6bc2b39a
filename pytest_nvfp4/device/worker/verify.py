"""Call a kernel on every case and return its outputs; the parent judges them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.call_plan import PlannedCall, plan_calls
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec
from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.called_kernel import CalledKernel
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import OutputSender, Returned, SentOutput, write_output
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Sizes

if TYPE_CHECKING:
    from pytest_nvfp4.device.worker.later_calls import FirstCall
    from pytest_nvfp4.device.worker.simulation import Simulation

_OTHER_FAMILY = "gpumode"
"""Input family of calls that are not judged."""


@dataclass(frozen=True, slots=True)
class _MadeCall:
    """A call whose outputs are still in their memory.

    Attributes:
        position: Its position in the plan.
        case: Index of its case.
        slot: Its buffers.
        outputs: Its outputs.
        report: Fields of the report on it.
        first: What later calls on the same inputs are compared with; None if there are none, or it went wrong.
    """

    position: int
    case: int
    slot: CallBuffers
    outputs: list[SentOutput]
    report: dict[str, Any]
    first: FirstCall | None


class CallRunner:
    """Runs the calls of a verify or simulate job. ``folder`` is for outputs, shared with the parent."""

    def __init__(
        self,
        kernel: CalledKernel,
        memory: DeviceMemory,
        events: Events,
        folder: Path,
        *,
        simulation: Simulation | None = None,
    ) -> None:
        self._kernel = kernel
        self._simulation = simulation
        self._memory = memory
        self._events = events
        self._folder = folder
        self._sender = OutputSender(memory, events, folder)
        self._outputs = True
        self._blank = False
        self._job: Job | None = None
        self._spec: KernelSpec | None = None
        self._overwritten: set[tuple[int, int, int]] = set()

    def run(self, job: Job) -> None:
        """Make every planned call; read the outputs again after other calls, and once the device is idle.

        If the job asks for later calls on the same inputs, they follow then, and what is wrong with them is part of the
        report on the first call.
        """
        self._job, self._spec = job, job.kernel
        self._outputs = job.action != "simulate" or job.simulating.outputs
        self._blank = job.action == "simulate" and job.simulating.sampled
        if job.action == "simulate":
            plan = [PlannedCall(case) for case in range(len(job.cases))]
        else:
            plan = plan_calls(job.cases, job.order_seed, side_stream=job.kernel is not None and job.kernel.side_stream)
        slots: dict[int, CallBuffers] = {}
        made: dict[int, _MadeCall] = {}
        prepared: set[tuple[object, ...]] = set()
        for position, call in enumerate(plan):
            case = job.cases[call.case]
            shape = call.other_sizes or case.problem.shape
            first = shape not in prepared
            prepared.add(shape)
            if call.other_sizes is not None:
                self._events.stage(f"call {position}: {case.problem.name} with other numbers of rows")
                self._unjudged(case, call.other_sizes)
                continue
            if job.action == "simulate":
                inputs = rotation.set_inputs(case, 0, blank=self._blank, given=job.given)
            else:
                inputs = rotation.verified_inputs(case, key=job.row_key, changed=call.changed, given=job.given)
            if self._simulation is not None:
                inputs = self._simulation.inputs(inputs)
            owner = position if call.reuse is None else call.reuse
            if call.reuse is None:
                slots[owner] = self._kernel.buffers(inputs, offset=call.offset)
            slot = slots[owner]
            if self._kernel.prepares and first:
                self._events.stage(f"compile {case.problem.name}")
                self._kernel.prepare(inputs.problem.sizes)
            # The kernel's code runs only in the call between here and the look at the outputs.
            slot.fill(self._memory, inputs, blank=self._blank)
            self._events.stage(f"call {position}: {case.problem.name}, {case.family}")
            made[owner] = self._call(position, call, slot)
            if made[owner].first is None:
                self._events.send("case", **made[owner].report)
            self._read_again((one for one in made.values() if one.case in _of_shape(job, shape)), after=position)
        self._events.stage("at rest")
        self._memory.synchronize()
        self._kernel.settle()
        self._memory.synchronize()
        self._read_again(made.values(), after=None)
        for one in made.values():
            if one.first is not None and self._simulation is not None:
                self._events.stage(f"later calls on the same inputs: {job.cases[one.case].problem.name}")
                inputs = rotation.set_inputs(job.cases[one.case], 0, given=job.given)
                one.slot.fill(self._memory, inputs)
                later = self._simulation.later(one.first, one.slot, partial(self._kernel.call, one.slot))
                one.report["findings"] += [finding.to_dict() for finding in later]
                self._events.send("case", **one.report)

    def _unjudged(self, case: JobCase, sizes: Sizes) -> None:
        """Call the kernel with other sizes than those that are judged; its errors are dropped."""
        problem = case.problem.model_copy(update={"sizes": sizes})
        inputs = rotation.set_inputs(JobCase(problem=problem, family=_OTHER_FAMILY), 0)
        slot = self._kernel.buffers(inputs)
        slot.fill(self._memory, inputs)
        self._memory.synchronize()
        context = self._simulation.call(slot, []) if self._simulation else contextlib.nullcontext()
        with contextlib.suppress(Exception), context:
            if self._kernel.prepares:
                self._kernel.prepare(inputs.problem.sizes)
            self._kernel.call(slot)
        self._memory.synchronize()

    def _read_again(self, calls: Iterable[_MadeCall], *, after: int | None) -> None:
        """Report the outputs of earlier calls as they are after a later one, or at the end."""
        for made in calls:
            for index, output in enumerate(made.outputs):
                if made.position == after or (made.case, made.position, index) in self._overwritten:
                    continue
                late = output.digest(self._memory)
                if late == output.sha256 and after is not None:
                    continue
                self._overwritten.add((made.case, made.position, index))
                where = {"call": made.position, "case": made.case, "group": index}
                self._events.send("late", **where, sha256=late, after=after)

    def _call(self, position: int, call: PlannedCall, slot: CallBuffers) -> _MadeCall:
        before = "" if self._blank else slot.expected_digest()
        self._memory.synchronize()
        findings: list[Finding] = []
        context = (
            self._simulation.call(slot, findings, case=call.case) if self._simulation else contextlib.nullcontext()
        )
        returned: list[Returned] | None = None  # stays so if a fault of the simulator ends the call
        first = self._simulation.recorded_first() if self._simulation is not None else contextlib.nullcontext()
        with self._side_stream(), context, first as recorded:
            returned = self._called(slot, on_side_stream=call.side_stream)
        self._memory.synchronize()
        stopped, launches = False, None
        if self._simulation is not None:
            launches = self._simulation.launched
            stopped = self._simulation.stopped
            if (record := self._simulation.record(position, call.case)) is not None:
                self._events.send("simulated", **record)
        sent: list[SentOutput] = []
        if returned is not None and not stopped and self._outputs:
            sent = self._sender.send(returned, slot, call=position, case=call.case, inputs=None)
        attributed = {} if returned is None or stopped else self._attributed(position, call, slot, returned)
        wrong = stopped or returned is None or any(finding.ends_judgement for finding in findings)
        report = {
            **attributed,
            "call": position,
            "case": call.case,
            "inputs_before": before,
            "inputs_after": "" if self._blank else slot.digest(self._memory),
            "launches": launches,
            "findings": [finding.to_dict() for finding in findings],
        }
        return _MadeCall(position, call.case, slot, sent, report, None if wrong else recorded)

    def _attributed(
        self, position: int, call: PlannedCall, slot: CallBuffers, returned: list[Returned]
    ) -> dict[str, Any]:
        """Return the fields of a report on who wrote the outputs; empty if that is unknown.

        If the outputs may depend on what the host has read, the requests of the call are repeated on other inputs.
        """
        attributor = self._simulation.attributor if self._simulation is not None else None
        if attributor is None or self._job is None or call.side_stream:
            return {}  # the same case is called without a stream of the caller's, too
        attribution = attributor.attribution(returned)
        outputs: list[bytes] = []
        if any(group["host"] for group in attribution["groups"]):
            case = self._job.cases[call.case]
            inputs = rotation.replayed_inputs(case, key=self._job.row_key, changed=call.changed, given=self._job.given)
            attribution["not_replayed"], outputs = attributor.replayed(slot, inputs, returned, self._memory)
        attributor.end()
        replayed = [
            write_output(self._folder, f"replay-{call.case}-{position}-{index}.bin", bits)
            for index, bits in enumerate(outputs)
        ]
        return {"attribution": attribution, "replayed": replayed}

    def _called(self, slot: CallBuffers, *, on_side_stream: bool) -> list[Returned]:
        if self._simulation is None:
            if not on_side_stream:
                return self._kernel.call(slot)
            return self._kernel.call_late(slot, between=contextlib.nullcontext())
        if on_side_stream:
            with self._simulation.late_caller(slot, self._memory) as between:
                returned = self._kernel.call_late(slot, between=between)
        else:
            returned = self._kernel.call(slot)
        self._simulation.returned(returned)
        return returned

    def _side_stream(self) -> AbstractContextManager[None]:
        if self._simulation is None or self._spec is None or not self._spec.side_stream:
            return contextlib.nullcontext()
        return self._simulation.side_stream(self._kernel)


def _of_shape(job: Job, shape: tuple[object, ...]) -> set[int]:
    """Return the cases whose tensors have the same shapes."""
    return {index for index, case in enumerate(job.cases) if case.problem.shape == shape}
