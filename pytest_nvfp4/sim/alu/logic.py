"""Bitwise logic (PTX ISA, "Logic and Shift Instructions"): and, or, xor, not, cnot, lop3.

Evidence: PTX ISA; all 256 tables of ``lop3`` are tested. Predicates are bools, on which the same operators work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product

from pytest_nvfp4.sim.alu.forms import BITS, MASKS, array, atoms, both, collapsed, inline, literal
from pytest_nvfp4.sim.alu.lift import Array
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction

FORMS = (
    "and|or|xor|not .(pred|b16|b32|b64)",
    "cnot .(b16|b32|b64)",
    "lop3 .b32",
    "lop3 .(or|and).b32",
)

_SIGN = {"and": "&", "or": "|", "xor": "^"}


def _binary(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one("pred", "b16", "b32", "b64")
    dst, first, second = read.end(3)
    sign = _SIGN[ins.root]
    if kind == "pred":
        e.assign_predicate(dst, f"{e.predicate(first)} {sign} {e.predicate(second)}")
        return
    bits = BITS[kind]
    a, b = atoms(e, bits, first, second)
    if literal(a) is not None:
        a, b = b, a
    mask = literal(b)
    text = f"({a} {sign} {b})"
    if mask is not None and literal(a) is None:
        on_arrays = f"{a} {sign} {array(e, b, bits)}"
        clears = ins.root == "and" and not mask & 31
        text = collapsed(e, text, on_arrays, a) if clears else both(text, on_arrays, a)
    e.assign(dst, text, bits)


def _not(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one("pred", "b16", "b32", "b64")
    dst, source = read.end(2)
    if kind == "pred":
        e.assign_predicate(dst, e.inverse(e.temporary(e.predicate(source))))
        return
    bits = BITS[kind]
    (a,) = atoms(e, bits, source)
    e.assign(dst, f"{a} ^ {MASKS[bits]}", bits)


def _is_zero(a: Array) -> Array:
    result: Array = (a == 0).astype(a.dtype)
    return result


def _cnot(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    bits = BITS[read.one("b16", "b32", "b64")]
    dst, source = read.end(2)
    (a,) = atoms(e, bits, source)
    e.assign(dst, inline(e, f"(0 if {a} else 1)", _is_zero, a), bits)


# ---- lop3 -----------------------------------------------------------------------------------------------------------

# PTX ISA, "lop3": immLut = F(0xF0, 0xCC, 0xAA), the function applied to the truth-table columns of a, b and c.
_A, _B, _C = 0xF0, 0xCC, 0xAA


@cache
def lut_expression(lut: int) -> str:
    """Return the shortest expression of ``&``, ``|``, ``^`` in ``{a}``, ``{b}``, ``{c}``, ``{m}`` (all ones) for a
    table.

    The table's bit ``4a + 2b + c`` is the result for the bits a, b, c (PTX ISA, "lop3"). Found by taking all functions
    of one operation, of two, and so on, until the table has come up.
    """
    return _expressions()[lut]


@cache
def _expressions() -> dict[int, str]:
    by_size: list[dict[int, str]] = [{_A: "{a}", _B: "{b}", _C: "{c}", 0xFF: "{m}", 0: "0"}]
    known = dict(by_size[0])
    while len(known) < 256:
        new: dict[int, str] = {}
        for (x, said_x), (y, said_y) in _pairs(by_size):
            for value, sign in ((x & y, "&"), (x | y, "|"), (x ^ y, "^")):
                if value not in known:
                    known[value] = new[value] = f"({said_x} {sign} {said_y})"
        by_size.append(new)
    return known


def _pairs(by_size: list[dict[int, str]]) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """Yield each pair of functions whose operations and one more make the next size, once."""
    most = len(by_size) - 1
    for size in range(most // 2 + 1):
        yield from product(by_size[size].items(), by_size[most - size].items())


def _lop3(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    combine = read.maybe("or", "and")
    read.one("b32")
    operands = read.end(6 if combine else 5)
    table = operands[4]
    if not isinstance(table, Immediate) or not 0 <= table.value <= 255:
        raise read.refuse("the table must be a literal from 0 to 255")
    if table.value in (0, 255):
        text = str(0 if table.value == 0 else MASKS[32])
    else:
        a, b, c = atoms(e, 32, *operands[1:4])
        text = lut_expression(table.value).format(a=a, b=b, c=c, m=MASKS[32])
    if not combine:
        e.assign(operands[0], text, 32)
        return
    value = e.temporary(text)
    dst, predicate = e.pair(operands[0])
    sign = "|" if combine == "or" else "&"
    e.assign(dst, value, 32)
    e.assign_predicate(predicate, f"({value} != 0) {sign} {e.predicate(operands[5])}")


LOWERINGS: Mapping[str, Lowering] = {
    "and": _binary,
    "or": _binary,
    "xor": _binary,
    "not": _not,
    "cnot": _cnot,
    "lop3": _lop3,
}
