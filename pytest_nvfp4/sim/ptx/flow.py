"""Control flow of a kernel: basic blocks and their order.

The place after the last instruction, ``end``, stands for the end of a thread: ``ret``, ``exit`` and running off the end
of the body go there. ``trap`` and calls of functions that do not return go nowhere.

Source: PTX ISA, "Control Flow Instructions".
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pytest_nvfp4.sim.ptx import roles
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Label, Symbol, Vector

_ENDS = frozenset(["ret", "exit"])
_BRANCHES = frozenset(["bra", "brx", "ret", "exit", "trap"])


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``start`` to ``stop - 1``, entered only at the first and left only at the last.

    ``successors`` are block numbers.
    """

    number: int
    start: int
    stop: int
    successors: tuple[int, ...]


class Slots(NamedTuple):
    """Slots of the registers of an instruction.

    Attributes:
        read: Those that it reads, its guard's among them.
        written: Those that it writes, or may write.
        certain: Whether it writes all of them in every lane that executes it.
    """

    read: frozenset[int]
    written: frozenset[int]
    certain: bool


class Flow:
    """Flow graph of a kernel, computed lazily."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.end = len(kernel.instructions)

    def successors(self, index: int) -> tuple[int, ...]:
        """Return the instructions that may follow: the next one, then branch targets; ``end`` if a thread may end."""
        ins = self.kernel.instructions[index]
        root = ins.parts[0]
        if root not in _BRANCHES and not (root == "call" and self._leaves(ins)):
            return (index + 1,)
        found: list[int] = []
        if ins.guard is not None:
            found.append(index + 1)
        if root in _ENDS:
            found.append(self.end)
        for operand in ins.operands if root in ("bra", "brx") else ():
            labels = operand.items if isinstance(operand, Vector) else (operand,)
            found.extend(label.index for label in labels if isinstance(label, Label))
        return tuple(dict.fromkeys(found))

    @cached_property
    def leaders(self) -> frozenset[int]:
        """First instructions of blocks: the entry, branch targets, and what follows a branch or an end."""
        found = {0}
        for index, ins in enumerate(self.kernel.instructions):
            if ins.parts[0] in _BRANCHES or (ins.parts[0] == "call" and self._leaves(ins)):
                found.add(index + 1)
                found.update(self.successors(index))
        return frozenset(index for index in found if index < self.end)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks in the order of the code."""
        starts = self._starts
        number = {start: position for position, start in enumerate(starts)}
        found: list[Block] = []
        for position, start in enumerate(starts):
            stop = starts[position + 1] if position + 1 < len(starts) else self.end
            following = tuple(number[index] for index in self.successors(stop - 1) if index < self.end)
            found.append(Block(position, start, stop, following))
        return tuple(found)

    def block_of(self, index: int) -> Block:
        """Return the block of an instruction."""
        return self.blocks[bisect_right(self._starts, index) - 1]

    @cached_property
    def slots(self) -> tuple[Slots, ...]:
        """Slots of the registers of each instruction."""
        return tuple(
            Slots(
                frozenset(register.slot for register in roles.sources(ins)),
                frozenset(register.slot for register in roles.results(ins)),
                ins.guard is None and roles.known(ins),
            )
            for ins in self.kernel.instructions
        )

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Predecessors of each block, as block numbers."""
        found: list[list[int]] = [[] for _ in self.blocks]
        for block in self.blocks:
            for successor in block.successors:
                found[successor].append(block.number)
        return tuple(tuple(numbers) for numbers in found)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Blocks that can be reached from the entry, in reverse postorder."""
        if not self.blocks:
            return ()
        return tuple(reversed(_postorder([block.successors for block in self.blocks])))

    @cached_property
    def _starts(self) -> list[int]:
        return sorted(self.leaders)

    def _leaves(self, call: Instruction) -> bool:
        """Return whether a call never returns."""
        callee = next((operand for operand in call.operands if isinstance(operand, Symbol)), None)
        return callee is not None and callee.name in self.kernel.noreturn


def _postorder(successors: list[tuple[int, ...]]) -> list[int]:
    """Return the depth-first postorder from block 0, without recursion."""
    seen = {0}
    found: list[int] = []
    stack = [(0, iter(successors[0]))]
    while stack:
        number, rest = stack[-1]
        for successor in rest:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(successors[successor])))
                break
        else:
            found.append(number)
            stack.pop()
    return found
