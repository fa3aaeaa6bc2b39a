"""The program of a cluster from its tape: events with the instructions between them, numbered in program order.

Two clusters that do the same have equal programs whatever order the simulation ran their warps in, because operations
and phases are numbered as they occur on the warps' paths, and not as they were recorded.

A warp waits for the result of a load of global memory, or of a peer's shared memory, at the first instruction that uses
one of its registers. Instructions of a loop that a refused wait repeats are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_nvfp4.model.recorder_code import NOTHING, Code, Executed
from pytest_nvfp4.model.recorder_tape import ISSUE, MARK, NO_SLOT, PASSES, REFUSED, WAIT, Entry, Operation, Tape
from pytest_nvfp4.model.recording import EVENT, OPERATION, Does, Program, Shape, Unit, WarpEvents
from pytest_nvfp4.sim.run.warp import Warp

_MOST = 0xFFFF
"""Largest count of an event."""
_RUN = int(Does.RUN)
_LOADS = (int(Unit.GLOBAL_LOAD), int(Unit.SHARED_REMOTE), int(Unit.ATOMIC), int(Unit.FLAG_WAIT))


@dataclass(frozen=True, slots=True)
class Numbered:
    """A program whose sites are indices of instructions, and the operations that its footprint slots belong to."""

    program: Program
    slots: tuple[int, ...]
    """By slot, the number of the operation on the tape."""
    flags: tuple[int, ...]
    """The same of the polls and writes of flags, in the order of the program's operations."""
    refused: tuple[str, ...]


class _Path:
    """The events of one path. ``emit`` writes a RUN of the instructions since the last event first."""

    def __init__(self, code: Code, tape: Tape, own: Mapping[int, tuple[int, int]]) -> None:
        self._code = code
        self._tape = tape
        self._own = own
        self.events: list[tuple[int, int, int, Any]] = []
        """Does, count, index of the instruction, item; that of a RUN is its mix."""
        self.refused: set[int] = set()
        self._mix = list(NOTHING)
        self._spin: tuple[int, list[int]] | None = None
        self._open: list[tuple[frozenset[int], int]] = []
        """Loads whose result nothing has used: their registers and phases."""

    def read(self, path: list[Any]) -> None:
        """Read a whole path."""
        pending: list[Entry] = []
        regions: list[int] = []
        passages = self._code.program.passages
        for item in path:
            if item.__class__ is not int:
                pending.append(item)
            elif passages[item].ends:
                self._block(self._code.executed((item, *regions)), pending)
                pending, regions = [], []
            else:
                regions.append(item)
        for entry in pending:
            self._emit(entry)
        self._flush(-1)

    def _block(self, executed: Executed, pending: list[Entry]) -> None:
        refusing = self._code.refusing
        if refusing:
            self.refused.update(at for at in executed.instructions if at in refusing)
        if executed.own:
            pending = self._with_own(executed, pending)
        place = 0
        for entry in pending:
            after = executed.after(entry[1])
            # An instruction that had to wait reports its arrival before the block that it begins is complete.
            if after > place:
                self._run(executed, place, after)
                place = after
            self._emit(entry)
        self._run(executed, place, len(executed.instructions))

    def _with_own(self, executed: Executed, pending: list[Entry]) -> list[Entry]:
        """Add the block's operations that report no event, in program order."""
        merged = list(pending)
        for at in executed.own:
            entry = (ISSUE, at, -1, 1)
            place = next((n for n, other in enumerate(merged) if other[1] > at and executed.after(other[1]) >= 0), None)
            merged.insert(len(merged) if place is None else place, entry)
        return merged

    def _run(self, executed: Executed, first: int, end: int) -> None:
        """Count the instructions at the places of a block, and wait where one of them uses the result of a load."""
        if self._open and first < end:
            touches = self._code.touches
            for place in range(first, end):
                used = touches[executed.instructions[place]]
                if any(slots & used for slots, _ in self._open):
                    self._count(executed, first, place)
                    first = place
                    for slots, phase in self._open:
                        if slots & used:
                            self._emit((WAIT, executed.instructions[place], phase, 1))
                    self._open = [each for each in self._open if not each[0] & used]
                    if not self._open:
                        break
        self._count(executed, first, end)

    def _count(self, executed: Executed, first: int, end: int) -> None:
        if first < end:
            self._mix = [a + b for a, b in zip(self._mix, executed.between(first, end), strict=True)]

    def _emit(self, entry: Entry) -> None:
        does, at, item, count = entry
        if does == PASSES:
            self._mix[-1] += count
            return
        if self._spin is not None:
            spins_at, mix = self._spin
            self._spin = None
            if at == spins_at and does in (WAIT, REFUSED):
                self._mix = mix
        if does == REFUSED:
            self._spin = at, list(self._mix)
            return
        self._flush(at)
        if does == ISSUE and item < 0:
            item = self._own_operation(at)
        while count > _MOST:
            self.events.append((does, _MOST, at, item))
            count -= _MOST
        self.events.append((does, count, at, item))
        if does == ISSUE and self._tape.operations[item].unit in _LOADS and at in self._code.loads:
            operation = self._tape.operations[item]
            self._open += [(self._code.loads[at], phase) for phase in operation.done[:1]]

    def _own_operation(self, at: int) -> int:
        unit, shape = self._own[at]
        self._tape.operations.append(Operation(unit, shape, -1, NO_SLOT))
        return len(self._tape.operations) - 1

    def _flush(self, at: int) -> None:
        if any(self._mix):
            self.events.append((_RUN, 1, at, tuple(self._mix)))
            self._mix = list(NOTHING)


