"""Roles of operands: which of an instruction's operands are results and which are sources.

The rule of an opcode is that of its longest listed prefix at dots and double colons. An opcode that is not listed might
read and write any register that it names; ``known`` reports this.

Source: PTX ISA, "Instruction Set", the syntax line of each instruction: the destination comes first; ``a|b`` is two
destinations; an instruction whose effect is on memory, a barrier or control has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Operand, Pair, Register, TensorAddress, Vector

_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})


class Rule(Enum):
    """How an opcode uses its operands. Registers inside ``[...]`` are sources whatever the rule."""

    FIRST = "the first operand is the result"
    FIRST_TWO = "the first two operands are results"
    UPDATE = "the first operand is read and written"
    NONE = "no operand is a result"
    CALL = "a first operand in parentheses is the result"
    UNKNOWN = "any operand may be read, written or both"


_FIRST = """
    abs activemask add addc alloca and atom bfe bfi bfind bmsk brev
    bar.red bar.cta.red barrier.red barrier.cta.red
    clz clusterlaunchcontrol.query_cancel cnot copysign cos createpolicy cvt cvta
    div dp2a dp4a elect ex2 fma fns getctarank isspacep istypep
    ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier.arrive mbarrier.arrive_drop
    mbarrier.pending_count mbarrier.test_wait mbarrier.try_wait min mma mov movmatrix mul mul24
    multimem.ld_reduce neg not or popc prmt rcp redux rem rsqrt sad selp set setp shf shfl shl shr
    sin slct sqrt stacksave sub subc suld suq szext tanh tcgen05.ld testp tex tld4 txq vote wmma.load wmma.mma xor
"""
_NONE = """
    applypriority bar barrier bra brkpt brx cp clusterlaunchcontrol.try_cancel discard exit fence
    griddepcontrol mbarrier.complete_tx mbarrier.expect_tx mbarrier.init mbarrier.inval membar
    multimem.cp multimem.red multimem.st nanosleep pmevent prefetch prefetchu red ret setmaxnreg
    st stackrestore stmatrix sured sust
    tcgen05.alloc tcgen05.commit tcgen05.cp tcgen05.dealloc tcgen05.fence tcgen05.mma
    tcgen05.relinquish_alloc_permit tcgen05.shift tcgen05.st tcgen05.wait
    tensormap trap wgmma.commit_group wgmma.fence wgmma.wait_group wmma.store
"""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_FIRST.split(), Rule.FIRST),
    **dict.fromkeys(_NONE.split(), Rule.NONE),
    "tcgen05.ld.red": Rule.FIRST_TWO,
    "wgmma.mma_async": Rule.UPDATE,
    "call": Rule.CALL,
}


@lru_cache(maxsize=4096)
def rule(opcode: str) -> Rule:
    """Return the rule of an opcode."""
    prefix = opcode
    while prefix:
        found = _RULES.get(prefix)
        if found is not None:
            return found
        prefix = prefix[: max(prefix.rfind("."), prefix.rfind("::"), 0)]
    return Rule.UNKNOWN


def known(ins: Instruction) -> bool:
    """Return whether the opcode has a rule. If not, ``results`` and ``sources`` are what they could be at most."""
    return rule(ins.opcode) is not Rule.UNKNOWN


def results(ins: Instruction) -> tuple[Register, ...]:
    """Return the registers that the instruction writes (where its guard holds), in operand order.

    An instruction of an unknown opcode may write any register that it names outside of brackets; all are given.
    """
    return tuple(_plain(ins.operands[: _count(ins)]))


def sources(ins: Instruction) -> tuple[Register, ...]:
    """Return the registers that the instruction reads, its guard's first; one read twice appears twice."""
    found: list[Register] = [ins.guard.register] if ins.guard is not None else []
    which = rule(ins.opcode)
    whole = which is Rule.UPDATE or which is Rule.UNKNOWN
    skip = 0 if whole else _count(ins)
    for position, operand in enumerate(ins.operands):
        if position >= skip:
            found.extend(_plain((operand,)))
        if isinstance(operand, Address | TensorAddress):
            if isinstance(operand.base, Register):
                found.append(operand.base)
            if isinstance(operand, TensorAddress):
                found.extend(_plain(operand.vectors))
    return tuple(found)


_COUNTS = {Rule.FIRST: 1, Rule.UPDATE: 1, Rule.FIRST_TWO: 2, Rule.NONE: 0}


def _count(ins: Instruction) -> int:
    """Return how many leading operands are results (an address among them is not one)."""
    which = rule(ins.opcode)
    if which is Rule.CALL:
        return 1 if ins.operands and isinstance(ins.operands[0], Vector) else 0
    return _COUNTS.get(which, len(ins.operands))


def _plain(operands: Iterable[Operand]) -> Iterable[Register]:
    """Return the registers of operands outside brackets."""
    for operand in operands:
        if isinstance(operand, Register):
            yield operand
        elif isinstance(operand, Vector):
            yield from _plain(operand.items)
        elif isinstance(operand, Pair):
            yield from _plain((operand.first, operand.second))


_PRODUCTS = {"dp4a": 4, "dp2a": 2} | dict.fromkeys(("fma", "mad", "mad24", "madc", "mul", "mul24"), 1)
_PACKED = frozenset({"f16x2", "bf16x2", "f32x2"})


def is_strong(ins: Instruction) -> bool:
    """Return whether an instruction is a strong load or store (PTX ISA, "Memory Consistency Model")."""
    return ins.root in ("ld", "st") and not _STRONG.isdisjoint(ins.parts)


def products(ins: Instruction) -> int:
    """Return the products that a lane computes; 0 if the opcode is not a scalar or packed multiplication."""
    count = _PRODUCTS.get(ins.root, 0)
    return 2 * count if count and not _PACKED.isdisjoint(ins.parts) else count
