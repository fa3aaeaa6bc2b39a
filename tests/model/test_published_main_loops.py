"""Published main loops: the errors that are claimed hold, and a wrong constant breaks them."""

from __future__ import annotations

import pytest

from pytest_nvfp4.model.constants import load_device

from .main_loop import main_loop_ms
from .tables import Errors, rows

CLAIMED = {"fit": Errors(47, 0.8, 2.1, 4.1), "fp8": Errors(138, 1.4, 6.3, 11.3), "bf16": Errors(91, 4.5, 8.5, 11.9)}
"""Percent. ``fit``: 47 BF16 loops (N 64, 128), to which four constants were fitted. The others are held out."""


def errors(name: str, **changed: float) -> Errors:
    device = load_device("b200").changed(**changed)
    table = [row for row in rows("b200_mainloop.csv") if row["set"] == name]
    return Errors.of(main_loop_ms(row, device) / float(row["time_ms"]) for row in table)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMED)
def test_errors_are_no_worse_than_claimed(name: str):
    found, claimed = errors(name), CLAIMED[name]
    assert found.points == claimed.points
    assert found.median <= claimed.median
    assert found.ninety <= claimed.ninety
    assert found.worst <= claimed.worst


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [("tma_row", 1.2), ("tma_latency", 450.0), ("dram_latency", 150.0)])
def test_a_wrong_constant_is_noticed(name: str, value: float):
    assert errors("fit", **{name: value}).ninety > 2 * CLAIMED["fit"].ninety
