"""What Python's stack shows of a kernel's compiled blocks: the running instruction, its lanes, and uses behind it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.ptx.roles import results
from pytest_nvfp4.sim.ptx.syntax import Kernel
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.sync.collective import receivers


class _Block(NamedTuple):
    """A compiled block.

    Attributes:
        places: By line of its function from the second one on, the instruction and the name of the mask of its lanes.
        watched: The instructions that it is compiled to watch, of all that are watched.
    """

    places: Sequence[tuple[int, str]]
    watched: frozenset[int]

    def line(self, number: int) -> tuple[int, str]:
        """Return the instruction and the name of the mask of a line."""
        return self.places[number - 2]


class Frames:
    """The compiled blocks of a kernel, by their code, and what is known of those that run.

    Args:
        kernel: The kernel.
        regions: By branch, where the instructions end that run in place under its mask; None for other branches. It is
            filled while blocks are compiled.
    """

    def __init__(self, kernel: Kernel, regions: Mapping[int, int | None]) -> None:
        self._instructions = kernel.instructions
        self._regions = regions
        self._blocks: dict[CodeType, _Block] = {}

    def add(self, code: CodeType, places: Sequence[tuple[int, str]], *, watched: frozenset[int]) -> None:
        """Add a block; see ``_Block``."""
        self._blocks[code] = _Block(places, watched)

    def place_of(self, traceback: TracebackType | None) -> tuple[int, int] | None:
        """Return the instruction in which an exception was raised, and the mask of its lanes."""
        found = None
        while traceback is not None:
            block = self._blocks.get(traceback.tb_frame.f_code)
            if block is not None:
                at, mask = block.line(traceback.tb_lineno)
                found = at, _active(traceback.tb_frame, mask)
            traceback = traceback.tb_next
        return found

    def place_now(self) -> tuple[int, int] | None:
        """Return the instruction that the caller's callers are running, and the mask of its lanes."""
        if (running := self._running()) is None:
            return None
        frame, block = running
        at, mask = block.line(frame.f_lineno)
        return at, _active(frame, mask)

    def depth_now(self) -> int:
        """Return how many instructions of the running block precede the current one."""
        if (running := self._running()) is None:
            return 0
        frame, block = running
        return max(0, block.line(frame.f_lineno)[0] - block.places[0][0])

    def lanes_behind(self, uses: Uses, mask: int, *, certain: bool = False) -> int | None:
        """Return the lanes to follow for what the current instruction loads in ``mask``; None if the block may use it.

        These are ``mask`` and the lanes to which the rest of the running block passes the value on. Uses that the block
        is compiled to watch are not counted, nor those whose guard, or branch around them, is known to keep the lanes
        from them; with ``certain`` neither those whose guard or branch is not known yet.
        """
        if (running := self._running()) is None:
            return None
        frame, block = running
        at, _ = block.line(frame.f_lineno)
        unseen = uses.watched - block.watched
        followed = mask
        written: set[int] = set()
        regions = [(len(self._instructions), mask, False)]
        for place in sorted({place for place, _ in block.places[frame.f_lineno - 2 :] if place > at}):
            while place >= regions[-1][0]:
                regions.pop()
            _, inside, doubtful = regions[-1]
            instruction = self._instructions[place]
            guard = instruction.guard
            held = None
            if guard is not None and guard.register.slot not in written:
                held = frame.f_locals.get(f"v{guard.register.slot}")
            taken = inside
            if guard is not None and held is not None and place not in uses.deciding:
                taken = (lanes.guard_mask_not if guard.negated else lanes.guard_mask)(held, inside)
            unknown = doubtful or (guard is not None and held is None)
            if place in uses.exchanges and len(regions) == 1 and guard is None:
                inside = taken = inside | receivers(instruction, inside)
                regions[0] = (regions[0][0], inside, False)
                if place in unseen:
                    followed |= inside
            elif place in unseen and (inside if instruction.root == "bra" else taken) and not (certain and unknown):
                return None
            if (stop := self._regions.get(place)) is not None:
                regions.append((stop, inside & ~taken if held is not None else inside, unknown))
            written.update(register.slot for register in results(instruction))
        return followed

    def used_now(self, uses: Uses) -> bool:
        """Return whether the running block, up to its current instruction, contains a use."""
        if (running := self._running()) is None:
            return True
        frame, block = running
        return any(place in uses.all for place, _ in block.places[: frame.f_lineno - 1])

    def in_gang(self) -> bool:
        """Return whether the running block is of a gang, or none is known to run."""
        running = self._running()
        return running is None or "G" in running[0].f_locals

    def _running(self) -> tuple[FrameType, _Block] | None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if (block := self._blocks.get(frame.f_code)) is not None:
                return frame, block
            frame = frame.f_back
        return None


def _active(frame: FrameType, mask: str) -> int:
    """Return the lanes for which a block of a warp runs, or a block of a gang for one of its warps."""
    names = frame.f_locals
    return int(names["G"].part if "G" in names else names.get(mask, names["m"]))
