"""Call a kernel on every case and return what it left in memory; no judgement is made here."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import Job, JobCase
from pytest_nvfp4.device.plan import PlannedCall, plan_calls
from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import describe, with_values
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.numerics.inputs import ProblemInput

if TYPE_CHECKING:
    from pytest_nvfp4.device.worker.simulation import Simulation

_REST_S = 0.05
_NOTHING = object()


def inputs_of(case: JobCase) -> ProblemInput:
    """The inputs of a case; the parent makes the same from the same case."""
    return family(case.family).generate(case.problem.problem())


class CallRunner:
    """Runs the calls of a verify job.

    Args:
        torch: The torch module (or its stand-in).
        memory: The device's memory.
        events: Where results go.
        folder: Where outputs are written, shared with the parent.
        simulation: The simulator, where it is the device.
    """

    def __init__(
        self, torch: Any, memory: DeviceMemory, events: Events, folder: Path, *, simulation: Simulation | None = None
    ) -> None:
        self._torch = torch
        self._simulation = simulation
        self._memory = memory
        self._events = events
        self._folder = folder
        self._outputs = True

    def run(self, job: Job, custom_kernel: Callable[[Any], Any], prepare: Callable[[Any], Any] | None) -> None:
        """Make every call of the plan, then look again at everything once the device is at rest."""
        self._outputs = job.action != "simulate" or job.simulating.outputs
        if job.action == "simulate":
            plan = [PlannedCall(case, None) for case in range(len(job.cases))]
        else:
            plan = plan_calls(job.cases, job.order_seed)
        buffers: dict[int, CallBuffers] = {}
        early: list[tuple[int, PlannedCall, list[tuple[str, str, bool]]]] = []
        prepared: set[tuple[tuple[int, int, int, int], ...]] = set()
        for position, call in enumerate(plan):
            case = job.cases[call.case]
            if call.visit is None:
                inputs = inputs_of(case)
            else:
                inputs = rotation.inputs_at(case, index=0, visit=call.visit, key=job.row_key)
            if call.reuse is not None:
                buffers[position] = buffers[call.reuse]
            else:
                buffers[position] = CallBuffers(self._torch, inputs)
            slot = buffers[position]
            slot.fill(self._memory, inputs)
            if prepare is not None and case.problem.sizes not in prepared:
                self._events.stage(f"compile {case.problem.name}")
                prepare(inputs.problem.sizes)
                prepared.add(case.problem.sizes)
            self._events.stage(f"call {position}: {case.problem.name}, {case.family}")
            early.append((position, call, self._call(position, call, slot, inputs, custom_kernel)))
        self._events.stage("at rest")
        self._memory.synchronize()
        if self._simulation is None:
            time.sleep(_REST_S)
        self._memory.synchronize()
        last = {id(buffers[position]): position for position in range(len(plan))}
        for position, call, files in early:
            if last[id(buffers[position])] != position:
                continue  # its memory was filled anew for a later call
            for index, (_, digest, own) in enumerate(files):
                group = buffers[position].groups[index]
                late = hashlib.sha256(group.read_c(self._memory)).hexdigest() if own else digest
                self._events.send("late", call=position, case=call.case, group=index, sha256=late)

    def _call(
        self,
        position: int,
        call: PlannedCall,
        slot: CallBuffers,
        inputs: ProblemInput,
        custom_kernel: Callable[[Any], Any],
    ) -> list[tuple[str, str, bool]]:
        data, given = slot.data(inputs.problem.sizes)
        before = slot.expected_digest()
        self._memory.synchronize()
        found: list[Finding] = []
        watch = self._simulation.call(slot, inputs, found) if self._simulation else contextlib.nullcontext()
        returned = _NOTHING
        with watch:
            returned = custom_kernel(data)
            if self._simulation is not None:
                self._simulation.returned(returned)
        self._memory.synchronize()
        if self._simulation is not None and (told := self._simulation.told(position, call.case)) is not None:
            self._events.send("simulated", **told)
        stopped = self._simulation is not None and self._simulation.stopped
        if returned is _NOTHING or stopped or not self._outputs:
            self._report(position, call, before, slot, found)
            return []
        files: list[tuple[str, str, bool]] = []
        for index, (word, tensor) in enumerate(describe(self._torch, returned, given)):
            group = slot.groups[index]
            own = tensor is None
            bits = with_values(self._memory, group, tensor)
            digest = hashlib.sha256(bits).hexdigest()
            name = f"{position}-{index}.bin"
            (self._folder / name).write_bytes(bits)
            files.append((name, digest, own))
            self._events.send(
                "output",
                call=position,
                case=call.case,
                group=index,
                rows=group.rows,
                columns=group.columns,
                data={"sha256": digest, "size": len(bits), "file": name},
                returned=word,
                inputs=None if call.visit is None else [0, call.visit],
            )
        self._report(position, call, before, slot, found)
        return files

    def _report(self, position: int, call: PlannedCall, before: str, slot: CallBuffers, found: list[Finding]) -> None:
        self._events.send(
            "case",
            call=position,
            case=call.case,
            inputs_before=before,
            inputs_after=slot.digest(self._memory),
            findings=[finding.to_dict() for finding in found],
        )
