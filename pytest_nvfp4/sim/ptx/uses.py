"""Uses of a loaded value: what may make an undefined value matter, beyond registers that only depend on it.

Arithmetic, conversions, comparisons and selections pass an undefined value on to their results, shuffles and reductions
of a warp also to those of other lanes; every other instruction that reads one uses it: stores, addresses, branches,
guards of those, votes, matrix instructions. This is a forward dataflow over all paths, so that a value without uses is
dead on each of them. Which of the uses a warp reaches with the value, a run shows (``run.following``).

Of a value that is not defined, stores to the CTA's shared memory, to local memory and to parameters of a call, and
``mma.sync``, need not be uses: they pass it on to the bytes, and to rows or columns of the product.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal, NamedTuple, TypeAlias

from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.roles import is_strong
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Operand, Pair, Register, Vector

PassingStores: TypeAlias = Literal["none", "reloaded", "all"]
"""Which stores pass a value on: those to bytes that threads load again before a copy may, or all."""

_PASS_ON = """
    abs add and bfe bfi bfind bmsk brev clz cnot copysign cos cvt cvta div dp2a dp4a ex2 fma fns isspacep lg2 lop3 mad
    mad24 max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl shr sin slct sqrt sub szext
    tanh testp xor
"""
"""Roots of instructions whose only effect is on their result registers."""
_PASSING = frozenset(_PASS_ON.split())
_EXCHANGING = frozenset({"shfl", "redux"})
_SHARED = frozenset({"shared", "shared::cta"})
_OWN = _SHARED | {"local", "param", "param::func"}


class Uses(NamedTuple):
    """Uses of the value that an instruction loads.

    Attributes:
        all: Instructions that use it.
        exchanges: Those that only pass it on to other lanes.
        stores: Those that only pass it on to bytes of the CTA or of the thread.
        touched: All that read a register that may depend on the value, or replace one.
        slots: The registers that may depend on it.
        loaded: Those that the instruction loads it to.
        ends: Instructions whose results are followed no further: packs, and ``wgmma``, of which an operand decides
            whether it reads its accumulators.
    """

    all: frozenset[int]
    exchanges: frozenset[int] = frozenset()
    stores: frozenset[int] = frozenset()
    touched: frozenset[int] = frozenset()
    slots: frozenset[int] = frozenset()
    loaded: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()

    @property
    def matters(self) -> bool:
        """Whether the value may be used."""
        return bool(self.all or self.stores)

    def joined(self, other: Uses) -> Uses:
        """Return the uses of this value or another of the same instruction."""
        return Uses(*(mine | others for mine, others in zip(self, other, strict=True)))


def uses_of(flow: Flow, at: int, registers: frozenset[int] | None = None, *, passing: PassingStores = "none") -> Uses:
    """Return the uses of the registers that an instruction writes.

    Args:
        registers: The registers in question, by their numbers in the first operand; None for all.
        passing: The stores that pass the value on, for one that is not defined.
    """
    return _uses(flow, _loaded(flow.kernel.instructions[at], registers), at, passing)


def uses_before_writes(flow: Flow, slot: int, unset: frozenset[int]) -> Uses:
    """Return the uses of the value that a register has at the start, which is not defined.

    It is not followed into a register that packs it with others, and out of one: the other part is defined, and which
    part an instruction uses is not known. Conversions and ``prmt`` that read no other register, or only ones that are
    not defined either, pass it on.

    Args:
        unset: The registers that may be read before they are written.
    """
    return _uses(flow, frozenset({slot}), None, "all", unset)


def _uses(
    flow: Flow, loaded: frozenset[int], at: int | None, passing: PassingStores, unset: frozenset[int] = frozenset()
) -> Uses:
    """Return the uses of registers behind an instruction; None for the start of the kernel."""
    instructions, slots = flow.kernel.instructions, flow.slots
    uses: set[int] = set()
    exchanges: set[int] = set()
    stores: set[int] = set()
    touched = set() if at is None else {at}
    reached = set(loaded)
    ends: set[int] = set()

    def through(start: int, stop: int, tainted: Set[int]) -> set[int]:
        tainted = set(tainted)
        for index in range(start, stop):
            read, written, certain = slots[index]
            if at is None and not tainted.isdisjoint(own := accumulators(instructions[index])):
                ends.add(index)
                touched.add(index)
                tainted -= own
            reads = not tainted.isdisjoint(read)
            if reads or not tainted.isdisjoint(written):
                touched.add(index)
            given: Set[int] = frozenset()
            if reads:
                ins = instructions[index]
                if at is None and packs(ins) and (ins.root == "mov" or not read <= tainted | unset):
                    ends.add(index)
                elif passes_on(ins):
                    given = written
                elif (received := exchanged(ins, tainted)) is not None:
                    given = received
                    exchanges.add(index)
                elif passing != "none" and multiplied(ins, tainted):
                    given = written
                    exchanges.add(index)
                elif passing != "none" and stored(ins, tainted) and (passing == "all" or _is_reloaded(flow, index)):
                    stores.add(index)
                else:
                    uses.add(index)
            if certain:
                tainted -= written
            tainted |= given
            reached.update(given)
        return tainted

    home = flow.block_of(at or 0)
    entries: dict[int, set[int]] = {}
    waiting: list[int] = []

    def enter(successors: tuple[int, ...], tainted: set[int]) -> None:
        for number in successors:
            before = entries.get(number)
            if before is None or not tainted <= before:
                entries[number] = tainted | (before or set())
                waiting.append(number)

    enter(home.successors, through(0 if at is None else at + 1, home.stop, loaded))
    while waiting:
        block = flow.blocks[waiting.pop()]
        if entries[block.number]:
            enter(block.successors, through(block.start, block.stop, entries[block.number]))
    return Uses(*map(frozenset, (uses, exchanges, stores, touched, reached, loaded, ends)))


def _loaded(ins: Instruction, registers: frozenset[int] | None) -> frozenset[int]:
    """Return the slots of the registers that an instruction loads, or of some of them by number; ``_`` has none."""
    chosen = [item for number, item in enumerate(_items(ins.operands[0])) if registers is None or number in registers]
    return frozenset(item.slot for item in chosen if isinstance(item, Register))


def accumulators(ins: Instruction) -> frozenset[int]:
    """Return the slots of the accumulators of a ``wgmma``; none of other instructions."""
    if ins.parts[:2] != ("wgmma", "mma_async"):
        return frozenset()
    return frozenset(item.slot for item in _items(ins.operands[0]) if isinstance(item, Register))


def packs(ins: Instruction) -> bool:
    """Return whether an instruction packs registers or parts of them into one, or takes them out of one.

    LLVM permutes bytes of a vector (``prmt``, ``bfi``) whose other elements nothing has written.
    """
    vectors = any(isinstance(operand, Vector) for operand in ins.operands)
    return ins.root in ("prmt", "bfi") or (ins.root in ("cvt", "mov") and (vectors or len(ins.operands) > 2))


def passes_on(ins: Instruction) -> bool:
    """Return whether an instruction does nothing but write registers; the carry is a register without a name."""
    return ins.root in _PASSING and "cc" not in ins.parts


def exchanged(ins: Instruction, tainted: Set[int]) -> Set[int] | None:
    """Return the slot in which other lanes get a value from an exchange; None if its lanes or guard depend on one."""
    if ins.root not in _EXCHANGING:
        return None
    result, _, *lanes = ins.operands
    value = result.first if isinstance(result, Pair) else result
    deciding = {operand.slot for operand in lanes if isinstance(operand, Register)}
    if ins.guard is not None:
        deciding.add(ins.guard.register.slot)
    if not tainted.isdisjoint(deciding):
        return None
    return {value.slot} if isinstance(value, Register) else frozenset()


def multiplied(ins: Instruction, tainted: Set[int]) -> bool:
    """Return whether an instruction is an ``mma.sync`` that multiplies values, or scales by them, in all lanes."""
    if ins.parts[:2] != ("mma", "sync") or not any(part.startswith("m16n8k") for part in ins.parts):
        return False
    selectors = [item for each in ins.operands[5::2] for item in _items(each) if isinstance(item, Register)]
    guards = [ins.guard.register] if ins.guard is not None else []
    sparse = any(part.startswith("sp") for part in ins.parts)
    return not sparse and tainted.isdisjoint(register.slot for register in (*selectors, *guards))


def stored(ins: Instruction, tainted: Set[int]) -> dict[int, int]:
    """Return the slots that an instruction writes to bytes of the CTA or of the thread, by the number of the element.

    There are none if its address or its guard depends on one of them.
    """
    own = ins.root == "stmatrix" or (
        ins.root == "st" and not is_strong(ins) and not _OWN.isdisjoint(ins.parts)
    )  # fmt: skip
    address, data = ins.operands[0], ins.operands[-1]
    place = [ins.guard.register] if ins.guard is not None else []
    place += [address.base] if isinstance(address, Address) and isinstance(address.base, Register) else []
    if not own or not tainted.isdisjoint(register.slot for register in place):
        return {}
    items = enumerate(_items(data))
    return {number: item.slot for number, item in items if isinstance(item, Register) and item.slot in tainted}


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _is_reloaded(flow: Flow, store: int) -> bool:
    """Return whether a thread may load memory behind a store to it, before a fence for copies and matrix units.

    So are values exchanged between threads. An epilogue has such a fence between its stores and its copy. Only threads
    load local memory.
    """
    instructions = flow.kernel.instructions
    if instructions[store].root == "st" and _SHARED.isdisjoint(instructions[store].parts):
        return True
    seen: set[int] = set()
    waiting = [store]
    while waiting:
        for at in flow.successors(waiting.pop()):
            if at in seen or at >= flow.end:
                continue
            seen.add(at)
            ins = instructions[at]
            if ins.root == "ldmatrix" or (ins.root == "ld" and not _SHARED.isdisjoint(ins.parts)):
                return True
            if ins.parts[:2] != ("fence", "proxy"):
                waiting.append(at)
    return False
