"""Find the name of the test harness in a kernel's source: a kernel has no legitimate reason to know it.

Regions are the exception (``profiler``): their import is a line of its own that names nothing else of this package.
"""

from __future__ import annotations

import re

_HARNESS_NAMES = re.compile(rb"\b(?:pytest_nvfp4|_pytest|syrupy)\b")
_NAME = rb"region(?:_start|_stop|_mark)?(?:[ \t]+as[ \t]+\w+)?"
_REGIONS = re.compile(
    rb"^[ \t]*from pytest_nvfp4\.profiler import (" + _NAME + rb"(?:,[ \t]*" + _NAME + rb")*)[ \t]*(?:#[^\n]*)?\r?$",
    re.MULTILINE,
)


def names_harness(source: bytes) -> str | None:
    """Return the word with which a kernel's source names the test harness, or None."""
    match = _HARNESS_NAMES.search(_REGIONS.sub(b"", source))
    return match.group().decode() if match else None
