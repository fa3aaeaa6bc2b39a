"""Programs of a recording as flat steps with their costs in ns: what the loop of a replay executes.

A step is one event, or some events of a warp that need no server and no decision between them: runs of few instructions
are part of the step that follows, and matrix instructions up to a commit are one step. Every step is a tuple
``(code, before, site, event, ...)``: its kind, the ns of the instructions before it, the index of its site, and the
index of its last event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.recording import FLAGS, INSTRUCTION_CLASSES, Does, Program, Recording, Shape, Unit

__all__ = [
    "COMMIT",
    "DELAY",
    "DEPENDENTS",
    "END",
    "FLAG_WAIT",
    "FLAG_WRITE",
    "GLOBAL_READ",
    "GLOBAL_WRITE",
    "GRID_WAIT",
    "LOAD",
    "MARK",
    "REMOTE",
    "RUN",
    "SIGNAL",
    "STORE",
    "TENSOR",
    "TMEM",
    "WAIT",
    "Costs",
    "ProgramSteps",
    "WarpSteps",
    "steps_of",
]

(RUN, WAIT, SIGNAL, LOAD, TENSOR, COMMIT, TMEM, STORE, DELAY, GLOBAL_READ, GLOBAL_WRITE, REMOTE) = range(12)
DEPENDENTS, GRID_WAIT, END, MARK, FLAG_WAIT, FLAG_WRITE = range(12, 18)

Step = tuple[Any, ...]

_SCALAR = INSTRUCTION_CLASSES[:-1]
_FEW = 48
"""Instructions up to which a run needs no place in its scheduler's queue: less than one wait."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in ns, for one clock of the SMs."""

    cycle: float
    row: float
    issue: float
    latency: float
    latency_per_kib: float
    store_byte: float
    store_latency: float
    line: float
    line_shared: float
    line_written: float
    dram_line: float
    dram_latency: float
    arrive: float
    wait: float
    load_latency: float
    load_byte: float

    @staticmethod
    def of(device: DeviceConstants, clock_ghz: float, dram_tb_s: float) -> Costs:
        """Return the costs of a device at a clock and a rate of DRAM."""
        cycle = 1.0 / clock_ghz
        l2 = (clock_ghz / device["l2_clock"]) ** device["l2_clock_exponent"]
        return Costs(
            cycle=cycle,
            row=device["tma_row"] * cycle,
            issue=device["tma_issue"] * cycle,
            latency=device["tma_latency"] * cycle,
            latency_per_kib=device["tma_latency_per_kib"] * cycle,
            store_byte=cycle / device["store_rate"],
            store_latency=device["store_latency"] * cycle,
            line=0.128 / (device["l2_read"] * l2),
            line_shared=0.128 / (device["l2_read"] * device["l2_shared"] * l2),
            line_written=0.128 / (device["l2_write"] * l2),
            dram_line=0.128 / dram_tb_s,
            dram_latency=device["dram_latency"],
            arrive=device["barrier_arrive"] * cycle,
            wait=device["barrier_wait"] * cycle,
            load_latency=device["load_latency"] * cycle,
            load_byte=cycle / device["load_rate"],
        )


@dataclass(frozen=True, slots=True)
class WarpSteps:
    """Steps of one warp, and the busy time that it gives to the units of its SM."""

    cta: int
    index: int
    role: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ProgramSteps:
    """A program, ready for replay.

    Attributes:
        phases: Signals that each phase needs.
        pipes: Number of pipes.
        busy: Busy ns of each unit, one value a CTA of the cluster.
        tensor: Whether there are matrix instructions.
    """

    warps: tuple[WarpSteps, ...]
    phases: tuple[int, ...]
    pipes: int
    busy: dict[str, list[float]]
    tensor: bool


