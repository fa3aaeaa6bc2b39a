"""Uses of a loaded value: what may make an undefined value matter, beyond registers that only depend on it.

Arithmetic, conversions, comparisons and selections pass an undefined value on to their results, shuffles and reductions
of a warp also to those of other lanes; every other instruction that reads one uses it: stores, addresses, branches,
guards of those, votes, matrix instructions. This is a forward dataflow over all paths, so that a value without uses is
dead on each of them.

Of a value that is not defined, stores to the CTA's shared memory are no uses: they pass it on to the bytes.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.roles import is_strong
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Pair, Register, Vector

_PASS_ON = """
    abs add and bfe bfi bfind bmsk brev clz cnot copysign cos cvt cvta div dp2a dp4a ex2 fma fns isspacep lg2 lop3 mad
    mad24 max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl shr sin slct sqrt sub szext
    tanh testp xor
"""
"""Roots of instructions whose only effect is on their result registers."""
_PASSING = frozenset(_PASS_ON.split())
_EXCHANGING = frozenset({"shfl", "redux"})


class Uses(NamedTuple):
    """Uses of the value that an instruction loads.

    Attributes:
        guarded: Instructions that use the value in the lanes that execute them.
        deciding: Those whose guard may depend on it, which use it in the lanes that they skip, too.
        exchanges: Those that only pass it on to other lanes.
        carried: Whether something that depends on the value may be live where the instruction loads the next one.
        stores: Those that only pass it on to the CTA's shared memory, of a value that is not defined, each with the
            number of the element that depends on the value.
    """

    guarded: frozenset[int]
    deciding: frozenset[int]
    exchanges: frozenset[int]
    carried: bool
    stores: frozenset[tuple[int, int]] = frozenset()

    @property
    def all(self) -> frozenset[int]:
        """All instructions that use it."""
        return self.guarded | self.deciding

    @property
    def watched(self) -> frozenset[int]:
        """All instructions that use it or pass it on to other lanes."""
        return self.all | self.exchanges if self.all or self.stores else frozenset()

    def joined(self, other: Uses) -> Uses:
        """Return the uses of this value or another of the same instruction."""
        return Uses(
            self.guarded | other.guarded,
            self.deciding | other.deciding,
            self.exchanges | other.exchanges,
            self.carried or other.carried,
            self.stores | other.stores,
        )


def uses_of(flow: Flow, at: int, registers: frozenset[int] | None = None, *, undefined: bool = False) -> Uses:
    """Return the uses of the registers that an instruction writes.

    Args:
        registers: The registers in question, by their numbers in the first operand; None for all.
        undefined: Whether the value is not defined.
    """
    instructions, slots = flow.kernel.instructions, flow.slots
    written_here = slots[at].written
    loaded = written_here if registers is None else _slots(instructions[at], registers)
    guarded: set[int] = set()
    deciding: set[int] = set()
    exchanges: set[int] = set()
    stores: set[tuple[int, int]] = set()
    carried = False

    def through(start: int, stop: int, tainted: Set[int]) -> set[int]:
        nonlocal carried
        tainted = set(tainted)
        for index in range(start, stop):
            if index == at:
                carried = carried or bool(tainted - written_here)
            read, written, certain = slots[index]
            if not read.isdisjoint(tainted):
                ins = instructions[index]
                if _passes_on(ins):
                    tainted |= written
                    continue
                if ins.root in _EXCHANGING and (given := _given(ins, tainted)) is not None:
                    exchanges.add(index)
                    tainted |= given
                    continue
                if undefined and (elements := _stored(ins, tainted)):
                    stores.update((index, element) for element in elements)
                    continue
                decides = ins.guard is not None and ins.guard.register.slot in tainted
                (deciding if decides else guarded).add(index)
            if certain:
                tainted -= written
        return tainted

    home = flow.block_of(at)
    entries: dict[int, set[int]] = {}
    waiting: list[int] = []

    def enter(successors: tuple[int, ...], tainted: set[int]) -> None:
        for number in successors:
            before = entries.get(number)
            if before is None or not tainted <= before:
                entries[number] = tainted | (before or set())
                waiting.append(number)

    enter(home.successors, through(at + 1, home.stop, loaded))
    while waiting:
        block = flow.blocks[waiting.pop()]
        if entries[block.number]:
            enter(block.successors, through(block.start, block.stop, entries[block.number]))
    return Uses(frozenset(guarded), frozenset(deciding), frozenset(exchanges), carried, frozenset(stores))


def _slots(ins: Instruction, registers: frozenset[int]) -> set[int]:
    """Return the slots of some of the registers in the first operand, by number; ``_`` has none."""
    operand = ins.operands[0]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return {item.slot for number, item in enumerate(items) if number in registers and isinstance(item, Register)}


def _given(ins: Instruction, tainted: Set[int]) -> set[int] | None:
    """Return the slot in which other lanes get a value from an exchange; None if its lanes or guard depend on one."""
    result, _, *lanes = ins.operands
    value = result.first if isinstance(result, Pair) else result
    deciding = {operand.slot for operand in lanes if isinstance(operand, Register)}
    if ins.guard is not None:
        deciding.add(ins.guard.register.slot)
    if not tainted.isdisjoint(deciding):
        return None
    return {value.slot} if isinstance(value, Register) else set()


def _stored(ins: Instruction, tainted: Set[int]) -> list[int]:
    """Return the elements that an instruction writes to the CTA's shared memory; none if its place or guard is one."""
    own = ins.root == "stmatrix" or (
        ins.root == "st" and not is_strong(ins) and not {"shared", "shared::cta"}.isdisjoint(ins.parts)
    )
    address, data = ins.operands[0], ins.operands[-1]
    place = [ins.guard.register] if ins.guard is not None else []
    place += [address.base] if isinstance(address, Address) and isinstance(address.base, Register) else []
    if not own or not tainted.isdisjoint(register.slot for register in place):
        return []
    items = data.items if isinstance(data, Vector) else (data,)
    return [number for number, item in enumerate(items) if isinstance(item, Register) and item.slot in tainted]


def _passes_on(ins: Instruction) -> bool:
    """Return whether an instruction does nothing but write registers; the carry is a register without a name."""
    return ins.root in _PASSING and "cc" not in ins.parts
