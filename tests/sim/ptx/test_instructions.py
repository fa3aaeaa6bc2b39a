"""The list of PTX's instructions has all that are modelled."""

from __future__ import annotations

from pytest_nvfp4.sim.lower.table import lowerings
from pytest_nvfp4.sim.ptx.instructions import INSTRUCTIONS


def test_what_is_modelled_is_in_the_list() -> None:
    assert {prefix.partition(".")[0] for prefix in lowerings()} <= INSTRUCTIONS
