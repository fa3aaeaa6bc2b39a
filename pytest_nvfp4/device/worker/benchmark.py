"""Time a kernel on every case: device time, host time, and outputs of rounds that the kernel cannot predict."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pytest_nvfp4.contracts.base import RowChange
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.gpus import SmClock
from pytest_nvfp4.device.job import GivenInputs, Job, JobCase, Timing
from pytest_nvfp4.device.worker.buffers import Buffer, CallBuffers
from pytest_nvfp4.device.worker.clock import DeviceClock, Round
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.launch_counter import LaunchCounter, NotCountedError
from pytest_nvfp4.device.worker.memory import CudaMemory
from pytest_nvfp4.device.worker.returned_tensors import OutputSender, inspect_returned, read_tensor

_LEAST_SETS = 3
_MOST_SETS = 8
"""Sets of inputs rotate so that together they exceed twice the L2 cache, within these bounds."""
_DEFAULT_L2_BYTES = 64 << 20
_ROUNDS_PER_HOST_ROUND = 4
_LEAST_WARMUP = 4
_LEAST_HOST_ROUNDS = 5
_WHOLE_OUTPUTS = 2
"""Rounds whose outputs are returned whole; every round returns a part of the rows that changed."""
SAMPLED_COLUMNS = 128
_WORD = 2
"""Bytes of an element that the clock fills in on the device."""
METHOD = "driver events behind a gate, scattered, legacy default stream"


@dataclass(frozen=True, slots=True)
class _TimedCall:
    """The arguments of one call, the outputs ``given`` in them, and the buffers behind them.

    Attributes:
        at: Index of the set of inputs, and number of its visit.
        changed: The rows of inputs that differ from the visit before.
    """

    arguments: tuple[Any, ...]
    given: list[Any]
    slot: CallBuffers
    at: tuple[int, int]
    changed: list[RowChange]


@dataclass(frozen=True, slots=True)
class _CallFactory:
    """Prepares calls, each with a randomly chosen set of inputs whose rows have changed since the set's last visit.

    ``draw`` chooses the set, ``key`` is the job's ``row_key``, and ``visits`` counts the visits of each set.
    """

    memory: CudaMemory
    clock: DeviceClock
    buffers: list[CallBuffers]
    inputs: list[Any]
    draw: random.Random
    key: int
    visits: Counter[int] = field(default_factory=Counter)

    def prepare(self, number: int | None = None) -> _TimedCall:
        """Change a set of inputs, drawn unless given, for its next visit, poison its outputs, and return the call."""
        number = self.draw.randrange(len(self.buffers)) if number is None else number
        visit = self.visits[number]
        self.visits[number] += 1
        slot, inputs = self.buffers[number], self.inputs[number]
        changed = rotation.changes(inputs, index=number, visit=visit, key=self.key)
        for change in changed:
            region = slot.at(change.tensor)
            self.memory.write(region.address + region.tensor.before + change.offset, change.data)
        return self._poisoned(slot, (number, visit), changed)

    def repeat(self, call: _TimedCall) -> _TimedCall:
        """Poison the outputs of a call again, and return a call with the same inputs."""
        return self._poisoned(call.slot, call.at, call.changed)

    def _poisoned(self, slot: CallBuffers, at: tuple[int, int], changed: list[RowChange]) -> _TimedCall:
        for region in slot.outputs:
            self._poison(region)
        arguments, given = slot.arguments()
        return _TimedCall(arguments, given, slot, at, changed)

    def _poison(self, region: Buffer) -> None:
        poison = region.tensor.poison
        if region.tensor.role == "output" and len(poison) == _WORD:
            self.clock.fill16(region.address, int.from_bytes(poison, "little"), region.size // _WORD)
        else:
            region.fill(self.memory)


@dataclass(slots=True)
class _DeviceRounds:
    """Times calls on the device, and repeats late ones as often as the job allows in total.

    Attributes:
        expected_us: Microseconds that a call takes on the host.
        device_us: Microseconds of each round.
        late: Number of rounds that count although they were late.
        repeated: Number of late rounds that were repeated.
    """

    clock: DeviceClock
    calls: _CallFactory
    custom_kernel: Callable[..., Any]
    timing: Timing
    expected_us: float
    device_us: list[float] = field(default_factory=list)
    late: int = 0
    repeated: int = 0

    def time_one(self) -> tuple[_TimedCall, Any]:
        """Time one round, and return the call and what the kernel returned."""
        while True:
            call = self.calls.prepare()
            timed, returned = self.make_timed(call)
            if not timed.late or self.repeated >= self.timing.repeats:
                break
            self.repeated += 1
        self.device_us.append(timed.device_us)
        self.late += timed.late
        return call, returned

    def make_timed(self, call: _TimedCall) -> tuple[Round, Any]:
        """Make a call as in every timed round, and return its time and what the kernel returned."""
        custom_kernel, arguments = self.custom_kernel, call.arguments
        returned: list[Any] = []

        def work() -> None:
            returned.append(custom_kernel(*arguments))

        timed = self.clock.device_round(work, cold=self.timing.cold_l2, expected_call_us=self.expected_us)
        return timed, returned[0]

    def make_plain(self, call: _TimedCall) -> tuple[None, Any]:
        """Make a call as a verified one, on an idle device, and return what the kernel returned."""
        return None, self.clock.plain_call(partial(self.custom_kernel, *call.arguments))


class BenchmarkRunner:
    """Runs a benchmark job. ``folder`` is for outputs, shared with the parent."""

    fixed: ClassVar = True  # see `isolation.seal.inventory`

    def __init__(self, torch: Any, memory: CudaMemory, events: Events, folder: Path) -> None:
        self._torch = torch
        self._memory = memory
        self._events = events
        self._sender = OutputSender(memory, events, folder, prefix="b")
        properties = torch.cuda.get_device_properties(0)
        self._l2 = int(getattr(properties, "L2_cache_size", 0)) or _DEFAULT_L2_BYTES
        uuid = getattr(properties, "uuid", None)
        self._sm_clock = SmClock(str(uuid) if uuid is not None else None)
        self._clock = DeviceClock(memory, l2_bytes=self._l2)
        self._counter = LaunchCounter()

    def run(self, job: Job, custom_kernel: Callable[..., Any], prepare: Callable[[Any], Any] | None) -> None:
        """Time every case, in an order drawn from the job's seed."""
        order = list(range(len(job.cases)))
        random.Random(job.order_seed).shuffle(order)
        for index in order:
            case = job.cases[index]
            self._events.stage(f"prepare {case.problem.name}")
            if prepare is not None:
                prepare([tuple(size) for size in case.problem.sizes])
            self._case(job, index, case, custom_kernel)

    def _sets(self, case: JobCase, given: Sequence[GivenInputs]) -> tuple[list[CallBuffers], list[Any]]:
        """Return the buffers and inputs of all sets.

        They have the values of the case's family, because times depend on them: an H200 ran a bf16 product 13 %
        faster on zeros.
        """
        first = rotation.set_inputs(case, 0, given=given)
        size = contract_of(first.problem).working_set(first) or 1
        most = min(_MOST_SETS, contract_of(first.problem).sets_of_inputs)
        count = max(_LEAST_SETS, min(most, -(-2 * self._l2 // size)))
        inputs = [first, *(rotation.set_inputs(case, index, given=given) for index in range(1, count))]
        buffers = []
        for set_inputs in inputs:
            slot = CallBuffers(self._torch, set_inputs)
            slot.fill(self._memory, set_inputs)
            buffers.append(slot)
        return buffers, inputs

    def _case(self, job: Job, index: int, case: JobCase, custom_kernel: Callable[..., Any]) -> None:
        timing = job.timing
        draw = random.Random(f"{job.order_seed}/{index}")
        buffers, inputs = self._sets(case, job.given)
        whole = set(draw.sample(range(timing.rounds), min(_WHOLE_OUTPUTS, timing.rounds)))
        calls = _CallFactory(self._memory, self._clock, buffers, inputs, draw, job.row_key)

        def host_round() -> tuple[float, float]:
            arguments = calls.prepare().arguments
            return self._clock.host_round(lambda: custom_kernel(*arguments), cold=timing.cold_l2)

        self._events.stage(f"warm up {case.problem.name}")
        warm = [host_round() for _ in range(max(_LEAST_WARMUP, timing.warmup))]
        expected_us = statistics.median(until_return for _, until_return in warm[len(warm) // 2 :])
        self._events.stage(f"time {case.problem.name}")
        clocks = [self._sm_clock.mhz()]
        rounds = _DeviceRounds(self._clock, calls, custom_kernel, timing, expected_us)
        for position in range(timing.rounds):
            call, returned = rounds.time_one()
            self._show(returned, call, position=position, case=index, draw=draw, whole=position in whole)
            if position == timing.rounds // 2:
                clocks.append(self._sm_clock.mhz())
        host = [host_round() for _ in range(max(_LEAST_HOST_ROUNDS, timing.rounds // _ROUNDS_PER_HOST_ROUND))]
        clocks.append(self._sm_clock.mhz())
        host_us = statistics.median(until_end for until_end, _ in host)
        outside = self._ran_outside(calls, custom_kernel, host_us=host_us)
        launches = self._count(rounds, case=index, draw=draw)
        self._events.send(
            "measurement",
            case=index,
            device_us=rounds.device_us,
            host_us=[until_end for until_end, _ in host],
            call_us=statistics.median(until_return for _, until_return in host),
            late_rounds=rounds.late,
            repeated_rounds=rounds.repeated,
            outside_stream=outside,
            method=METHOD,
            l2="cold" if timing.cold_l2 else "warm",
            sets=len(buffers),
            clocks_mhz=[clock for clock in clocks if clock is not None],
            launches=launches,
        )

    def _count(self, rounds: _DeviceRounds, *, case: int, draw: random.Random) -> dict[str, Any] | None:
        """Return the fields of ``CountedLaunches``: two calls on each of some inputs, in a drawn order, all judged.

        A call on the same buffers, with other rows, comes before them and is not counted: what a kernel prepares once
        for each address belongs to no timed round either.
        """
        timing, made = rounds.timing, list[dict[str, Any]]()
        if not timing.counted:
            return None
        self._events.stage("count launches")
        for number in range(timing.counted):
            before = rounds.calls.prepare()
            rounds.make_plain(before)
            call = rounds.calls.prepare(before.at[0])
            for way in draw.sample(("timed", "plain"), 2):
                call = rounds.calls.repeat(call)
                make = rounds.make_timed if way == "timed" else rounds.make_plain
                try:
                    (timed, returned), works = self._counter.record(
                        partial(make, call), flushed=way == "timed" and timing.cold_l2
                    )
                except NotCountedError as error:
                    return {"calls": [], "unavailable": str(error)[:1000]}
                position = timing.rounds + len(made)
                self._show(returned, call, position=position, case=case, draw=draw, whole=number == 0)
                us = None if timed is None else timed.device_us
                made.append({"way": way, "inputs": call.at, "device_us": us, "works": works})
        return {"calls": made, "unavailable": None}

    def _ran_outside(self, calls: _CallFactory, custom_kernel: Callable[..., Any], *, host_us: float) -> bool | None:
        """Return whether the kernel writes C outside the timed stream, or after its work there; None if unknown."""
        call = calls.prepare()
        arguments = call.arguments
        watched = [
            (region.address + region.tensor.before, region.tensor.poison * region.tensor.columns)
            for region in call.slot.outputs
            if region.tensor.role == "output" and region.tensor.size
        ]
        outside = self._clock.ran_outside(lambda: custom_kernel(*arguments), watched=watched, host_us=host_us)
        if outside:
            return True
        later = calls.prepare()
        late = later.arguments
        outputs = [(region.address, region.size) for region in later.slot.outputs if region.tensor.size]
        after = self._clock.ran_after(lambda: custom_kernel(*late), outputs=outputs, host_us=host_us)
        return True if after else outside

    def _show(
        self, returned: Any, call: _TimedCall, *, position: int, case: int, draw: random.Random, whole: bool
    ) -> None:
        """Send what a call wrote: a part of it, and all of it if ``whole``."""
        self._sample(returned, call, position=position, case=case, draw=draw)
        if whole:
            shown = inspect_returned(self._torch, returned, call.given, returns=call.slot.returns)
            self._sender.send(shown, call.slot, call=position, case=case, inputs=call.at)

    def _sample(self, returned: Any, call: _TimedCall, *, position: int, case: int, draw: random.Random) -> None:
        """Send a part of each row whose input changed: an answer cached from an earlier round is wrong there."""
        tensors = inspect_returned(self._torch, returned, call.given, returns=call.slot.returns)
        parts = []
        for change in (one for one in call.changed if one.group >= 0):
            description, own = tensors[change.group]
            tensor, buffer = call.slot.results[change.group]
            width = min(SAMPLED_COLUMNS, tensor.columns)
            column = draw.randrange(tensor.columns - width + 1)
            start = (change.row * tensor.columns + column) * tensor.item
            if description == "c" and buffer is not None:
                bits = self._memory.read(buffer.address + tensor.before + start, width * tensor.item)
            elif description == "other":
                bits = read_tensor(self._memory, own, tensor)[start : start + width * tensor.item]
            else:
                bits = b""
            parts.append({"group": change.group, "row": change.row, "column": column, "bits": bits.hex()})
        self._events.send("sample", case=case, call=position, inputs=list(call.at), parts=parts)
