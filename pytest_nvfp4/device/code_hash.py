"""Hash of this package's own code, so that results of an earlier version are not used."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


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
