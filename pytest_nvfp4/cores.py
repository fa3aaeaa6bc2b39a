"""How many cores there are to use."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may run on; where the system does not say, those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
