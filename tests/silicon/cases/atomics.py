"""Atomics and reductions: every operation and type, in global and shared memory, alone and contended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.silicon.cases.spelled import integers, patterns
from tests.silicon.model import Case, case

__all__ = ["cases"]

INTEGERS = [
    *[(op, t) for op in ("add", "min", "max") for t in ("u32", "s32", "u64", "s64") if (op, t) != ("add", "s64")],
    ("inc", "u32"),
    ("dec", "u32"),
    *[(op, t) for op in ("and", "or", "xor") for t in ("b32", "b64")],
]
EXCHANGES = [("exch", "b32"), ("exch", "b64"), ("cas", "b16"), ("cas", "b32"), ("cas", "b64")]
FLOATS = [("add", kind) for kind in ("f32", "f64")]
HALVES = [("add.noftz", kind) for kind in ("f16", "f16x2", "bf16", "bf16x2")]
VECTORS = [
    *[(f"v{count}.f32.add", "f32", count) for count in (2, 4)],
    *[
        (f"v{count}.{kind}.{op}.noftz", kind, count)
        for kind, counts in (("f16", (2, 4, 8)), ("bf16", (2, 4, 8)), ("f16x2", (2, 4)), ("bf16x2", (2, 4)))
        for count in counts
        for op in ("add", "min", "max")
    ],
]
LANES = 32
SLOT = LANES * 16
"""Bytes that one operation works on."""
PREAMBLE = "mov.u32 %r0, %tid.x;\nmov.u32 %r1, smem;\n"


def size_of(kind: str) -> int:
    """Bytes."""
    if kind.endswith("x2"):
        return 4
    return int(kind[-2:]) // 8


def _letter(kind: str) -> str:
    return {2: "rs", 4: "r", 8: "rd"}[size_of(kind)]


def _bits(kind: str, seed: int) -> NDArray[np.uint8]:
    """Patterns worth trying, as bytes. No NaN: the ISA leaves open which one an atomic leaves."""
    half = kind.removesuffix("x2")
    size = size_of(half)
    real = half in ("f16", "bf16", "f32", "f64")
    raw = patterns(SLOT // size, half, seed) if real else integers(SLOT // size, 8 * size, seed)
    codes: NDArray[Any] = raw.astype(f"u{size}")
    if real:
        infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F80_0000, "f64": 0x7FF << 52}[half]
        sign = 1 << 8 * size - 1
        # Neither a NaN nor an infinity, which another infinity would make a NaN of.
        codes = np.where((codes & codes.dtype.type(sign - 1)) >= infinity, codes.dtype.type(0x3C00 + 7), codes)
    return codes.view(np.uint8)


def _table(kinds: list[tuple[str, int]], seed: int) -> NDArray[np.uint8]:
    """A slot for each: values from its first byte on."""
    table = np.zeros((len(kinds), SLOT), np.uint8)
    for row, (kind, count) in enumerate(kinds):
        table[row] = _bits(kind, seed + row)
        assert count * size_of(kind) <= SLOT // LANES
    return table.reshape(-1)


def cases() -> Iterator[Case]:
    scalars = [*INTEGERS, *EXCHANGES, *FLOATS, *HALVES]
    for space in ("global", "shared", "generic"):
        yield _alone(f"atomics.alone.{space}", space, scalars)
        yield _reductions(f"atomics.red.{space}", space, [*INTEGERS, *FLOATS, *HALVES])
        yield _contended(f"atomics.contended.{space}", space, INTEGERS)
    for opcode in ("atom", "red"):
        for half in (0, 1):
            part = VECTORS[half::2]
            yield _vectors(f"atomics.{opcode}.vectors.{half}", opcode, part)
    yield _scopes()


def _place(space: str, row: int, step: int) -> tuple[str, str]:
    """Code that puts the address of a lane's element into a register, and the address."""
    code = f"mul.lo.u32 %r10, %r0, {step}; add.u32 %r10, %r10, {row * SLOT};\n"
    if space == "shared":
        return code + "add.u32 %r10, %r10, %r1;\n", "%r10"
    if space == "generic":
        return code + "add.u32 %r10, %r10, %r1; cvt.u64.u32 %rd20, %r10; cvta.shared.u64 %rd20, %rd20;\n", "%rd20"
    return code + "cvt.u64.u32 %rd20, %r10; add.u64 %rd20, %rd20, %rd100;\n", "%rd20"


def _name(space: str) -> str:
    return "" if space == "generic" else f".{space}"


def _operand(row: int, kind: str, buffer: int, into: str, *, count: int = 1) -> str:
    size = size_of(kind)
    code = f"mul.lo.u32 %r11, %r0, {size * count}; cvt.u64.u32 %rd21, %r11; add.u64 %rd21, %rd21, %rd{buffer};\n"
    for i in range(count):
        register = f"{into}{i}" if count > 1 else into
        code += f"ld.global.b{8 * size} {register}, [%rd21+{row * SLOT + i * size}];\n"
    return code


def _keep(row: int, kind: str, register: str, buffer: int, *, count: int = 1, item: int = 0) -> str:
    size = size_of(kind)
    return (
        f"mul.lo.u32 %r11, %r0, {size * count}; cvt.u64.u32 %rd21, %r11; add.u64 %rd21, %rd21, %rd{buffer};\n"
        f"st.global.b{8 * size} [%rd21+{row * SLOT + item * size}], {register};\n"
    )


