"""Call a kernel on every case and return its outputs; the parent judges them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import Job, JobCase
from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import OutputSender, SentOutput
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.numerics.inputs import ProblemInput

if TYPE_CHECKING:
    from pytest_nvfp4.device.worker.simulation import Simulation

_REST_S = 0.05
"""Seconds for a thread of the kernel to write an output after its return, so that the write shows."""
_NOT_RETURNED = object()


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of the kernel.

    Attributes:
        case: Index of the case.
        reuse: Index of an earlier call whose memory is filled again for this one; None for new memory.
        visit: None for the case's own inputs; else one row of A of each group changes (see ``rotation.inputs_at``).
    """

    case: int
    reuse: int | None
    visit: int | None = None


def plan_calls(cases: tuple[JobCase, ...], seed: int) -> list[PlannedCall]:
    """Plan calls of every case once or twice, shuffled, and one more call with a changed row for each list of sizes.

    A kernel that caches answers by shape, by pointer or by the number of calls thus receives the same shapes with other
    inputs, in the same memory and in other memory, in an order and number that it cannot predict. Half of the calls
    reuse the memory of an earlier call of equal sizes. The calls with a changed row come last, after the inputs from
    which they differ.
    """
    draw = random.Random(seed)
    order = list(range(len(cases))) + [index for index in range(len(cases)) if draw.random() < 0.5]
    draw.shuffle(order)
    by_sizes: dict[tuple[tuple[int, int, int, int], ...], list[int]] = {}
    for index, case in enumerate(cases):
        by_sizes.setdefault(case.problem.sizes, []).append(index)
    varied = [draw.choice(indices) for indices in by_sizes.values()]
    plan: list[PlannedCall] = []
    owners: dict[tuple[tuple[int, int, int, int], ...], list[int]] = {}
    for position, case_index in enumerate([*order, *varied]):
        same = owners.setdefault(cases[case_index].problem.sizes, [])
        reuse = draw.choice(same) if same and draw.random() < 0.5 else None
        if reuse is None:
            same.append(position)
        plan.append(PlannedCall(case_index, reuse, None if position < len(order) else 0))
    return plan


class CallRunner:
    """Runs the calls of a verify or simulate job. ``folder`` is for outputs, shared with the parent."""

    def __init__(
        self, torch: Any, memory: DeviceMemory, events: Events, folder: Path, *, simulation: Simulation | None = None
    ) -> None:
        self._torch = torch
        self._simulation = simulation
        self._memory = memory
        self._events = events
        self._sender = OutputSender(torch, memory, events, folder)
        self._outputs = True

    def run(self, job: Job, custom_kernel: Callable[[Any], Any], prepare: Callable[[Any], Any] | None) -> None:
        """Make every planned call, then read all outputs again once the device is idle."""
        self._outputs = job.action != "simulate" or job.simulating.outputs
        if job.action == "simulate":
            plan = [PlannedCall(case, None) for case in range(len(job.cases))]
        else:
            plan = plan_calls(job.cases, job.order_seed)
        buffers: list[CallBuffers] = []
        sent: list[list[SentOutput]] = []
        prepared: set[tuple[tuple[int, int, int, int], ...]] = set()
        for position, call in enumerate(plan):
            case = job.cases[call.case]
            if call.visit is None:
                inputs = rotation.set_inputs(case, 0)
            else:
                inputs = rotation.inputs_at(case, index=0, visit=call.visit, key=job.row_key)
            slot = CallBuffers(self._torch, inputs) if call.reuse is None else buffers[call.reuse]
            buffers.append(slot)
            slot.fill(self._memory, inputs)
            if prepare is not None and case.problem.sizes not in prepared:
                self._events.stage(f"compile {case.problem.name}")
                prepare(inputs.problem.sizes)
                prepared.add(case.problem.sizes)
            self._events.stage(f"call {position}: {case.problem.name}, {case.family}")
            sent.append(self._call(position, call, slot, inputs, custom_kernel))
        self._events.stage("at rest")
        self._memory.synchronize()
        if self._simulation is None:
            time.sleep(_REST_S)
        self._memory.synchronize()
        last = {id(slot): position for position, slot in enumerate(buffers)}
        for position, (call, slot, outputs) in enumerate(zip(plan, buffers, sent, strict=True)):
            if last[id(slot)] != position:
                continue  # a later call has reused the memory
            for index, output in enumerate(outputs):
                late = output.sha256
                if output.in_buffer:
                    late = hashlib.sha256(slot.groups[index].read_c(self._memory)).hexdigest()
                self._events.send("late", call=position, case=call.case, group=index, sha256=late)

    def _call(
        self,
        position: int,
        call: PlannedCall,
        slot: CallBuffers,
        inputs: ProblemInput,
        custom_kernel: Callable[[Any], Any],
    ) -> list[SentOutput]:
        data, given = slot.data(inputs.problem.sizes)
        before = slot.expected_digest()
        self._memory.synchronize()
        findings: list[Finding] = []
        context = self._simulation.call(slot, inputs, findings) if self._simulation else contextlib.nullcontext()
        returned = _NOT_RETURNED  # stays so if a fault of the simulator ends the call
        with context:
            returned = custom_kernel(data)
            if self._simulation is not None:
                self._simulation.returned(returned)
        self._memory.synchronize()
        stopped, launches = False, None
        if self._simulation is not None:
            launches = self._simulation.launched
            stopped = self._simulation.stopped
            if (record := self._simulation.record(position, call.case)) is not None:
                self._events.send("simulated", **record)
        sent: list[SentOutput] = []
        if returned is not _NOT_RETURNED and not stopped and self._outputs:
            at = None if call.visit is None else (0, call.visit)
            sent = self._sender.send(returned, given, slot, call=position, case=call.case, inputs=at)
        self._events.send(
            "case",
            call=position,
            case=call.case,
            inputs_before=before,
            inputs_after=slot.digest(self._memory),
            launches=launches,
            findings=[finding.to_dict() for finding in findings],
        )
        return sent
