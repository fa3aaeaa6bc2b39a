"""Keep traces by content, safely among many processes."""

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
"""Environment variable that overrides where traces are kept."""

_KEEP = 512
_STALE_BUILD_S = 6 * 3600


def default_root() -> Path:
    """Where traces are kept: ``$NVFP4_CACHE_DIR``, else the user's cache folder, else a private temporary folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("pytest-nvfp4", appauthor=False))


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content; the empty string when it cannot be read (so it never equals a recorded one)."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def content_key(parts: Mapping[str, object]) -> str:
    """A name for a set of inputs: equal inputs, equal name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class TraceCache:
    """Traces on disk: one folder an entry, ``trace.json`` and the artifacts in it.

    An entry appears by one rename, so that a reader sees it whole or not at all. A trace names the files it depends
    on with their hashes; it is used only while they are unchanged. A trace that failed is reused within one test run
    only, because what it failed for may lie outside the files it knows.
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
        """The folder in use."""
        return self._root

    def _entry(self, key: str) -> Path:
        return self._root / "traces" / key[:2] / key

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the right to make an entry, so that parallel test processes compile a kernel once."""
        folder = self._root / "locks"
        folder.mkdir(exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            yield

    def load(self, key: str, *, session: str | None) -> Trace | None:
        """The trace under a key, if it is whole, of this version, and everything it depends on is unchanged."""
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
        """A folder to build an entry in; what is not stored is removed."""
        folder = self._root / "builds"
        folder.mkdir(exist_ok=True)
        build = Path(tempfile.mkdtemp(dir=folder))
        try:
            yield build
        finally:
            shutil.rmtree(build, ignore_errors=True)

    def store(self, key: str, trace: Trace, artifacts: Path) -> Trace:
        """Put a trace and its artifacts under a key; it replaces what is there."""
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
        if len(entries) > _KEEP:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - _KEEP]:
                    shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for build in (self._root / "builds").iterdir():
                if time.time() - build.stat().st_mtime > _STALE_BUILD_S:
                    shutil.rmtree(build, ignore_errors=True)
