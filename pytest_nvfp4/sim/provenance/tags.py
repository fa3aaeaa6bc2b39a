"""Tags: contents of input tensors that say where they come from, so that copies carry their own provenance.

A kernel is called once with *tags* in place of its inputs. A tag is a number of one cell of one tensor: 32 elements of
k of a row of A or B (16 bytes, the smallest unit that a swizzle moves), or the four scale factors of 64 elements of k
of a row (4 bytes, the unit of ``scale_vec::4X``). Whatever only copies data (TMA, bulk copies, ``cp.async``, loads and
stores of threads, ``tcgen05.cp``, the host's own reordering) copies the tags with them, and what an operand reads is
found in its bytes. Data that were converted in registers are no tags: they are *not followed*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.int64]
"""Numbers of cells: 0 for zeros (no tag is 0), -1 for bytes that are no tag."""
NO_TAG, ZERO = -1, 0

_FACTOR = 0x9E37_79B1
"""An odd number: multiplication by it modulo 2**32 spreads the numbers of cells over all words, and is invertible."""
_INVERSE = pow(_FACTOR, -1, 1 << 32)
_WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class TaggedTensor:
    """An input whose contents are tags.

    Attributes:
        name: ``A``, ``B``, ``SFA`` or ``SFB``.
        rows, k: Its size in elements; cells beyond are padding.
        padded_rows, padded_k: Its size with padding.
        first: Number of its first cell; the others follow in row-major order.
        unit: What a group is: ``group``, or ``batch`` if one C has the rows of all.
    """

    name: str
    group: int
    rows: int
    k: int
    padded_rows: int
    padded_k: int
    first: int
    unit: str = "group"

    @property
    def cell_k(self) -> int:
        """Elements of k in a cell."""
        return 64 if self.name.startswith("SF") else 32

    @property
    def per_row(self) -> int:
        """Cells in a row."""
        return self.padded_k // self.cell_k

    @property
    def matrix(self) -> str:
        """``A`` or ``B``: the matrix itself, or that of the scale factors."""
        return self.name[-1]

    def __str__(self) -> str:
        return f"{self.name} of {self.unit} {self.group}"


class Places(NamedTuple):
    """What cells hold: the index of a tensor (negative if none), the row, and the first k, by cell."""

    tensor: NDArray[np.int64]
    row: NDArray[np.int64]
    k: NDArray[np.int64]


class Tags:
    """The tagged tensors of one call, and the code of their cells. For ``unit`` see ``TaggedTensor``."""

    def __init__(self, *, unit: str = "group") -> None:
        self.unit = unit
        self.tensors: list[TaggedTensor] = []
        self.total = 1
        self._table: NDArray[np.int64] | None = None

    def add(
        self, name: str, group: int, *, rows: int, k: int, padded_rows: int | None = None, padded_k: int | None = None
    ) -> NDArray[np.uint8]:  # fmt: skip
        """Add a tensor, and return its bytes: ``[padded rows, bytes of a row]``."""
        tensor = TaggedTensor(name, group, rows, k, padded_rows or rows, padded_k or k, self.total, self.unit)
        self.tensors.append(tensor)
        count = tensor.padded_rows * tensor.per_row
        self.total += count
        self._table = None
        words = self.words(np.arange(tensor.first, self.total)).reshape(tensor.padded_rows, tensor.per_row)
        if tensor.cell_k == 32:
            words = np.stack([words, ~words, words, ~words], axis=-1)
        of_row = tensor.per_row * words.itemsize * (4 if tensor.cell_k == 32 else 1)
        return np.ascontiguousarray(words).view(np.uint8).reshape(tensor.padded_rows, of_row)

    @staticmethod
    def words(cells: Cells) -> NDArray[np.uint32]:
        """Return the words that stand for cells. A cell of 16 bytes repeats its word, each second time inverted."""
        return (cells.astype(np.uint64) * np.uint64(_FACTOR) & np.uint64(_WORD)).astype(np.uint32)

    def of_words(self, words: NDArray[np.uint32]) -> Cells:
        """Return the cells of words, as scale factors are read."""
        cells = (words.astype(np.uint64) * np.uint64(_INVERSE) & np.uint64(_WORD)).astype(np.int64)
        return np.where(cells < self.total, cells, NO_TAG)

    def of_chunks(self, chunks: NDArray[np.uint32]) -> Cells:
        """Return the cells of 16-byte units ``[..., 4]``, as A and B are read."""
        cells = self.of_words(chunks[..., 0])
        again = (chunks[..., 2] == chunks[..., 0]) & (chunks[..., 1] == chunks[..., 3])
        inverted = np.where(chunks[..., 0] == 0, chunks[..., 1] == 0, chunks[..., 1] == ~chunks[..., 0])
        return np.where(again & inverted, cells, NO_TAG)

    def places(self, cells: Cells) -> Places:
        """Return what cells hold."""
        if self._table is None:
            rows = [(t.first, t.per_row, t.cell_k) for t in self.tensors]
            self._table = np.array([*rows, (self.total, 1, 1)], np.int64).T
        first, per_row, cell_k = self._table
        tensor = np.searchsorted(first, cells, side="right") - 1
        known = np.maximum(tensor, 0)
        inside = cells - first[known]
        row, k = np.divmod(inside, per_row[known])
        return Places(np.where(cells > ZERO, tensor, -1), row, k * cell_k[known])

    def cell(self, tensor: int, row: int, k: int) -> int:
        """Return the number of a cell."""
        made = self.tensors[tensor]
        return made.first + row * made.per_row + k // made.cell_k

    def find(self, name: str, group: int) -> int | None:
        """Return the index of a tensor, None if there is no such tensor."""
        for index, tensor in enumerate(self.tensors):
            if (tensor.name, tensor.group) == (name, group):
                return index
        return None
