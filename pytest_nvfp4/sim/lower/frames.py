"""What Python's stack shows of a kernel's compiled blocks: the running instruction, its lanes, and uses behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.ptx.roles import known, results, sources
from pytest_nvfp4.sim.ptx.syntax import Kernel, Register, Vector
from pytest_nvfp4.sim.ptx.uses import Uses, passes_on
from pytest_nvfp4.sim.run.following import Dependents, Execution, RestOfBlock, depends, passed_on


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
        compile: Returns the function that computes a register by some instructions from a register file, for a warp
            and a mask.
    """

    def __init__(
        self,
        kernel: Kernel,
        regions: Mapping[int, int | None],
        compile: Callable[[tuple[int, ...], int], Callable[[Mapping[int, Any], Any, int], Any]],
    ) -> None:
        self._instructions = kernel.instructions
        self._regions = regions
        self._compile = compile
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

    def behind(self, uses: Uses, dependents: Dependents, *, certain: bool = False) -> tuple[bool, RestOfBlock | None]:
        """Follow the value that the current instruction loads to the end of the running block.

        That is for the block's own calls if it is compiled to watch all that touches the value.

        Args:
            uses: The uses of the value.
            dependents: The registers that hold it, then those that depend on it at the end of the block.
            certain: Whether uses do not count whose guard, or branch around them, is not known yet.

        Returns:
            Whether the block uses the value, and what is known of the block; None if it watches.
        """
        if (running := self._running()) is None:
            return True, None
        frame, block = running
        if uses.touched <= block.watched:
            return False, None
        at, name = block.line(frame.f_lineno)
        rest = RestOfBlock(frame, {})
        regions: list[tuple[int, int, bool]] = []
        masks = dict(reversed(block.places[frame.f_lineno - 2 :]))  # without what is executed with another instruction
        for place in range(at + 1, max(masks) + 1):
            name = masks.get(place, name)
            while regions and place >= regions[-1][0]:
                regions.pop()
            inside, doubtful = regions[-1][1:] if regions else (_active(frame, name), False)
            instruction = self._instructions[place]
            guard = instruction.guard
            certainly = guard is None
            may = surely = inside
            if guard is not None:
                held = self._value(frame, block, place, guard.register.slot)
                certainly = held is not None
                if held is not None:
                    may = surely = (lanes.guard_mask_not if guard.negated else lanes.guard_mask)(held, inside)
            unknown = doubtful or not certainly
            if place in uses.touched:
                true = false = may
                if instruction.root == "selp" and isinstance(predicate := instruction.operands[3], Register):
                    held = self._value(frame, block, place, predicate.slot)
                    if held is not None:
                        true, false = lanes.guard_mask(held, may), lanes.guard_mask_not(held, may)
                if place in uses.stores:
                    rest.stores[place] = passed_on(instruction, dependents)
                executing = Execution(inside, may, 0 if unknown else surely, true, false)
                if depends(instruction, dependents, uses, executing) and not (certain and unknown):
                    return True, None
            if (stop := self._regions.get(place)) is not None:
                regions.append((stop, inside & ~may if certainly else inside, unknown))
        return False, rest

    def _value(self, frame: FrameType, block: _Block, place: int, slot: int) -> Any:
        """Return the value that a register will have before an instruction of the running block; None: not known.

        It is known if arithmetic makes it, in the rest of the block, of what the block has in registers now.
        """
        at, mask = block.line(frame.f_lineno)
        made: list[int] = []
        needed = {slot}
        for index in range(place - 1, at, -1):
            ins = self._instructions[index]
            written = {register.slot for register in results(ins)} & needed
            if not written:
                continue
            if (
                not passes_on(ins)
                or not known(ins)
                or any(self._skips(branch, index, place) for branch in range(at + 1, index))
            ):
                return None
            made.append(index)
            if ins.guard is None:
                needed -= written
            needed.update(register.slot for register in sources(ins))
        values = {each: self._held(frame, block, each) for each in needed}
        if any(value is None for value in values.values()):
            return None
        if not made:
            return values[slot]
        gang = frame.f_locals.get("G")
        warp = frame.f_locals["w"] if gang is None else gang.scheduler.running
        return self._compile(tuple(reversed(made)), slot)(values, warp, _active(frame, mask))

    def _skips(self, branch: int, index: int, place: int) -> bool:
        """Return whether lanes may take a branch around an instruction and meet the others before a place."""
        stop = self._regions.get(branch)
        return stop is not None and index < stop <= place

    def _held(self, frame: FrameType, block: _Block, slot: int) -> Any:
        """Return the value of a register in the running block, for the running warp; None if it is not known."""
        start, at = block.places[0][0], block.line(frame.f_lineno)[0]
        names = frame.f_locals
        value = names.get(f"v{slot}")
        writers = [ins for ins in self._instructions[start : at + 1] if any(r.slot == slot for r in results(ins))]
        if writers:
            # Packs and products may be made later than their instruction says (``lower.packs``, ``lower.batches``).
            last = writers[-1]
            late = any(isinstance(operand, Vector) for operand in last.operands) or last.parts[-1].startswith(
                ("f", "bf")
            )
            if late or last.index == at:
                return None
        elif value is None:
            value = names["R"][slot]
        gang = names.get("G")
        if gang is None or value.__class__ is not np.ndarray:
            return value if isinstance(value, (int, np.ndarray)) else None
        first = 32 * gang.warps.index(gang.scheduler.running)
        return value[first : first + 32]

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
