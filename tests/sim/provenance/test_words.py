"""What is said of an operand that reads the wrong data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_nvfp4.sim.provenance import words
from pytest_nvfp4.sim.provenance.expected import Content, blames
from pytest_nvfp4.sim.provenance.recorder import Mma, Operand, OperandRecorder
from pytest_nvfp4.sim.run.grid import Grid

from .read import ROWS, right, tags

EXCHANGED = np.arange(ROWS).reshape(4, 32).T.ravel()
"""Rows whose two indices in the block of scale factors are exchanged."""


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (EXCHANGED, "in rows 1-126 of the tile, reads SFA of group 0, rows 1-126, k 64-127 in another order: in row 1 "
         "of the tile it reads row 32, and needs row 1, because its A operand reads A of group 0, rows 0-127, "
         "k 64-127"),
        (np.arange(ROWS) + 1, "reads SFA of group 0, rows 1-128, k 64-127, and needs SFA of group 0, rows 0-127, "
         "k 64-127, because its A operand reads A of group 0, rows 0-127, k 64-127"),
    ],
    ids=["in another order", "other rows"],
)  # fmt: skip
def test_rows_that_are_read_in_another_order(
    rows: NDArray[np.int64], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "statement", lambda _grid, at: f"gemm.py:{at}")
    made = tags()
    index = made.find("SFA", 0)
    assert index is not None
    cells = np.array([made.cell(index, int(row), 64) for row in rows], np.int64)
    read = right(made, k=64)
    read["SFA"] = Content.of(Operand("SFA", cells, np.full(ROWS, -1, np.int32), None, None, None), made)
    (blame,) = [each for each in blames(read, {}, made) if each.name == "SFA"]
    recorder = cast(OperandRecorder, SimpleNamespace(tags=made, loads=[], copies=[]))
    said = words.reading(
        cast(Mma, SimpleNamespace(at=26)), blame, read, words.Evidence(-1, ""), recorder, cast(Grid, None), again=False
    )
    assert said == f"the SFA operand of the MMA at gemm.py:26{', ' if 'order' in says else ' '}{says}"
