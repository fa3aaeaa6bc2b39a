"""Versions of the formats of stored files: what is wrong with a file of another version, and the way out."""

from __future__ import annotations

from pytest_nvfp4 import __version__


def other_version(found: object, known: int) -> str:
    """Return what is wrong with a file of another version of its format, as a predicate.

    Args:
        found: The version that the file states.
        known: The version that this package reads and writes.
    """
    shown = str(found)[:40]
    newer = not shown.isdecimal() or int(shown) > known
    way = "update pytest-nvfp4" if newer else "write it again, or read it with the version that wrote it"
    return f"has version {shown} of its format, and pytest-nvfp4 {__version__} reads version {known}: {way}"
