"""A ``tcgen05.cp`` whose operands were checked, and its execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.monitor import CtaAccesses
from pytest_nvfp4.sim.tcgen05 import containers
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from pytest_nvfp4.sim.tcgen05.tmem import Tmem


@dataclass(frozen=True, slots=True, eq=False)
class CopyShape:
    """Shape of a copy, as its opcode gives it.

    Attributes:
        rows, bits: Rows of the source, and bits of each.
        multicast: ``warpx4``, ``warpx2::02_13``, ``warpx2::01_23``, or empty.
        group: ``.cta_group``: 1 or 2.
        what: The opcode, for messages.
        packed: Bits of the elements that the copy decompresses: 4 or 6; 0 for a copy that changes nothing.
    """

    rows: int
    bits: int
    multicast: str
    group: int
    what: str
    packed: int = 0

    @property
    def columns(self) -> int:
        """Number of TMEM columns that the copy writes."""
        return self.bits // 32


class CtaCopy(NamedTuple):
    """One CTA's part of a copy.

    Attributes:
        use: What its columns hold.
        words: Shared memory in 32-bit words, from the start of the source's swizzle pattern on.
        table: For each target word the number of its source word.
        target: The words of TMEM that are written.
    """

    tmem: Tmem
    use: ColumnUse
    words: NDArray[np.uint32]
    table: NDArray[np.intp]
    target: NDArray[np.uint32]


class CopyPlan:
    """A checked copy to ``shape.columns`` columns from ``column`` on. It is valid while ``epoch == current_epoch()``.

    Attributes:
        parts: By CTA.
        size: Bytes read from shared memory.
        accesses: What the copy reads and writes, for the monitor; None until a monitor needs it.
    """

    def __init__(self, parts: list[CtaCopy], shape: CopyShape, column: int) -> None:
        self.parts = parts
        self.shape = shape
        self.column = column
        self.size = shape.rows * shape.bits // 8 * shape.group
        self.epoch = self.current_epoch()
        self.accesses: tuple[CtaAccesses, ...] | None = None

    def current_epoch(self) -> int:
        """Return a number that grows with every change that could invalidate the plan."""
        parts = self.parts
        return parts[0].tmem.epoch if len(parts) == 1 else parts[0].tmem.epoch + parts[1].tmem.epoch

    def execute(self) -> None:
        """Copy the words in every CTA."""
        for tmem, _, words, table, target in self.parts:
            if tmem.pending:
                tmem.settle(self.column, self.shape.columns)
            if not self.shape.packed:
                words.take(table, out=target, mode="clip")
                continue
            groups = np.ascontiguousarray(words.take(table, mode="clip").T).view(np.uint8)
            lanes = groups.shape[0]
            spread = containers.spread(groups.reshape(lanes, -1, 16), self.shape.packed)
            target[...] = spread.reshape(lanes, -1).view(np.uint32).T
