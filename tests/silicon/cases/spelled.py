"""A kernel from spellings of arithmetic instructions, and operands worth trying for their types.

A spelling is a line of ``tests/sim/alu``'s list of what ptxas accepts: registers by letter (p predicate, h 16, r 32,
d 64 bits) and number; what the first operand names is written, everything else is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.silicon.model import Case, Part, Rule

__all__ = ["Operands", "integers", "patterns", "spelled_case"]

_REGISTER = re.compile(r"%([phrd])(\d)")
_SHAPES = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
_TYPES: dict[str, Any] = {"h": np.uint16, "r": np.uint32, "d": np.uint64, "p": np.uint16}
_STORES = {"h": ("b16", 2), "r": ("b32", 4), "d": ("b64", 8), "p": ("b16", 2)}


@dataclass(frozen=True)
class Operands:
    """Registers 0 to 5 of each letter, by row (thread): arrays of shape (6, rows). Bit i of ``p`` is predicate i."""

    h: NDArray[np.uint16]
    r: NDArray[np.uint32]
    d: NDArray[np.uint64]
    p: NDArray[np.uint32]

    @property
    def rows(self) -> int:
        """Threads."""
        return int(self.p.size)


def integers(rows: int, bits: int, seed: int) -> NDArray[np.uint64]:
    """Edges of a width, small numbers (shifts, positions), and any bits."""
    random = np.random.default_rng([seed, bits])
    top = 1 << bits
    edges = [0, 1, 2, 5, 31, 32, 33, top - 1, top - 2, top >> 1, (top >> 1) - 1, (top >> 1) + 1]
    some = random.integers(0, top, rows, np.uint64, endpoint=False)
    small = random.integers(0, min(300, top), rows, np.uint64)
    which = random.integers(0, 4, rows)
    edge = np.array(edges, np.uint64)[random.integers(0, len(edges), rows)]
    chosen: NDArray[np.uint64] = np.select([which < 2, which == 2], [edge, small], some).astype(np.uint64)
    return chosen


def patterns(rows: int, kind: str, seed: int) -> NDArray[np.uint64]:
    """Zeros, subnormals, infinities, NaN and neighbours of them; numbers near 1; halves; any bits."""
    random = np.random.default_rng([seed, len(kind), ord(kind[0])])
    exponent, mantissa = _SHAPES[kind]
    bits = 1 + exponent + mantissa
    infinity = (1 << exponent) - 1 << mantissa
    one = ((1 << exponent - 1) - 1) << mantissa
    edges = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, one - 1, infinity - 1, infinity, infinity + 1]
    edges += [infinity | 1 << mantissa - 1, one + (1 << mantissa), one + (1 << mantissa - 1)]
    # Whole numbers and halves around the limits of the integer types, for conversions.
    for power in (1, 3, 7, 8, 15, 16, 31, 32, 63, 64):
        if power < 1 << exponent - 1:
            edges += [one + (power << mantissa), one + (power << mantissa) - 1, one + (power << mantissa) + 1]
    edges += [edge | 1 << bits - 1 for edge in edges]
    sign = random.integers(0, 2, rows).astype(np.uint64) << np.uint64(bits - 1)
    rest = random.integers(0, 1 << mantissa, rows, np.uint64)
    shift = random.integers(-3, 4, rows)
    near = (one + (shift << mantissa)).astype(np.uint64) + rest | sign
    round_ = near & ~np.uint64((1 << max(0, mantissa - 4)) - 1)
    anything = random.integers(0, (1 << bits) - 1, rows, np.uint64, endpoint=True)
    edge = np.array(edges, np.uint64)[random.integers(0, len(edges), rows)]
    which = random.integers(0, 8, rows)
    chosen: NDArray[np.uint64] = np.select([which < 3, which < 5, which == 5], [edge, near, round_], anything)
    return chosen.astype(np.uint64)


def operands(kind: str, rows: int, seed: int) -> Operands:
    """Operands of a source type: both halves of a 32-bit register hold patterns of a 16-bit type."""
    half = kind.removesuffix("x2")

    def sixteen(n: int) -> NDArray[np.uint64]:
        return patterns(rows, half, n) if half in ("f16", "bf16") else integers(rows, 16, n)

    def thirty_two(n: int) -> NDArray[np.uint64]:
        if half in ("f16", "bf16"):
            return sixteen(n) | sixteen(n + 50) << np.uint64(16)
        return patterns(rows, "f32", n) if kind == "f32" else integers(rows, 32, n)

    def sixty_four(n: int) -> NDArray[np.uint64]:
        return patterns(rows, "f64", n) if kind == "f64" else integers(rows, 64, n)

    numbers = [100 * seed + i for i in range(6)]
    random = np.random.default_rng([seed, rows])
    return Operands(
        np.stack([sixteen(n) for n in numbers]).astype(np.uint16),
        np.stack([thirty_two(n) for n in numbers]).astype(np.uint32),
        np.stack([sixty_four(n) for n in numbers]),
        random.integers(0, 64, rows, np.uint32),
    )


def spelled_case(
    name: str,
    spellings: Sequence[tuple[str, Rule]],
    given: Operands,
    *,
    block: int,
    before: str = "",
    after: str = "",
    chunked: bool = False,
) -> Case:
    """A case of many instructions, each of which every thread runs on its row of the operands.

    ``before`` (which may read %r4 and %r5) and ``after`` stand around each spelling; ``after`` may leave a result in
    ``%r9``, which is kept then.
    """
    rows = given.rows
    read = {"r4", "r5"} if before else set()
    counts, body, parts = dict.fromkeys("hrd", 0), [], []
    for text, rule in spellings:
        written, sources = _written_and_read(text)
        read |= sources
        body += [*before.splitlines(), f"{text};", *after.splitlines()]
        results = [*written, *(["r9"] if after else [])]
        for result in results:
            letter, number = result[0], int(result[1])
            into = "h" if letter == "p" else letter
            kind, size = _STORES[into]
            at = counts[into]
            counts[into] += 1
            if letter == "p":
                body.append(f"selp.b16 %h9, 1, 0, %p{number};")
                number = 9
            body.append(f"st.global.{kind} [%out{into}+{at * rows * size}], %{into}{number};")
            label = text if len(results) == 1 else f"{text} -> {result}"
            parts.append(Part(label, f"out_{into}", at * rows, (at + 1) * rows, rule))
    head, buffers = _loads(read, given)
    for letter, count in counts.items():
        if count:
            buffers[f"out_{letter}"] = np.zeros(count * rows, _TYPES[letter])
            head += [
                f"ld.param.b64 %out{letter}, [p{len(buffers) - 1}];",
                f"mad.wide.u32 %out{letter}, %row, {_STORES[letter][1]}, %out{letter};",
            ]
    parameters = ", ".join(f".param .b64 p{i}" for i in range(len(buffers)))
    text = "\n".join(
        [
            ".version 8.8\n.target sm_90a\n.address_size 64",
            f".visible .entry kernel({parameters})\n{{",
            ".reg .pred %p<8>;\n.reg .b16 %h<10>;\n.reg .b32 %r<10>;\n.reg .b64 %d<10>;",
            ".reg .b32 %row, %cta;\n.reg .b64 %in, %outh, %outr, %outd;",
            "mov.u32 %row, %tid.x;\nmov.u32 %cta, %ctaid.x;",
            f"mad.lo.u32 %row, %cta, {block}, %row;",
            *head,
            *body,
            "ret;\n}\n",
        ]
    )
    assert rows % block == 0
    return Case(
        name,
        text,
        buffers,
        tuple(buffer for buffer in buffers if buffer.startswith("out_")),
        grid=(rows // block, 1, 1),
        block=(block, 1, 1),
        parts=tuple(parts),
        chunked=chunked,
    )


def _written_and_read(text: str) -> tuple[list[str], set[str]]:
    rest = text.split(None, 1)[1]
    if rest.startswith("{"):
        first, rest = rest[1:].split("}", 1)
    else:
        first, _, rest = rest.partition(",")
    return ["".join(found) for found in _REGISTER.findall(first)], {"".join(f) for f in _REGISTER.findall(rest)}


def _loads(read: set[str], given: Operands) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The instructions that load the registers, and the tables they load from."""
    lines: list[str] = []
    buffers: dict[str, NDArray[Any]] = {}
    for letter in "hrd":
        numbers = sorted(int(name[1]) for name in read if name[0] == letter)
        if not numbers:
            continue
        table: NDArray[Any] = getattr(given, letter)[numbers]
        kind, size = _STORES[letter]
        lines += [f"ld.param.b64 %in, [p{len(buffers)}];", f"mad.wide.u32 %in, %row, {size}, %in;"]
        lines += [
            f"ld.global.{kind} %{letter}{number}, [%in+{at * given.rows * size}];" for at, number in enumerate(numbers)
        ]
        buffers[f"in_{letter}"] = np.ascontiguousarray(table)
    flags = sorted(int(name[1]) for name in read if name[0] == "p")
    if flags:
        lines += [f"ld.param.b64 %in, [p{len(buffers)}];", "mad.wide.u32 %in, %row, 4, %in;"]
        lines.append("ld.global.b32 %r8, [%in];")
        for number in flags:
            lines += [f"and.b32 %r9, %r8, {1 << number};", f"setp.ne.u32 %p{number}, %r9, 0;"]
        buffers["in_p"] = given.p
    return lines, buffers
