"""Number of usable cores."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of cores that this process may run on, or of the machine if the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
