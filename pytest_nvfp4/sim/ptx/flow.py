"""Control flow of a kernel: basic blocks, their order, and where diverged lanes reconverge.

The place after the last instruction, ``end``, stands for the end of a thread: ``ret``, ``exit`` and running off the end
of the body go there. ``trap`` and calls of functions that do not return go nowhere.

Source: PTX ISA, "Control Flow Instructions".
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Label, Symbol, Vector

_ENDS = frozenset(["ret", "exit"])
_BRANCHES = frozenset(["bra", "brx", "ret", "exit", "trap"])


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``start`` to ``stop - 1``, entered only at the first and left only at the last.

    ``successors`` are block numbers; ``ends`` is True if a thread may end here.
    """

    number: int
    start: int
    stop: int
    successors: tuple[int, ...]
    ends: bool


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
            following = self.successors(stop - 1)
            found.append(
                Block(
                    position,
                    start,
                    stop,
                    tuple(number[index] for index in following if index < self.end),
                    self.end in following,
                )
            )
        return tuple(found)

    def block_of(self, index: int) -> Block:
        """Return the block of an instruction."""
        return self.blocks[bisect_right(self._starts, index) - 1]

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
        return tuple(reversed(_postorder([0], [block.successors for block in self.blocks])))

    def reachable(self, index: int) -> bool:
        """Return whether an instruction can be reached from the entry."""
        return self.block_of(index).number in self._reached

    def postdominator(self, index: int) -> int:
        """Return the first place after an instruction that every ending thread passes: its immediate postdominator.

        ``end`` if there is none before the end. Ways that never end (``trap``, a loop without exit) do not count; where
        no way ends, the postdominator is among ways to a trap, or among those to the last block of the loop.
        """
        block = self.block_of(index)
        if index + 1 < block.stop:
            return index + 1
        number = self._postdominators[block.number]
        return self.end if number < 0 else self.blocks[number].start

    @cached_property
    def _starts(self) -> list[int]:
        return sorted(self.leaders)

    @cached_property
    def _reached(self) -> frozenset[int]:
        return frozenset(self.order)

    def _leaves(self, call: Instruction) -> bool:
        """Return whether a call never returns."""
        callee = next((operand for operand in call.operands if isinstance(operand, Symbol)), None)
        return callee is not None and callee.name in self.kernel.noreturn

    @cached_property
    def _postdominators(self) -> tuple[int, ...]:
        """Immediate postdominator of each block; -1 for the end."""
        count = len(self.blocks)
        found = [-1] * count
        done: set[int] = set()
        exits = {block.number for block in self.blocks if block.ends}
        while True:
            region = self._backwards(exits, done)
            _immediate(self, region, exits, found)
            done |= region
            left = [number for number in range(count) if number not in done]
            if not left:
                return tuple(found)
            # The remaining blocks never end: trapping paths first, then loops, each left by its last block.
            traps = {number for number in left if not self.blocks[number].successors}
            exits = traps or {self._last_of_loop(left[0])}

    def _backwards(self, exits: set[int], done: set[int]) -> set[int]:
        """Return the blocks from which one of ``exits`` can be reached, without those in ``done``."""
        found = set(exits) - done
        work = list(found)
        while work:
            for number in self.predecessors[work.pop()]:
                if number not in found and number not in done:
                    found.add(number)
                    work.append(number)
        return found

    def _last_of_loop(self, number: int) -> int:
        """Return the last block in the code of an endless loop that can be reached from a block."""
        successors = [block.successors for block in self.blocks]
        while True:
            loop = set(_postorder([number], successors))
            strays = loop - set(_postorder([number], list(self.predecessors)))
            if not strays:
                return max(loop)
            number = min(strays)


def _postorder(roots: list[int], successors: list[tuple[int, ...]]) -> list[int]:
    """Return the depth-first postorder, without recursion."""
    seen = set(roots)
    found: list[int] = []
    stack = [(root, iter(successors[root])) for root in reversed(roots)]
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


def _immediate(flow: Flow, region: set[int], exits: set[int], found: list[int]) -> None:
    """Compute the immediate postdominators of a region (Cooper, Harvey and Kennedy, on the reversed graph)."""
    if not region:
        return
    end = -1
    backwards = [tuple(number for number in numbers if number in region) for numbers in flow.predecessors]
    order = [end, *reversed(_postorder(sorted(exits & region), backwards))]
    rank = {number: position for position, number in enumerate(order)}
    parent: dict[int, int] = {end: end}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            new: int | None = None
            following = [other for other in flow.blocks[number].successors if other in region]
            if number in exits:
                following.append(end)
            for other in following:
                if other in parent:
                    new = other if new is None else _meet(new, other, parent, rank)
            assert new is not None
            if parent.get(number) != new:
                parent[number] = new
                changed = True
    for number in region:
        found[number] = parent[number]


def _meet(left: int, right: int, parent: dict[int, int], rank: dict[int, int]) -> int:
    """Return the closest common ancestor in the tree so far."""
    while left != right:
        while rank[left] > rank[right]:
            left = parent[left]
        while rank[right] > rank[left]:
            right = parent[right]
    return left
