"""Names of the simulator's schedules, on every command line and in every job."""

from __future__ import annotations

import re
from typing import Final

PATTERN: Final = r"eager|lazy|late(-\d{1,2})+|\d{1,18}"
"""``eager``, ``lazy``, ``late-0-3`` (warps 0 and 3 run when no other can), or the seed of a random one."""
WORDS: Final = "eager, lazy, late-WARP or a seed (a whole number)"
"""Description of `PATTERN` for messages."""


def is_schedule(name: str) -> bool:
    """Return whether a text is the name of a schedule."""
    return re.fullmatch(PATTERN, name) is not None
