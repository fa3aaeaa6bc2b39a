"""What a warp polls: it need not run again before a value has changed that its loop reads.

A loop polls if it is short and has a strong load, in which a warp may wait for others (PTX ISA, "Memory Consistency
Model"). If it has no other effects, and its loads have addresses that it does not change, these say what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.lower.table import computing
from pytest_nvfp4.sim.memory.globals import GlobalMemory
from pytest_nvfp4.sim.ptx.roles import is_strong, results
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Kernel, Register

if TYPE_CHECKING:
    from pytest_nvfp4.sim.ptx.flow import Flow
    from pytest_nvfp4.sim.run.warp import Warp

_MOST = 64
"""Most instructions of a loop that polls."""
_WITHOUT_EFFECT = frozenset({"bra", "nanosleep", "fence", "membar"})
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


class Load(NamedTuple):
    """A load of a polling loop: the slot of the address, an offset, and the number of bytes."""

    slot: int
    offset: int
    size: int


Polled = list[tuple[memoryview, bytes]]
"""Places in memory, and what a warp has read there."""


def polling_loops(kernel: Kernel, flow: Flow) -> dict[int, tuple[Load, ...] | None]:
    """Return the loads of polling loops by instruction of the loop; None for a loop that depends on something else."""
    instructions = kernel.instructions
    found: dict[int, tuple[Load, ...] | None] = {}
    for ins in instructions:
        for target in flow.successors(ins.index):
            if ins.index - _MOST <= target <= ins.index:
                body = instructions[target : ins.index + 1]
                if any(each.root == "ld" and is_strong(each) for each in body):
                    # Of loops within loops, the one found first is the inner one.
                    loads = _loads(body)
                    for each in body:
                        found.setdefault(each.index, loads)
    return found


def polled(
    warp: Warp, places: Set[int], loops: Mapping[int, tuple[Load, ...] | None], memory: GlobalMemory
) -> Polled | None:
    """Return what a warp reads that spins over blocks at ``places``; None if it may depend on something else."""
    running = [group for group in warp.groups if group.waiting is None]
    known = [loops.get(place) for place in places]
    loads = known[0]
    if len(running) != 1 or loads is None or any(each is not loads for each in known):
        return None
    found: Polled = []
    for load in loads:
        value = warp.registers[load.slot]
        bases = {value} if value.__class__ is int else {int(value[lane]) for lane in lanes.lanes(running[0].mask)}
        for base in bases:
            address = base + load.offset
            region = memory.find(address)
            if region is None:
                return None
            place = region.raw[address - region.start :][: load.size]
            found.append((place, bytes(place)))
    return found


def _loads(body: Sequence[Instruction]) -> tuple[Load, ...] | None:
    written = {register.slot for ins in body for register in results(ins)}
    loads = []
    for ins in body:
        if ins.root != "ld" or not is_strong(ins):
            if ins.root in _WITHOUT_EFFECT or computing(ins):
                continue
            return None
        address = ins.operands[-1]
        if (
            not isinstance(address, Address)
            or not isinstance(address.base, Register)
            or address.base.bits != 64
            or address.base.slot in written
            or not {"shared", "local", "const", "param"}.isdisjoint(part.partition("::")[0] for part in ins.parts)
        ):
            return None
        count = next((int(part[1:]) for part in ins.parts if part in ("v2", "v4", "v8")), 1)
        size = _BYTES.get(ins.parts[-1].lstrip("bufs"))
        if size is None:
            return None
        loads.append(Load(address.base.slot, address.offset, count * size))
    return tuple(loads)
