"""This package's own code as a hash: what an earlier version found out is not taken for what this one would."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def code_hash(parts: Sequence[str], *, package: Path = PACKAGE) -> str:
    """SHA-256 over the paths and contents of Python files.

    Args:
        parts: Files, and folders with all that is below them, relative to ``package``.
        package: The package's folder.

    Raises:
        OSError: a part is not there, or cannot be read.
    """
    digest = hashlib.sha256()
    for part in parts:
        path = package / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(package)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
