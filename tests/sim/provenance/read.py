"""What operands read, made by hand."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.provenance.expected import Content
from pytest_nvfp4.sim.provenance.recorder import Operand
from pytest_nvfp4.sim.provenance.tags import Tags

ROWS = 128


def tags() -> Tags:
    made = Tags()
    for group in range(2):
        for name in ("A", "B"):
            made.add(name, group, rows=200, k=512)
            made.add(f"SF{name}", group, rows=200, k=512, padded_rows=256)
    return made


def content(
    made: Tags, operand: str, *, tensor: str = "", group: int = 0, row: int = 0, k: int = 0, zeros: bool = False
) -> Content:
    """What 128 rows of an operand read from one row on: rows past the tensor are padding, or zeros of A and B."""
    index = made.find(tensor or operand, group)
    assert index is not None
    rows = made.tensors[index].padded_rows
    cells = np.array([made.cell(index, row + i, k) if row + i < rows else 0 for i in range(ROWS)], np.int64)
    unknown = np.full(ROWS, -1, np.int32)
    return Content.of(Operand(operand, cells * (not zeros), unknown, None, None, None), made)


def right(made: Tags, *, group: int = 0, row: int = 0, column: int = 0, k: int = 0) -> dict[str, Content]:
    """The operands of a right MMA."""
    return {
        name: content(made, name, group=group, row=row if name.endswith("A") else column, k=k)
        for name in ("A", "B", "SFA", "SFB")
    }
