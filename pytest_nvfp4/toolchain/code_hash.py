"""Hash of this package's own code, so that results of an earlier version are not used."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ASKING = (
    *("plugin", "cli", "report", "guide", "bench", "selfcheck"),
    *("proof", "strategies", "search", "insights", "tmem", "settings"),
)
"""Rooms that ask for results and report them, but take no part in making or judging them."""


def code_hash(parts: Sequence[str], *, package: Path = PACKAGE) -> str:
    """Return the SHA-256 of the paths and contents of Python files.

    ``parts`` are files, and folders (searched recursively), relative to ``package``.

    Raises:
        OSError: A part does not exist or cannot be read.
    """
    digest = hashlib.sha256()
    for part in parts:
        path = package / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(package)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def parts_without(*rooms: str, package: Path = PACKAGE) -> tuple[str, ...]:
    """Return all parts of the package but some, so that a new room counts until it is named here."""
    names = (entry.name for entry in package.iterdir() if entry.is_dir() or entry.suffix == ".py")
    return tuple(sorted(name for name in names if name not in rooms and not name.startswith((".", "__pycache__"))))
