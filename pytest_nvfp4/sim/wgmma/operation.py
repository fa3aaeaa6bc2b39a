"""One ``wgmma.mma_async``: its form in the code, and its execution by a warpgroup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.wgmma.descriptor import footprint, read_matrix
from pytest_nvfp4.sim.wgmma.formats import OperandType
from pytest_nvfp4.sim.wgmma.fragments import a_matrix
from pytest_nvfp4.sim.wgmma.product import AccumulatorType, Product


@dataclass(frozen=True, slots=True, eq=False)
class WgmmaForm:
    """One ``wgmma.mma_async`` of the code: everything that does not depend on its execution.

    Attributes:
        name: Opcode.
        at: Index in the kernel.
        n, k: Columns of the accumulator and depth of the product, in elements.
        a, b, accumulator: Element types.
        from_registers: Whether A lies in registers.
        a_transposed, b_transposed: Whether the operand in shared memory is M- or N-major.
        negate: Whether the product of imm-scale-a and imm-scale-b is -1.
        saturate: Whether integers saturate (.satfinite).
        copied: Whether the code copies accumulators to other registers, which must keep their values.
        unfenced: An operand register written with no fence before the instruction, or "".
    """

    name: str
    at: int
    n: int
    k: int
    a: OperandType
    b: OperandType
    accumulator: AccumulatorType
    from_registers: bool
    a_transposed: bool = False
    b_transposed: bool = False
    negate: bool = False
    saturate: bool = False
    copied: bool = True
    unfenced: str = ""

    @property
    def row_bytes(self) -> int:
        """Bytes of K in a row of A or B: 32 for every type."""
        return self.k * self.a.bits // 8


class WgmmaOperation:
    """One execution by a warpgroup. Operands are stored as bytes until a register of the accumulator is read.

    Attributes:
        number: Number of the operation in its warpgroup.
        arrived: Bit mask of the four warps that have issued it.
        fragments: Registers of A by warp, if A is in registers.
        a_units, b_units: 16-byte units of shared memory (index / 16) that it reads; None if A is in registers.
        products: The product of the run of operations that ends here, with the number of its first.
    """

    __slots__ = (
        "a", "a_bits", "a_undefined", "a_units", "arrived", "b", "b_bits", "b_undefined", "b_units", "form",
        "fragments", "number", "products", "scale",
    )  # fmt: skip

    def __init__(
        self, form: WgmmaForm, number: int, a_bits: int | None, b_bits: int, *, scale: bool, shared: SharedMemory
    ) -> None:
        """Check the descriptors. Raises as ``footprint`` does."""
        self.form = form
        self.number = number
        self.a_bits = a_bits
        self.b_bits = b_bits
        self.scale = scale
        self.arrived = 0
        self.fragments: list[NDArray[np.uint32] | None] = [None] * 4
        self.a: NDArray[np.uint8] | None = None
        self.b: NDArray[np.uint8] | None = None
        self.a_undefined: NDArray[np.bool_] | None = None
        self.b_undefined: NDArray[np.bool_] | None = None
        self.products: tuple[int, Product] | None = None
        size = form.row_bytes
        self.a_units: NDArray[np.intp] | None = None
        if a_bits is not None:
            self.a_units = footprint(
                shared, a_bits, rows=64, row_bytes=size, transposed=form.a_transposed, what=f"{form.name}, matrix A"
            )
        self.b_units = footprint(
            shared, b_bits, rows=form.n, row_bytes=size, transposed=form.b_transposed, what=f"{form.name}, matrix B"
        )

    def perform(self, cta: Cta) -> None:
        """Read the operands from shared memory, if there are data."""
        form, shared = self.form, cta.shared
        counters = cta.launch.counters
        counters["wgmma.instructions"] += 1
        counters["wgmma.macs"] += 64 * form.n * form.k
        rows, size = form.n, form.row_bytes
        if cta.launch.machine.without_data:
            return
        if self.a_units is not None:
            rows += 64
            self.a, self.a_undefined = read_matrix(
                shared, self.a_units, rows=64, row_bytes=size, transposed=form.a_transposed
            )
        self.b, self.b_undefined = read_matrix(
            shared, self.b_units, rows=form.n, row_bytes=size, transposed=form.b_transposed
        )
        counters["wgmma.shared.bytes"] += rows * size
        if self.a_undefined is not None or self.b_undefined is not None:
            counters["wgmma.undefined.instructions"] += 1
        if form.a.bits == 8 and not form.a.integer:
            counters["wgmma.fp8.accumulation"] += 1


def product_of(run: Sequence[WgmmaOperation]) -> Product:
    """Return the product of operations of one form; it is computed once for the four warps."""
    last = run[-1]
    if last.products is not None and last.products[0] == run[0].number:
        return last.products[1]
    form = last.form
    count = len(run)
    if form.from_registers:
        # (count, warp, register, lane) to (count, 64, k)
        codes = a_matrix(np.array([operation.fragments for operation in run]), form.a.codes).reshape(count, 64, form.k)
    else:
        codes = np.array([operation.a for operation in run]).view(form.a.codes)
    b_codes = np.array([operation.b for operation in run]).view(form.b.codes)
    product = Product(
        codes.transpose(1, 0, 2).reshape(64, -1),
        b_codes.transpose(1, 0, 2).reshape(form.n, -1),
        a_format=form.a,
        b_format=form.b,
        count=count,
        a_undefined=_undefined([operation.a_undefined for operation in run], 64),
        b_undefined=_undefined([operation.b_undefined for operation in run], form.n),
        negate=form.negate,
    )
    last.products = (run[0].number, product)
    return product


def _undefined(rows: list[NDArray[np.bool_] | None], count: int) -> NDArray[np.bool_] | None:
    if all(row is None for row in rows):
        return None
    return np.array([np.zeros(count, np.bool_) if row is None else row for row in rows])


def alike(one: WgmmaForm, other: WgmmaForm) -> bool:
    """Return whether instructions of two forms on the same accumulator can be added as one product."""
    return (
        one.k == other.k
        and one.a is other.a
        and one.b is other.b
        and one.from_registers == other.from_registers
        and one.negate == other.negate
        and one.saturate == other.saturate
    )
