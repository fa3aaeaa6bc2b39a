"""A right kernel in numpy, as replaceable steps: a wrong kernel replaces one of them.

It reads what a kernel reads (packed operands, the *reordered* scale factors and the memory behind them), accumulates in
fp32 as a tensor core may (64 products an instruction, the sum rounded once), converts to fp16 once and stores the rows
that exist. It is a model for scoring inputs, not the oracle: it rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pytest_nvfp4.numerics import fp16, matmul, scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, Float32, Float64, HalfBits, Int64, ceil_div
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.numerics.packing import unpack
from pytest_nvfp4.numerics.quantise import BLOCK

Operand: TypeAlias = Literal["a", "b"]
Kernel: TypeAlias = Callable[[ProblemInput, int], HalfBits]
"""A kernel: from a problem's inputs and a group's index to that group's C buffer, guard rows included, as fp16 bits."""

INSTRUCTION_K = 64
"""Products of one output that one block-scaled MMA instruction sums (kind::mxf4nvf4, K = 64)."""
TILE = 128
"""Rows and columns of an output tile."""
TILE_K = 256
"""Elements of k that one stage of a kernel's pipeline holds."""

Elements: TypeAlias = Callable[[Bytes], Float64]
"""Packed ``[rows, k // 2]`` to values ``[rows, k]``."""
Scales: TypeAlias = Callable[[ProblemInput, int, Operand], Float64]
"""The scale factors ``[rows, blocks]`` of an operand of a group."""
Product: TypeAlias = Callable[[Float64, Float64], Float32]
"""Scaled operands ``[m, k]`` and ``[n, k]`` to accumulators ``[m, n]``."""
Convert: TypeAlias = Callable[[Float32], HalfBits]
"""Accumulators to fp16 bits."""
Store: TypeAlias = Callable[[HalfBits, GroupInput], HalfBits]
"""Outputs ``[m, n]`` into a poisoned C buffer."""


def elements(packed: Bytes) -> Float64:
    """Decode packed E2M1 operands."""
    return E2M1.decode(unpack(packed)).astype(np.float64)


def read_scales(
    inputs: GroupInput, operand: Operand, offsets: Callable[[Int64, Int64, int], Int64] | None = None
) -> Bytes:
    """Read scale bytes ``[rows, blocks]`` of an operand at ``offsets(row, block, blocks)`` of the flat layout.

    ``row`` and ``block`` are index grids. The guard lies behind the layout; offsets past it wrap around, since what is
    that far behind is unknown.
    """
    plain, flat = (
        (inputs.sfa, inputs.sfa_flat(guarded=True)) if operand == "a" else (inputs.sfb, inputs.sfb_flat(guarded=True))
    )
    rows, blocks = plain.shape
    row, block = np.arange(rows)[:, None], np.arange(blocks)[None, :]
    at = offsets(row, block, blocks) if offsets else scale_layout.offset(row, block, blocks=blocks)
    return np.take(flat, at % flat.size)


def scales(problem: ProblemInput, index: int, operand: Operand) -> Float64:
    """Decode the scale factors as the hardware reads them."""
    return E4M3.decode(read_scales(problem.groups[index], operand)).astype(np.float64)


def product(a: Float64, b: Float64) -> Float32:
    """Accumulate in fp32 over instructions of 64 products, each sum rounded once."""
    return accumulate(a, b, lambda total: total.astype(np.float32).astype(np.float64))


def accumulate(a: Float64, b: Float64, rounding: Callable[[Float64], Float64], *, step: int = INSTRUCTION_K) -> Float32:
    """Accumulate over steps of k and apply ``rounding`` to the running sum after each."""
    total = np.zeros((a.shape[0], b.shape[0]))
    for start in range(0, a.shape[1], step):
        total = rounding(total + matmul.product(a[:, start : start + step], b[:, start : start + step]))
    return total.astype(np.float32)


def convert(accumulators: Float32) -> HalfBits:
    """Convert to fp16, nearest even, overflow to infinity, NaN as NVIDIA's ``cvt`` gives it."""
    bits = fp16.round_nearest(accumulators).view(np.uint16).copy()
    bits[np.isnan(accumulators)] = fp16.CANONICAL_NAN
    return bits


def store(out: HalfBits, inputs: GroupInput) -> HalfBits:
    """Store all rows that exist, and only those."""
    buffer = inputs.c_buffer()
    inputs.split_c(buffer)[1][:] = out
    return buffer


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a kernel; the defaults are right."""

    elements_a: Elements = elements
    elements_b: Elements = elements
    scales: Scales = scales
    product: Product = product
    convert: Convert = convert
    store: Store = store

    def operands(self, problem: ProblemInput, index: int) -> tuple[Float64, Float64]:
        """Return the scaled operands ``[m, k]`` and ``[n, k]`` of a group."""
        inputs = problem.groups[index]
        with np.errstate(invalid="ignore"):
            return (
                _scaled(self.elements_a(inputs.a), self.scales(problem, index, "a")),
                _scaled(self.elements_b(inputs.b), self.scales(problem, index, "b")),
            )

    def accumulators(self, problem: ProblemInput, index: int) -> Float32:
        """Return the fp32 accumulators ``[m, n]`` of a group."""
        a, b = self.operands(problem, index)
        with np.errstate(invalid="ignore", over="ignore"):
            return self.product(a, b)

    def __call__(self, problem: ProblemInput, index: int) -> HalfBits:
        """Run the kernel on a group: a :data:`Kernel`."""
        return self.store(self.convert(self.accumulators(problem, index)), problem.groups[index])


RIGHT = Steps()
"""The right kernel."""


def tiles(m: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Yield row and column spans of the 128x128 output tiles, columns fastest."""
    for row in range(ceil_div(m, TILE)):
        for column in range(ceil_div(n, TILE)):
            yield (
                slice(row * TILE, min(m, row * TILE + TILE)),
                slice(column * TILE, min(n, column * TILE + TILE)),
            )


def _scaled(values: Float64, factors: Float64) -> Float64:
    return values * np.repeat(factors, BLOCK, axis=1)[:, : values.shape[1]]
