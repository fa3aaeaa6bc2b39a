"""Archive of this package's source, for machines on which it is not installed or has another version."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pytest_nvfp4.device.remote.parts import left_out
from pytest_nvfp4.isolation.launcher import PACKAGE


@dataclass(frozen=True, slots=True)
class Bundle:
    """Archive (tar, gzip) of the package, and the SHA-256 of its bytes."""

    data: bytes
    sha256: str


def source_files() -> list[Path]:
    """Return the package's source files that a job may need, sorted."""
    local = left_out("sim")
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in local
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(PACKAGE).parts)
    )


@lru_cache(maxsize=1)
def bundle() -> Bundle:
    """Return the archive; equal source gives equal bytes. Raises OSError."""
    packed = io.BytesIO()
    with (
        # A fixed time stamp keeps the bytes, and with them the hash, reproducible.
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=5, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in source_files():
            data = path.read_bytes()
            entry = tarfile.TarInfo(f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    data = packed.getvalue()
    return Bundle(data, hashlib.sha256(data).hexdigest())