def _around(space: str, rows: int, body: str) -> str:
    """For shared memory: copy the start there, and back at the end."""
    if space == "global":
        return PREAMBLE + body
    lines = [
        "mul.wide.u32 %rd30, %r0, 16; add.u64 %rd30, %rd30, %rd100; shl.b32 %r30, %r0, 4; add.u32 %r30, %r30, %r1;"
    ]
    copies = range(0, rows * SLOT, 16 * LANES)
    values = "{%r31, %r32, %r33, %r34}"
    lines += [f"ld.global.v4.b32 {values}, [%rd30+{at}]; st.shared.v4.b32 [%r30+{at}], {values};" for at in copies]
    after = [f"ld.shared.v4.b32 {values}, [%r30+{at}]; st.global.v4.b32 [%rd30+{at}], {values};" for at in copies]
    return PREAMBLE + "\n".join([*lines, "bar.sync 0;", body, "bar.sync 0;", *after])


def _case(
    name: str, space: str, body: str, kinds: list[tuple[str, int]], *, old: bool, equal: Sequence[int] = ()
) -> Case:
    """``equal`` names the rows (of ``cas``) where the operand is what is in memory."""
    rows = len(kinds)
    buffers = {"memory": _table(kinds, 1), "operand": _table(kinds, 101), "other": _table(kinds, 201)}
    for row, (kind, _) in enumerate(kinds):
        if row in equal:  # in half of the lanes
            part = slice(row * SLOT, row * SLOT + LANES // 2 * size_of(kind))
            buffers["operand"][part] = buffers["memory"][part]
    if old:
        buffers["old"] = np.zeros(rows * SLOT, np.uint8)
    outputs = ("memory", "old") if old else ("memory",)
    return case(name, _around(space, rows, body), buffers, outputs, shared=rows * SLOT + 16)


def _alone(name: str, space: str, operations: list[tuple[str, str]]) -> Case:
    body = ""
    for row, (op, kind) in enumerate(operations):
        code, address = _place(space, row, size_of(kind))
        letter = _letter(kind)
        body += code + _operand(row, kind, 101, f"%{letter}40")
        values = f"%{letter}40"
        if op == "cas":
            body += _operand(row, kind, 102, f"%{letter}41")
            values += f", %{letter}41"
        body += f"atom{_name(space)}.{op}.{kind} %{letter}42, [{address}], {values};\n"
        body += _keep(row, kind, f"%{letter}42", 103)
    equal = [row for row, (op, _) in enumerate(operations) if op == "cas"]
    return _case(name, space, body, [(kind, 1) for _, kind in operations], old=True, equal=equal)


def _reductions(name: str, space: str, operations: list[tuple[str, str]]) -> Case:
    body = ""
    for row, (op, kind) in enumerate(operations):
        code, address = _place(space, row, size_of(kind))
        body += code + _operand(row, kind, 101, f"%{_letter(kind)}40")
        body += f"red{_name(space)}.{op}.{kind} [{address}], %{_letter(kind)}40;\n"
    return _case(name, space, body, [(kind, 1) for _, kind in operations], old=False)


def _contended(name: str, space: str, operations: list[tuple[str, str]]) -> Case:
    """All lanes on four elements. The operations give the same in any order; what each lane saw depends on it."""
    body = "and.b32 %r2, %r0, 3;\n"
    for row, (op, kind) in enumerate(operations):
        code, address = _place(space, row, size_of(kind))
        body += code.replace("mul.lo.u32 %r10, %r0", "mul.lo.u32 %r10, %r2", 1)
        letter = _letter(kind)
        if op in ("inc", "dec"):
            body += f"mov.b32 %{letter}40, 77;\n"
        else:
            body += _operand(row, kind, 101, f"%{letter}40")
        body += f"atom{_name(space)}.{op}.{kind} %{letter}42, [{address}], %{letter}40;\n"
    return _case(name, space, body, [(kind, 1) for _, kind in operations], old=False)


def _vectors(name: str, opcode: str, operations: list[tuple[str, str, int]]) -> Case:
    body = ""
    for row, (op, kind, count) in enumerate(operations):
        letter, size = _letter(kind), size_of(kind)
        code, address = _place("global", row, size * count)
        body += code + _operand(row, kind, 101, f"%{letter}4", count=count)
        values = ", ".join(f"%{letter}4{i}" for i in range(count))
        if opcode == "red":
            body += f"red.global.{op_first(op)} [{address}], {{{values}}};\n"
            continue
        results = ", ".join(f"%{letter}5{i}" for i in range(count))
        body += f"atom.global.{op_first(op)} {{{results}}}, [{address}], {{{values}}};\n"
        for i in range(count):
            body += _keep(row, kind, f"%{letter}5{i}", 103, count=count, item=i)
    return _case(name, "global", body, [(kind, count) for _, kind, count in operations], old=opcode == "atom")


def op_first(text: str) -> str:
    """``v2.f16.add.noftz`` as the ISA spells it: the operation, its modifier, the vector, the type."""
    vector, kind, *op = text.split(".")
    return ".".join([*op, vector, kind])


def _scopes() -> Case:
    """Semantics and scopes change nothing of the values."""
    spellings = [
        f"atom.{sem}.{scope}.global.add.u32"
        for sem in ("relaxed", "acquire", "release", "acq_rel")
        for scope in ("cta", "cluster", "gpu", "sys")
    ]
    body = ""
    for row, text in enumerate(spellings):
        code, address = _place("global", row, 4)
        body += code + _operand(row, "u32", 101, "%r40") + f"{text} %r42, [{address}], %r40;\n"
        body += _keep(row, "u32", "%r42", 103)
    return _case("atomics.scopes", "global", body, [("u32", 1)] * len(spellings), old=True)