def program_of(
    tape: Tape, code: Code, shapes: Sequence[Shape], own: Mapping[int, tuple[int, int]], roles: Mapping[Warp, str]
) -> Numbered:
    """Return the program of a cluster that has ended.

    Args:
        tape: Its record.
        code: The kernel.
        shapes: The launch's shapes.
        own: Unit and shape of operations that report no event, by instruction.
        roles: Roles of the warps.
    """
    paths: list[tuple[Warp, _Path]] = []
    refused: set[int] = set()
    for warp, record in tape.warps.items():
        path = _Path(code, tape, own)
        path.read(record.path)
        paths.append((warp, path))
        refused |= path.refused
    needed = tape.needed()
    operations: dict[int, int] = {}
    phases: dict[int, int] = {}
    mixes: dict[Any, int] = {}
    used: dict[int, int] = {}
    signals: dict[tuple[int, ...], int] = {}
    slots: list[int] = []
    flags: list[int] = []
    rows: list[tuple[int, ...]] = []

    def number(phase: int) -> int:
        return phases.setdefault(phase, len(phases))

    def listed(signalled: list[int]) -> int:
        return signals.setdefault(tuple(map(number, signalled)), len(signals)) if signalled else -1

    def operation(recorded: int) -> int:
        operations[recorded] = len(operations)
        made = tape.operations[recorded]
        slot = -1
        if made.footprint != NO_SLOT:
            slot = len(slots)
            slots.append(recorded)
        if made.flag is not None:
            flags.append(recorded)
        shape = used.setdefault(made.shape, len(used))
        rows.append((made.unit, shape, slot, made.pipe, listed(made.done), listed(made.read)))
        return operations[recorded]

    warps: list[WarpEvents] = []
    for warp, path in paths:
        events = []
        for does, count, at, item in path.events:
            if does == _RUN:
                place = mixes.setdefault(item, len(mixes))
            elif does == MARK:
                place = item
            else:
                place = operation(item) if does == ISSUE else number(item)
            events.append((does, count, at, place))
        role = roles[warp]
        warps.append(WarpEvents(warp.cta.rank, warp.index, role, np.array(events, EVENT)))
    program = Program(
        warps=tuple(warps),
        operations=np.array(rows, OPERATION),
        shapes=tuple(shapes[shape] for shape in used),
        mixes=np.array(list(mixes), np.int32).reshape(-1, len(NOTHING)),
        phases=np.array([needed[phase] for phase in phases], np.int32),
        signals=tuple(signals),
        slots=len(slots),
    )
    return Numbered(program, tuple(slots), tuple(flags), tuple(code.refusing[at] for at in sorted(refused)))


def identity(program: Program) -> tuple[object, ...]:
    """Return what two equal programs have in common and no other."""
    warps = tuple((each.cta, each.index, each.role, each.events.tobytes()) for each in program.warps)
    arrays = tuple(each.tobytes() for each in (program.operations, program.mixes, program.phases))
    return (warps, arrays, program.shapes, program.signals)
