"""Find the name of the test harness in a kernel's source: a kernel has no legitimate reason to know it."""

from __future__ import annotations

import re

_HARNESS_NAMES = re.compile(rb"\b(?:pytest_nvfp4|_pytest|syrupy)\b")


def names_harness(source: bytes) -> str | None:
    """Return the word with which a kernel's source names the test harness, or None."""
    match = _HARNESS_NAMES.search(source)
    return match.group().decode() if match else None
