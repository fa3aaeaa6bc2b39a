"""The tensors of one call of a kernel, and the arguments that are built of them; numpy holds the contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pytest_nvfp4.numerics.arrays import Bytes, ceil_div

Role: TypeAlias = Literal["input", "output", "both"]
Returns: TypeAlias = Literal["list", "tensor", "any"]


@dataclass(frozen=True, slots=True)
class At:
    """The place of a tensor in the arguments: its index among the tensors of the call."""

    index: int


Structure: TypeAlias = Any
"""Arguments: tuples and lists of `At`, numbers, texts and None."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of a call, inside a buffer with guard memory.

    Attributes:
        name: Its name in findings, such as ``A of group 0``.
        dtype: Name of its type in torch.
        shape: Extents of the tensor that the kernel receives or returns.
        strides: Its strides, in elements; the elements of an output fill its memory without gaps.
        size: Bytes of its elements.
        role: ``both`` is an input that the kernel overwrites by an output.
        device: Whether it lies in device memory. A tensor in host memory is a new copy in each call.
        data: Bytes of its elements in the order of memory, one-dimensional; None for an output and for the signature of
            a call.
        columns: For an output, the elements of one row of its memory.
        poison: For an output, the bytes of one element before the call.
        before, after: Bytes of guard memory around it.
        guard: Byte that fills the guard memory of an input; that of an output holds its poison.
        spoil: Byte that spoils every output computed from this input.
        blank: Whether its content may be left out (``Simulating.sampled``).
        passed: Whether the arguments contain it. An output that they lack is one that the kernel allocates.
        describe: Returns the description of the element at a byte offset.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    role: Role = "input"
    device: bool = True
    data: Bytes | None = None
    columns: int = 0
    poison: bytes = b""
    before: int = 0
    after: int = 0
    guard: int = 0
    spoil: int = 0xFF
    blank: bool = False
    passed: bool = True
    describe: Callable[[int], str] | None = None

    @property
    def is_output(self) -> bool:
        """Whether it is judged after the call."""
        return self.role != "input"

    @property
    def item(self) -> int:
        """Bytes of an element of an output."""
        return len(self.poison)

    @property
    def rows(self) -> int:
        """Rows of the memory of an output, without its guard memory."""
        return self.size // (self.columns * self.item) if self.columns else 0

    @property
    def rows_before(self) -> int:
        """Guard rows in front of an output."""
        return self.before // (self.columns * self.item) if self.columns else 0

    @property
    def all_rows(self) -> int:
        """Rows of the buffer of an output, with its guard rows."""
        row = self.columns * self.item
        return (self.before + self.size + self.after) // row if row else 0


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call.

    Attributes:
        tensors: All tensors, in an order that depends on the problem alone.
        arguments: The positional arguments, as a structure.
        returns: What the kernel returns: the ``list`` of the outputs, the only output as a ``tensor``, or ``any`` of
            both, a tuple, or None if the outputs are among the arguments.
    """

    tensors: tuple[Tensor, ...]
    arguments: tuple[Structure, ...]
    returns: Returns = "list"
    outputs: tuple[Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(tensor for tensor in self.tensors if tensor.is_output))


def filled(structure: Structure, tensors: list[Any]) -> Structure:
    """Return a structure with tensors in their places; lists and tuples are new objects."""
    if isinstance(structure, At):
        return tensors[structure.index]
    if isinstance(structure, list):
        return [filled(each, tensors) for each in structure]
    if isinstance(structure, tuple):
        return tuple(filled(each, tensors) for each in structure)
    return structure


def row_major(shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps; ``order`` lists its dimensions from the outermost in memory."""
    order = tuple(range(len(shape))) if order is None else order
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(strides)


def described_rows(name: str, row_bytes: int, column: Callable[[int], str], *, rows: int) -> Callable[[int], str]:
    """Return what describes a byte of matrices of ``rows`` rows, one batch after another.

    ``column`` describes a byte of a row.
    """

    def describe(offset: int) -> str:
        row, byte = divmod(offset, row_bytes)
        batch, row = divmod(row, rows)
        where = f"{name}, batch {batch}" if batch else name
        return f"{where}, row {row}, {column(byte)}"

    return describe


def described_scales(name: str, *, rows: int, blocks: int) -> Callable[[int], str]:
    """Return what describes a byte of reordered scale factors (``numerics.scale_layout``), one batch after another."""
    rest_k = ceil_div(blocks, 4)
    batch_bytes = max(1, ceil_div(rows, 128) * rest_k * 512)

    def describe(offset: int) -> str:
        batch, offset = divmod(offset, batch_bytes)
        tile, inside = divmod(offset, 512)
        low, rest = divmod(inside, 16)
        high, block = divmod(rest, 4)
        row = tile // rest_k * 128 + high * 32 + low
        where = f"{name}, batch {batch}" if batch else name
        return f"{where}, row {row}, k block {tile % rest_k * 4 + block}"

    return describe
