"""Content-addressed cache of traces, shared by concurrent processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace

CACHE_VARIABLE = "NVFP4_CACHE_DIR"
"""Environment variable that overrides the folder of the cache."""

_CAPACITY = 512
"""Number of cached traces; the least recently used ones beyond it are removed."""
_STALE_BUILD_S = 6 * 3600
"""Age in seconds after which the folder of an unfinished build is removed."""


def default_root() -> Path:
    """Return the folder of the cache: ``$NVFP4_CACHE_DIR``, or the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("pytest-nvfp4", appauthor=False))


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content; the empty string, which equals no recorded hash, if it is unreadable."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def content_key(parts: Mapping[str, object]) -> str:
    """Return a cache key that is equal for equal inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class TraceCache:
    """Cache of traces on disk: one folder per entry with ``trace.json`` and the artifacts.

    An entry is created by an atomic rename. A trace records the hashes of the files it depends on and is valid only
    while they are unchanged. A failed trace is reused only within one test run, because its cause may lie outside these
    files. If ``root`` is not writable, a private temporary folder replaces it.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = self._writable(root or default_root())

    @staticmethod
    def _writable(root: Path) -> Path:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                return root
        except OSError:
            fallback = Path(tempfile.gettempdir()) / f"pytest-nvfp4-{os.getuid()}"
            fallback.mkdir(mode=0o700, exist_ok=True)
            if fallback.is_symlink() or fallback.stat().st_uid != os.getuid():
                return Path(tempfile.mkdtemp(prefix="pytest-nvfp4-"))
            return fallback

    @property
    def root(self) -> Path:
        """Folder in use."""
        return self._root

    def _entry(self, key: str) -> Path:
        return self._root / "traces" / key[:2] / key

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Lock an entry, so that parallel test processes compile a kernel once."""
        folder = self._root / "locks"
        folder.mkdir(exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            yield

    def load(self, key: str, *, session: str | None) -> Trace | None:
        """Return the trace of a key if it is complete, of this schema, and its dependencies are unchanged."""
        from pydantic import ValidationError

        from pytest_nvfp4.toolchain.trace import SCHEMA, Trace

        entry = self._entry(key)
        try:
            trace = Trace.model_validate_json((entry / "trace.json").read_bytes())
        except (OSError, ValidationError, ValueError):
            return None
        if trace.schema_version != SCHEMA or (not trace.ok and (session is None or trace.session != session)):
            return None
        if any(file_hash(Path(path)) != digest for path, digest in trace.dependencies.items()):
            return None
        if any(not (entry / artifact.name).is_file() for artifact in trace.artifacts):
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)
        return trace.model_copy(update={"folder": str(entry)})

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """Create a folder to build an entry in; it is removed afterwards."""
        folder = self._root / "builds"
        folder.mkdir(exist_ok=True)
        build = Path(tempfile.mkdtemp(dir=folder))
        try:
            yield build
        finally:
            shutil.rmtree(build, ignore_errors=True)

    def store(self, key: str, trace: Trace, artifacts: Path) -> Trace:
        """Store a trace and its artifacts under a key, replacing an existing entry."""
        (artifacts / "trace.json").write_text(trace.model_dump_json(exclude={"folder"}), encoding="utf-8")
        entry = self._entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        old = artifacts.parent / f"{artifacts.name}.old"
        with contextlib.suppress(FileNotFoundError):
            entry.rename(old)
        artifacts.rename(entry)
        shutil.rmtree(old, ignore_errors=True)
        self._prune()
        return trace.model_copy(update={"folder": str(entry)})

    def _prune(self) -> None:
        entries = [path for path in (self._root / "traces").glob("??/*") if path.is_dir()]
        if len(entries) > _CAPACITY:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - _CAPACITY]:
                    shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for build in (self._root / "builds").iterdir():
                if time.time() - build.stat().st_mtime > _STALE_BUILD_S:
                    shutil.rmtree(build, ignore_errors=True)
