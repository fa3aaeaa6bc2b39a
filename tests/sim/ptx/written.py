"""Operands as PTX, and the registers that they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_nvfp4.sim.ptx.syntax import (
    Address,
    Immediate,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)


def registers(operands: Iterable[object]) -> Iterator[int]:
    """All registers of operands, by a walk that knows no opcode."""
    for operand in operands:
        match operand:
            case Register():
                yield operand.slot
            case Vector():
                yield from registers(operand.items)
            case Pair():
                yield from registers((operand.first, operand.second))
            case Address():
                yield from registers((operand.base,))
            case TensorAddress():
                yield from registers((operand.base, *operand.vectors))


def written(operand: object) -> str:
    """An operand as PTX."""
    match operand:
        case Register():
            return "!" * operand.negated + operand.name
        case Immediate():
            return (
                str(operand.value)
                if not operand.bits
                else f"0{'f' if operand.bits == 32 else 'd'}" + (f"{operand.value:0{operand.bits // 4}x}")
            )
        case Special():
            return "%" + operand.name
        case Symbol():
            return operand.name + (f"+{operand.offset}" if operand.offset else "")
        case Sink():
            return "_"
        case Address():
            return f"[{written(operand.base)}" + (f"+{operand.offset}]" if operand.offset else "]")
        case Vector():
            return "{" + ", ".join(map(written, operand.items)) + "}"
        case Pair():
            return f"{written(operand.first)}|{written(operand.second)}"
    raise AssertionError(operand)
