"""Copies of the shipped kernel with something changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin.conftest import Ran

SHIPPED = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
COLUMNS = re.compile(r"^TMEM_COLUMNS = .*$", re.MULTILINE)
MAP = "tiles_m = ceil_div(Int32(table[low, M]), TILE_M)"


def kernel(pytester: pytest.Pytester, *, columns: int | None = None, tile_map: str | None = None) -> Path:
    """A copy of the shipped kernel that allocates another number of columns, or has another map of CTAs."""
    text = SHIPPED.read_text()
    if columns is not None:
        text, changed = COLUMNS.subn(f"TMEM_COLUMNS = {columns}", text)
        assert changed == 1
    if tile_map is not None:
        assert text.count(MAP) == 1
        text = text.replace(MAP, tile_map)
    path = pytester.path / "k.py"
    path.write_text(text)
    return path


def counted(ran: Ran, **expected: int) -> None:
    found = ran._result.parseoutcomes()
    assert {name: found.get(name, 0) for name in expected} == expected, ran.text + ran.errors