class _Compiler:
    """Compiles the events of one program."""

    def __init__(self, recording: Recording, program: Program, device: DeviceConstants, costs: Costs) -> None:
        self.program, self.device, self.costs = program, device, costs
        ctas = math.prod(recording.cluster)
        cycle = costs.cycle
        latency = np.array([device[name] for name in _SCALAR])
        mixes = np.asarray(program.mixes, np.float64).reshape(-1, len(INSTRUCTION_CLASSES))
        self.alone: list[float] = (mixes[:, :-1] @ latency * cycle).tolist()
        self.issued: list[float] = (mixes[:, :-1].sum(1)).tolist()
        self.passes: list[float] = mixes[:, -1].tolist()
        self.busy = {
            name: [0.0] * ctas
            for name in ("TMA load", "TMA store", "tensor core", "tensor memory", "shared memory", "issue slots")
        }
        self.changes = bool((program.operations["unit"] == Unit.MAP_CHANGE).any()) if len(program.operations) else False
        self.rates: dict[int, tuple[float, float]] = {}
        self.tensor = False
        self.users: dict[int, tuple[int, ...]] = {}
        # A warpgroup's matrix instructions read A and B from the port through which copies write; where the operands
        # of tcgen05 come from, the intervals of its instructions were measured with the copies.
        self.operand_byte = cycle / device["shared_port"] if recording.arch.startswith("sm_90") else 0.0
        self.burst = 0
        # Bytes of the copies that a warp has issued since its last wait or arrival. Main loops show that latency grows
        # with all of them, not with those of one copy (tests/model/main_loop.py).
        self.pipes = int(program.operations["pipe"].max(initial=-1)) + 1 if len(program.operations) else 0
        # Operations as plain tuples: reading a structured array element by element would dominate.
        self.operations: list[tuple[int, int, int, int, int, int]] = program.operations.tolist()
        self.barriers = self._barriers()
        flags = np.isin(program.operations["unit"], FLAGS)
        self.flags: list[int] = (np.cumsum(flags) - 1).tolist()
        """By operation of a flag, its row of ``Cluster.flags``."""

    def _barriers(self) -> set[int]:
        """Return the phases of barriers: a warp polls these, and is stalled for the others (results, groups)."""
        units = (Unit.TMA_LOAD, Unit.COMMIT, Unit.SHARED_REMOTE)
        found = {
            phase
            for unit, _, _, _, *lists in self.operations
            if unit in units
            for index in lists
            for phase in self.signals(index)
        }
        for warp in self.program.warps:
            arrivals = warp.events["does"] == Does.SIGNAL
            found.update(np.unique(warp.events["item"][arrivals]).tolist())
        return found

    def signals(self, index: int) -> tuple[int, ...]:
        return self.program.signals[index] if index >= 0 else ()

    def rate(self, index: int, shape: Shape) -> tuple[float, float]:
        known = self.rates.get(index)
        if known is None:
            rate = self.device.matrix_rate(shape.kind, shape.a_tmem, max(1, len(shape.ctas)), shape.m, shape.n)
            known = self.rates[index] = (rate.interval * self.costs.cycle, rate.latency * self.costs.cycle)
        return known

    def warp(self, cta: int, index: int, role: str, events: list[tuple[int, int, int, int]]) -> WarpSteps:
        steps: list[Step] = []
        before = 0.0
        cycle = self.costs.cycle
        slots, shared = self.busy["issue slots"], self.busy["shared memory"]
        port = cycle  # one pass of 128 B a cycle
        copied = cycle / self.device["tmem_copy"]
        batch: list[Any] | None = None
        for number, (does, count, site, item) in enumerate(events):
            if does == Does.RUN:
                issued, passes = self.issued[item] * count, self.passes[item] * count
                slots[cta] += issued * cycle / 4
                shared[cta] += passes * port
                if issued <= _FEW and passes <= _FEW:
                    before += self.alone[item] * count
                    continue
                batch = None
                steps.append((RUN, before, site, number, self.alone[item] * count, issued * cycle, passes * port))
                before = 0.0
                continue
            if does == Does.MARK:
                batch = None
                steps.append((MARK, before, site, number, item))
                before = 0.0
                continue
            if does != Does.ISSUE:
                self.burst = 0
            if does == Does.WAIT:
                step: Step = (WAIT, before, site, number, item, self.costs.wait if item in self.barriers else 0.0)
            elif does == Does.SIGNAL:
                step = (SIGNAL, before, site, number, item, count)
            else:
                unit, shape_index, slot, pipe, done, read = self.operations[item]
                shape = self.program.shapes[shape_index]
                if unit in (Unit.TENSOR, Unit.TMEM_COPY):
                    read_ns = shape.shared_bytes * self.operand_byte
                    shared[cta] += read_ns
                    ctas = self.users[pipe] = shape.ctas or (cta,)
                    if unit == Unit.TENSOR:
                        interval, tail = self.rate(shape_index, shape)
                        self.tensor = True
                    else:
                        interval, tail = max(shape.shared_bytes, shape.bytes) * copied, 0.0
                    for rank in ctas:
                        self.busy["tensor core"][rank] += interval
                    own = self.signals(done) + self.signals(read)
                    if batch is not None and batch[4] == ctas and batch[5] == pipe and not batch[8]:
                        batch[3] = number
                        batch[6] += interval
                        batch[7] = tail
                        batch[8] = own
                        batch[9] += before + cycle
                        batch[10] = interval
                        batch[11] += read_ns
                        steps[-1] = tuple(batch)
                    else:
                        batch = [
                            TENSOR,
                            before,
                            site,
                            number,
                            ctas,
                            pipe,
                            interval,
                            tail,
                            own,
                            cycle,
                            interval,
                            read_ns,
                        ]
                        steps.append(tuple(batch))
                    before = 0.0
                    continue
                head = (before, site, number)
                step = self.operation(Unit(unit), cta, head, shape, (slot, pipe, done, read))
                if unit in FLAGS:
                    step = (
                        FLAG_WAIT if unit == Unit.FLAG_WAIT else FLAG_WRITE,
                        *step[1:8],
                        self.flags[item],
                        shape.kind,
                    )
            batch = None
            steps.append(step)
            before = 0.0
        steps.append((END, before, -1, len(events)))
        return WarpSteps(cta, index, role, tuple(steps))

    def operation(self, code: Unit, cta: int, head: tuple[float, int, int], shape: Shape, fields: _Fields) -> Step:
        """Return the step of an operation that is not in the tensor core's pipe."""
        slot, pipe, done_at, read_at = fields
        costs, device = self.costs, self.device
        cycle = costs.cycle
        done, read = self.signals(done_at), self.signals(read_at)
        own = done + read
        match code:
            case Unit.TMA_LOAD:
                rows = max(shape.rows, -(-shape.bytes // 128), 1)
                ctas = shape.ctas or (cta,)
                for rank in ctas:
                    self.busy["TMA load"][rank] += rows * costs.row
                self.burst += shape.bytes
                latency = costs.latency + costs.latency_per_kib * self.burst / 1024
                written = shape.bytes * self.operand_byte
                for rank in ctas:
                    self.busy["shared memory"][rank] += written
                # A line leaves L2 once for all CTAs of a multicast, and takes its way to each.
                delivered = 1.0 + device["l2_multicast"] * (len(ctas) - 1)
                return (LOAD, *head, slot, rows * costs.row, ctas, latency, own, delivered, written)
            case Unit.TMA_STORE:
                time = shape.bytes * costs.store_byte
                self.busy["TMA store"][cta] += time
                return (STORE, *head, slot, time, read, done)
            case Unit.COMMIT:
                return (COMMIT, *head, pipe, device["commit"] * cycle, own, self.users.get(pipe, ()))
            case Unit.TMEM_LOAD | Unit.TMEM_STORE:
                time = max(shape.columns, 1) * device["tmem_column"] * cycle
                self.busy["tensor memory"][cta] += time / 4
                return (TMEM, *head, time, device["tmem_load_latency"] * cycle, own)
            case Unit.GLOBAL_LOAD | Unit.GLOBAL_STORE | Unit.ATOMIC | Unit.FLAG_WAIT | Unit.FLAG_WRITE:
                time = max(shape.sectors * 32, shape.bytes, 1) * costs.load_byte
                if code == Unit.GLOBAL_STORE:
                    return (GLOBAL_WRITE, *head, slot, time, 0.0, own)
                adds = code == Unit.ATOMIC or (code == Unit.FLAG_WRITE and shape.kind.startswith("add"))
                latency = device["atomic_latency"] * cycle if adds else costs.load_latency
                return (GLOBAL_READ, *head, slot, time, latency, own)
            case Unit.SHARED_REMOTE:
                time = (device["remote_latency"] + shape.bytes / device["shared_port"]) * cycle
                return (REMOTE, *head, time, own)
            case Unit.LAUNCH_DEPENDENTS:
                return (DEPENDENTS, *head, own)
            case Unit.GRID_WAIT:
                return (GRID_WAIT, *head, own)
            case _:
                name = self.delay(code, shape.kind)
                return (DELAY, *head, device[name] * cycle, own, name)

    def delay(self, unit: Unit, kind: str) -> str:
        """Return the constant of the time for which an operation stalls its warp."""
        match unit:
            case Unit.TMEM_ALLOCATE:
                return "tmem_allocate"
            case Unit.MAP_CHANGE:  # tensormap.replace is an ordinary store; the copy of a map contains a fence
                return "shared_store" if kind.startswith("replace.shared") else "map_change"
            case Unit.MAP_ACQUIRE:
                return "map_acquire_changed" if self.changes else "map_acquire"
            case _:  # PTX ISA, membar/fence: those of the GPU and the system wait for memory
                return "fence" if kind.endswith((".gpu", ".gl", ".sys")) and "proxy" not in kind else "fence_near"


_Fields = tuple[int, int, int, int]
"""Slot, pipe, and the lists of signals at completion and when the source is read."""


def steps_of(recording: Recording, device: DeviceConstants, costs: Costs) -> tuple[ProgramSteps, ...]:
    """Return the programs of a recording as steps."""
    compiled = []
    for program in recording.programs:
        compiler = _Compiler(recording, program, device, costs)
        warps = tuple(compiler.warp(warp.cta, warp.index, warp.role, warp.events.tolist()) for warp in program.warps)
        phases = tuple(np.asarray(program.phases).tolist())
        compiled.append(ProgramSteps(warps, phases, compiler.pipes, compiler.busy, compiler.tensor))
    return tuple(compiled)
