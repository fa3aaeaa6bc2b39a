"""Time a kernel on every case: device time, host time, and answers checked at rounds it cannot foresee."""

from __future__ import annotations

import hashlib
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import Case, Job
from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.clock import DeviceClock
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import CudaMemory
from pytest_nvfp4.device.worker.nvml import Nvml
from pytest_nvfp4.device.worker.returned import describe, read_tensor, with_values

_LEAST_SETS = 3
_MOST_SETS = 8
_HOST_SHARE = 4
_LEAST_WARMUP = 4
_CHECKED = 2
"""Rounds whose outputs come back whole; of every round comes a part of the rows that changed."""
SAMPLED_COLUMNS = 128
METHOD = "driver events behind a gate, scattered, legacy default stream"


class Benchmark:
    """Runs a benchmark job."""

    def __init__(self, torch: Any, memory: CudaMemory, events: Events, folder: Path) -> None:
        self._torch = torch
        self._memory = memory
        self._events = events
        self._folder = folder
        properties = torch.cuda.get_device_properties(0)
        self._l2 = int(getattr(properties, "L2_cache_size", 0)) or (64 << 20)
        uuid = getattr(properties, "uuid", None)
        self._nvml = Nvml(str(uuid) if uuid is not None else None)
        self._clock = DeviceClock(memory, l2_bytes=self._l2)

    def run(self, job: Job, custom_kernel: Callable[[Any], Any], prepare: Callable[[Any], Any] | None) -> None:
        """Time every case, in an order of the seed's."""
        order = list(range(len(job.cases)))
        random.Random(job.order_seed).shuffle(order)
        for index in order:
            case = job.cases[index]
            self._events.stage(f"prepare {case.problem.name}")
            if prepare is not None:
                prepare([tuple(size) for size in case.problem.sizes])
            self._case(job, index, case, custom_kernel)

    def _sets(self, case: Case) -> tuple[list[CallBuffers], list[Any]]:
        first = rotation.set_inputs(case, 0)
        size = sum(group.a.nbytes + group.b.nbytes for group in first.groups) or 1
        count = max(_LEAST_SETS, min(_MOST_SETS, -(-2 * self._l2 // size)))
        inputs = [first, *(rotation.set_inputs(case, index) for index in range(1, count))]
        buffers = []
        for item in inputs:
            slot = CallBuffers(self._torch, item)
            slot.fill(self._memory, item)
            buffers.append(slot)
        return buffers, inputs

    def _case(self, job: Job, index: int, case: Case, custom_kernel: Callable[[Any], Any]) -> None:
        timing = job.timing
        buffers, inputs = self._sets(case)
        draw = random.Random(f"{job.order_seed}/{index}")
        visits = [0] * len(buffers)
        checked = set(draw.sample(range(timing.rounds), min(_CHECKED, timing.rounds)))
        device, host, clocks = [], [], []
        poison = inputs[0].groups[0].guard.poison.to_bytes(2, "little")
        late = repeated = 0
        changed: list[list[rotation.RowChange]] = [[]]

        def prepare_call() -> tuple[Any, list[Any], CallBuffers, tuple[int, int]]:
            number = draw.randrange(len(buffers))
            visit = visits[number]
            visits[number] += 1
            changed[:] = [self._change(buffers[number], inputs[number], number, visit, key=job.row_key)]
            data, given = buffers[number].data(inputs[number].problem.sizes)
            return data, given, buffers[number], (number, visit)

        def host_round() -> tuple[float, float]:
            data, *_ = prepare_call()
            return self._clock.host_round(lambda: custom_kernel(data), cold=timing.cold_l2)

        self._events.stage(f"warm up {case.problem.name}")
        warm = [host_round() for _ in range(max(_LEAST_WARMUP, timing.warmup))]
        expected_us = statistics.median(until_return for _, until_return in warm[len(warm) // 2 :])
        self._events.stage(f"time {case.problem.name}")
        clocks.append(self._nvml.sm_clock_mhz())
        for position in range(timing.rounds):
            while True:
                data, given, slot, where = prepare_call()
                returned: list[Any] = []

                def call(data: Any = data, returned: list[Any] = returned) -> None:
                    returned.append(custom_kernel(data))

                timed = self._clock.device_round(call, cold=timing.cold_l2, expected_call_us=expected_us)
                if not timed.late or repeated >= timing.repeats:
                    break
                repeated += 1
            device.append(timed.device_us)
            late += timed.late
            self._sample(
                returned[0], given, slot=slot, call=position, case=index, at=where, changed=changed[0], draw=draw
            )
            if position in checked:
                self._output(returned[0], given, slot=slot, call=position, case=index, inputs=where)
            if position == timing.rounds // 2:
                clocks.append(self._nvml.sm_clock_mhz())
        host += [host_round() for _ in range(max(5, timing.rounds // _HOST_SHARE))]
        clocks.append(self._nvml.sm_clock_mhz())
        host_us = statistics.median(until_end for until_end, _ in host)
        data, _, slot, _ = prepare_call()
        watched = [
            (group.c.address + group.rows_before * group.columns * 2, poison * group.columns)
            for group in slot.groups
            if group.has_rows
        ]
        outside = self._clock.ran_outside(lambda: custom_kernel(data), watched=watched, host_us=host_us)
        if not outside:
            data, _, slot, _ = prepare_call()
            outputs = [(group.c.address, group.c.size) for group in slot.groups if group.has_rows]
            after = self._clock.ran_after(lambda: custom_kernel(data), outputs=outputs, host_us=host_us)
            outside = True if after else outside
        self._events.send(
            "measurement",
            case=index,
            device_us=device,
            host_us=[until_end for until_end, _ in host],
            call_us=statistics.median(until_return for _, until_return in host),
            late_rounds=late,
            repeated_rounds=repeated,
            outside_stream=outside,
            method=METHOD,
            l2="cold" if timing.cold_l2 else "warm",
            sets=len(buffers),
            clocks_mhz=[clock for clock in clocks if clock is not None],
        )

    def _change(self, slot: CallBuffers, inputs: Any, number: int, visit: int, *, key: int) -> list[rotation.RowChange]:
        changes = rotation.changes(inputs, index=number, visit=visit, key=key)
        for change in changes:
            if change.row >= 0:
                region = slot.groups[change.group].a
                self._memory.write(region.address + change.row * len(change.data), change.data)
        for group in slot.groups:
            self._clock.fill16(group.c.address, inputs.groups[0].guard.poison, group.c.size // 2)
        return changes

    def _sample(
        self,
        returned: Any,
        given: list[Any],
        *,
        slot: CallBuffers,
        call: int,
        case: int,
        at: tuple[int, int],
        changed: list[rotation.RowChange],
        draw: random.Random,
    ) -> None:
        """Send a part of each row whose input changed: an answer kept from an earlier round is wrong there."""
        described = describe(self._torch, returned, given)
        parts = []
        for change in changed:
            if change.row < 0:
                continue
            word, tensor = described[change.group]
            group = slot.groups[change.group]
            width = min(SAMPLED_COLUMNS, group.columns)
            column = draw.randrange(group.columns - width + 1)
            if word == "c":
                start = ((group.rows_before + change.row) * group.columns + column) * 2
                bits = self._memory.read(group.c.address + start, width * 2)
            elif word == "other":
                bits = read_tensor(self._memory, tensor[change.row : change.row + 1, column : column + width])
            else:
                bits = b""
            parts.append({"group": change.group, "row": change.row, "column": column, "bits": bits.hex()})
        self._events.send("sample", case=case, call=call, inputs=list(at), parts=parts)

    def _output(
        self, returned: Any, given: list[Any], *, slot: CallBuffers, call: int, case: int, inputs: tuple[int, int]
    ) -> None:
        for group, (word, tensor) in enumerate(describe(self._torch, returned, given)):
            buffers = slot.groups[group]
            bits = with_values(self._memory, buffers, tensor)
            digest = hashlib.sha256(bits).hexdigest()
            name = f"b{case}-{call}-{group}.bin"
            (self._folder / name).write_bytes(bits)
            self._events.send(
                "output",
                call=call,
                case=case,
                group=group,
                rows=buffers.rows,
                columns=buffers.columns,
                data={"sha256": digest, "size": len(bits), "file": name},
                returned=word,
                inputs=list(inputs),
            )
