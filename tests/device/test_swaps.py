"""Code that judges is compared with what it was before the kernel ran: a swap shows, however it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cheats import HONEST, verdict
from .swaps import SWAPS, swapping

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("swap", SWAPS)
def test_a_swap_is_reported(tmp_path: Path, swap: str) -> None:
    status, said = verdict(tmp_path, HONEST + swapping(swap))
    assert status == "cheated", said
    assert "the kernel replaced" in said, said
    assert SWAPS[swap][1] in said, said


@pytest.mark.slow
def test_swaps_are_reported_together(tmp_path: Path) -> None:
    chosen = ("a function's code", "a pointer to code", "a name before a built-in one", "an entry of the defaults")
    status, said = verdict(tmp_path, HONEST + "".join(map(swapping, chosen)))
    assert status == "cheated", said
    assert all(SWAPS[name][1] in said for name in chosen), said
