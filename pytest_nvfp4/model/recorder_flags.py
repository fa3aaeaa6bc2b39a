"""The record of a launch's flags: the cells that are polled, who writes them, and which polls succeed.

A poll is recorded once, when it succeeds; how often it failed depends on the order of the simulation and is left out.
Writes that count are ordered stores and additions of one address. A cell that anything else writes has no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.flags import holds
from pytest_nvfp4.model.recorder_code import Code
from pytest_nvfp4.model.recorder_polls import Poll
from pytest_nvfp4.model.recording import Unit
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.memory.access import READ
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.ptx.syntax import Immediate
from pytest_nvfp4.sim.run.source import place_of

if TYPE_CHECKING:
    from pytest_nvfp4.model.recorder_tape import WarpTape

_WORD = 4


@dataclass(slots=True, eq=False)
class FlagAccess:
    """A poll that has succeeded, or a write.

    Attributes:
        cell: Number of the cell.
        value: Operand of the comparison, or of the write: known for a write when it has been made.
    """

    unit: Unit
    kind: str
    cell: int
    value: int = 0


class FlagTape:
    """The flags of one launch.

    Attributes:
        cells: Values of the cells before the launch's first write.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self.cells: list[int] = []
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._where: list[tuple[Region, int, int]] = []
        self._polled: dict[int, int] = {}
        self._others: dict[int, NDArray[np.bool_]] = {}
        self._open: tuple[FlagAccess, int] | None = None
        self._refused: dict[str, None] = {}

    def settle(self) -> None:
        """Take the value that the last write has made, before memory changes again."""
        if self._open is not None:
            access, before = self._open
            self._open = None
            after = self._value(access.cell)
            access.value = after - before if access.kind.startswith("add") else after

    def accessed(
        self, warp: WarpTape, at: int, region: Region, offset: int, where: Pattern | int, kind: int
    ) -> FlagAccess | bool:
        """Return what an access is to the flags, or whether it is to be recorded as an ordinary access.

        Args:
            warp: The record of the warp.
            at: The instruction.
            region, offset, where, kind: As of ``Monitor.global_accessed``, which precedes a write's effect.
        """
        self.settle()
        place = (offset, where) if isinstance(where, int) else (offset, where.size) if where.same else None
        poll = self._code.polls.get(at)
        if kind == READ:
            return True if poll is None else self._poll(warp, at, region, poll, place)
        written = self._code.flag_writes.get(at)
        if written is None or place is None or place[1] * 8 != int(written[-2:]):
            self._other(region, offset, where)
            return True
        cell = self._cell(region, *place)
        access = FlagAccess(Unit.FLAG_WRITE, written, cell)
        self._open = access, self._value(cell)
        return access

    def copied(self, region: Region, offset: int, size: int) -> None:
        """Note that something else than warps' lanes writes memory."""
        self.settle()
        self._other(region, offset, size)

    def refusals(self) -> list[str]:
        """Return why the launch has no model."""
        self.settle()
        for cell, at in self._polled.items():
            region, offset, size = self._where[cell]
            others = self._others.get(region.start)
            aliased = [
                number
                for number, (own, start, width) in enumerate(self._where)
                if number != cell and own is region and start < offset + size and offset < start + width
            ]
            if aliased or (others is not None and others[offset // _WORD : (offset + size) // _WORD].any()):
                ins = self._code.instructions[at]
                self._refused[
                    f"{place_of(ins)} ({ins.opcode}) polls {region.place(region.start + offset)}, which is written "
                    "other than by ordered stores and additions of its size to one address"
                ] = None
        return list(self._refused)

    def _poll(
        self, warp: WarpTape, at: int, region: Region, poll: Poll, place: tuple[int, int] | None
    ) -> FlagAccess | bool:
        operand = poll.operand.value if isinstance(poll.operand, Immediate) else self._uniform(warp, poll.operand.slot)
        if place is None or place[1] != poll.size or operand is None:
            ins = self._code.instructions[at]
            self._refused[f"{place_of(ins)} ({ins.opcode}): lanes of a warp poll different flags"] = None
            return True
        cell = self._cell(region, *place)
        warp.poll_begins(at, poll.loop)
        if not holds(poll.kind, self._value(cell), operand):
            return False
        del warp.polled[at]
        self._polled.setdefault(cell, at)
        return FlagAccess(Unit.FLAG_WAIT, poll.kind, cell, operand)

    @staticmethod
    def _uniform(warp: WarpTape, slot: int) -> int | None:
        value = warp.warp.registers[slot]
        if isinstance(value, np.ndarray):
            own = np.unique(value[lanes(warp.warp.current.mask)])
            return int(own[0]) if own.size == 1 else None
        return int(value)

    def _cell(self, region: Region, offset: int, size: int) -> int:
        key = region.start, offset, size
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.cells)
            self._where.append((region, offset, size))
            self.cells.append(self._value(number))
        return number

    def _value(self, cell: int) -> int:
        region, offset, size = self._where[cell]
        return int.from_bytes(region.data[offset : offset + size].tobytes(), "little")

    def _other(self, region: Region, offset: int, where: Pattern | int) -> None:
        marks = self._others.get(region.start)
        if marks is None:
            marks = self._others[region.start] = np.zeros(region.size // _WORD + 1, np.bool_)
        if isinstance(where, int):
            marks[offset // _WORD : (offset + where - 1) // _WORD + 1] = True
            return
        first = (offset + where.offsets) // _WORD
        for more in range(-(-where.size // _WORD)):
            marks[first + more] = True
