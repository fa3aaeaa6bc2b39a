"""Liveness: which registers may still be read.

Backward dataflow over blocks; sets are Python ints over the registers that some block reads before it writes them (no
other register is live where blocks meet). Sets inside a block are computed on request.

A guarded result keeps its old value where the guard is false, so it counts as read. An instruction without a rule in
``roles`` reads all registers that it names and writes none for certain.
"""

from __future__ import annotations

from functools import cached_property

from pytest_nvfp4.sim.ptx.flow import Block, Flow, Slots

_STRIDE = 32
"""Distance in instructions between two cached sets of a block."""


class Liveness:
    """Live registers of a kernel's flow graph, by slot."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._at: dict[int, frozenset[int]] = {}
        self._checkpoints: dict[int, list[frozenset[int]]] = {}

    def live_before(self, index: int) -> frozenset[int]:
        """Return the slots that may be read at or after an instruction before they are written; none at the end."""
        if index >= self.flow.end:
            return frozenset()
        found = self._at.get(index)
        if found is None:
            block = self.flow.block_of(index)
            at_entry = block.start == index
            found = self._slots(self._solved[0][block.number]) if at_entry else self._inside(block, index)
            self._at[index] = found
        return found

    def _inside(self, block: Block, index: int) -> frozenset[int]:
        slots = self.flow.slots
        checkpoints = self._checkpoints.get(block.number)
        if checkpoints is None:
            # checkpoints[k] holds before instruction stop - k * _STRIDE.
            live = set(self._slots(self._solved[1][block.number]))
            checkpoints = [frozenset(live)]
            place = block.stop
            while place - _STRIDE > block.start:
                for position in range(place - 1, place - _STRIDE - 1, -1):
                    _step(slots[position], live)
                place -= _STRIDE
                checkpoints.append(frozenset(live))
            self._checkpoints[block.number] = checkpoints
        nearest = min((block.stop - index) // _STRIDE, len(checkpoints) - 1)
        live = set(checkpoints[nearest])
        for position in range(block.stop - nearest * _STRIDE - 1, index - 1, -1):
            _step(slots[position], live)
        return frozenset(live)

    def _slots(self, bits: int) -> frozenset[int]:
        names = self._summary[0]
        found: list[int] = []
        while bits:
            low = bits & -bits
            found.append(names[low.bit_length() - 1])
            bits ^= low
        return frozenset(found)

    @cached_property
    def _summary(self) -> tuple[list[int], list[int], list[int]]:
        """Slots by bit; by block, what it reads before it writes it, and what it writes for certain."""
        instructions = self.flow.slots
        reads: list[set[int]] = []
        kills: list[set[int]] = []
        for block in self.flow.blocks:
            read: set[int] = set()
            killed: set[int] = set()
            for index in range(block.start, block.stop):
                sources, written, certain = instructions[index]
                read |= sources - killed
                if certain:
                    killed |= written
                else:
                    read |= written - killed
            reads.append(read)
            kills.append(killed)
        slots = sorted(set().union(*reads)) if reads else []
        bit = {slot: 1 << position for position, slot in enumerate(slots)}
        return (
            slots,
            [sum(bit[slot] for slot in read) for read in reads],
            [sum(bit[slot] for slot in killed if slot in bit) for killed in kills],
        )

    @cached_property
    def _solved(self) -> tuple[list[int], list[int]]:
        """Live slots at the start and at the end of each block."""
        _, reads, kills = self._summary
        blocks = self.flow.blocks
        entries = list(reads)
        leaving = [0] * len(blocks)
        reached = set(self.flow.order)
        order = [*reversed(self.flow.order)]
        order.extend(block.number for block in reversed(blocks) if block.number not in reached)
        waiting = set(order)
        while waiting:
            for number in order:
                if number not in waiting:
                    continue
                waiting.discard(number)
                out = 0
                for successor in blocks[number].successors:
                    out |= entries[successor]
                leaving[number] = out
                new = reads[number] | (out & ~kills[number])
                if new != entries[number]:
                    entries[number] = new
                    waiting.update(self.flow.predecessors[number])
        return entries, leaving


def _step(slots: Slots, live: set[int]) -> None:
    """Compute what is live before an instruction from what is live after it."""
    if slots.certain:
        live -= slots.written
    else:
        live |= slots.written
    live |= slots.read
