"""Content-addressed cache of traces, shared by concurrent processes, and written by the parents of workers alone."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.cache_root import default_root
from pytest_nvfp4.toolchain.entry_lock import entry_lock
from pytest_nvfp4.toolchain.sealed_files import MOST_BYTES, SealedFiles, read_regular

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace

TRACES = "traces"
"""Name of the cache of traces, and of its folder."""
RESULTS = "results"
"""Folder of the simulator's results."""
LOCKS = "locks"
"""Folder of the locks on entries that are being made."""
BUILDERS = "builders"
"""Name of the index of traces by kernel, whose extensions other traces of that kernel use, and of its folder."""
PROGRAMS = "programs"
"""Name of the cache of extensions that programs of `nvfp4 exec` have built, and of its folder."""

_TRACE_FILE = "trace.json"
_CAPACITY = 512
"""Number of cached traces; the least recently used ones beyond it are removed."""
_MOST_FILES = 4096
_ATTEMPTS = 5
_HASHED_BYTES = 16 << 20
"""Size of the largest file that a kernel reads as data whose content is hashed in every run."""
_ARTIFACT = re.compile(r"[0-9]+\.(?:ptx|cubin|sass|mlir)")
"""Names of stored artifacts."""
_EXTENSION_FILE = "read.json"
"""File that a built extension has, and a lowered module has not."""
_COMPILED, _MODULE = re.compile(r"compiled-[0-9a-f]{16}"), re.compile(r"[0-9a-f]{40}")
_MODULE_FILE = re.compile(r"module\.mlirbc|manifest\.json|read\.json|[\w.$+-]{1,240}\.(?:ptx|cubin|so)", re.ASCII)
"""Names of the files of modules that the DSL's compiler has lowered (`host.compile_cache`) and of built extensions
(`host.extension.kept`), and of their folders."""


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content; the empty string, which equals no recorded hash, if it is unreadable."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def file_stamp(path: Path) -> str:
    """Return what tells whether a file changed: its hash, of a large one size and time; empty if there is none."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return ""
        return file_hash(path) if found.st_size <= _HASHED_BYTES else f"{found.st_size}:{found.st_mtime_ns}"
    except (OSError, ValueError):
        return ""


def content_key(parts: Mapping[str, object]) -> str:
    """Return a cache key that is equal for equal inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class TraceCache:
    """Cache of traces on disk: one folder per entry with ``trace.json`` and the files of the trace.

    An entry is created by an atomic rename. ``trace.json`` is sealed, and holds size and hash of every other file, so
    an entry that was changed in any byte is a cache miss. A trace records the hashes of the files it depends on and is
    valid only while they are unchanged. A failed trace is reused only within one test run, because its cause may lie
    outside these files. If ``root`` is not writable, a private temporary folder replaces it.

    Attributes:
        sealed: The sealed files of the folder, for the other caches in it.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = self._writable(root or default_root())
        self.sealed = SealedFiles(self._root)

    @staticmethod
    def _writable(root: Path) -> Path:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                return root
        except OSError:
            fallback = Path(tempfile.gettempdir()) / f"pytest-nvfp4-{os.getuid()}"
            fallback.mkdir(mode=0o700, exist_ok=True)
            found = fallback.lstat()
            if fallback.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
                return Path(tempfile.mkdtemp(prefix="pytest-nvfp4-"))
            return fallback

    @property
    def root(self) -> Path:
        """Folder in use."""
        return self._root

    def _entry(self, key: str) -> Path:
        return self.sealed.folder / TRACES / key[:2] / key

    def locked(self, key: str) -> AbstractContextManager[None]:
        """Lock an entry, so that parallel test processes compile a kernel once."""
        folder = self.sealed.folder / LOCKS
        self.sealed.make_folder(folder)
        return entry_lock(folder / f"{key}.lock")

    def load(self, key: str, *, session: str | None, fresh: bool = False) -> Trace | None:
        """Return the trace of a key if it is whole, of this schema, and its dependencies are unchanged.

        Args:
            key: The key.
            session: Name of this test run; within it a failed trace is returned too.
            fresh: Return a trace of this test run only.
        """
        from pydantic import ValidationError

        from pytest_nvfp4.toolchain.trace import Trace

        entry = self._entry(key)
        if (found := self._read(entry, key)) is None:
            return None
        files, text = found
        try:
            trace = Trace.model_validate_json(text)
        except (ValidationError, ValueError):
            return None
        of_session = session is not None and trace.session == session
        if not of_session and (fresh or not trace.ok):
            return None
        if not (_unchanged(trace.dependencies, file_hash) and _unchanged(trace.others, file_stamp)):
            return None
        for artifact in trace.artifacts:
            if self._checked(entry, artifact.name, files) is None:
                return None
        with contextlib.suppress(OSError):
            os.utime(entry)
        return trace.model_copy(update={"folder": str(entry)})

    def copy_compiled(self, key: str, folder: str, *, into: Path) -> bool:
        """Copy the lowered modules of an entry for a worker, which may change its copies; return whether there are any.

        Args:
            key: Key of the entry.
            folder: The folder of the entry that holds the modules.
            into: The folder to copy to. A module that is there already is left as it is.
        """
        entry = self._entry(key)
        if (found := self._read(entry, key)) is None:
            return False
        files, _ = found
        names = [name for name in files if name.partition("/")[0] == folder]
        return bool(names) and self._copy(entry, files, names, into=into)

    def record_builder(self, kernel: str, key: str) -> None:
        """Record the trace whose extensions further traces of a kernel use. Raises OSError.

        Args:
            kernel: What all these traces have in common: the kernel's content, and what may change what it builds.
            key: Key of the trace.
        """
        self.sealed.write(self._builder(kernel), key.encode(), cache=BUILDERS, key=kernel)

    def copy_built(self, kernel: str, folder: str, *, into: Path, session: str | None, fresh: bool) -> int | None:
        """Copy the extensions that a trace of a kernel has built, for the worker of another one.

        A worker can write what it likes as an extension. So these are copied for the kernel alone whose worker wrote
        them, from a trace whose dependencies are unchanged: it could write the same in the worker that gets the copies.

        Args:
            kernel: What the two traces have in common, see `record_builder`.
            folder: The folder of the entry that holds the extensions.
            into: The folder to copy to. What is there already is left as it is.
            session: Name of this test run.
            fresh: Copy from a trace of this test run only.

        Returns:
            Number of files; None if no such trace is known.
        """
        from pytest_nvfp4.toolchain.trace import Trace

        key = (self.sealed.read(self._builder(kernel), cache=BUILDERS, key=kernel) or b"").decode()
        entry = self._entry(key)
        if not key or (found := self._read(entry, key)) is None:
            return None
        files, text = found
        trace = Trace.model_validate_json(text)
        of_session = session is not None and trace.session == session
        if (fresh and not of_session) or not _unchanged(trace.dependencies, file_hash):
            return None
        built = {name.rpartition("/")[0] for name in files if name.endswith(f"/{_EXTENSION_FILE}")}
        names = [n for n in files if (place := n.rpartition("/")[0]) in built and place.partition("/")[0] == folder]
        return len(names) if self._copy(entry, files, names, into=into) else None

    def _builder(self, kernel: str) -> Path:
        return self.sealed.folder / BUILDERS / kernel

    def _copy(self, entry: Path, files: Mapping[str, tuple[int, str]], names: Iterable[str], *, into: Path) -> bool:
        """Copy files of an entry without the first folder of their names; False if one is not what was stored."""
        for name in names:
            if not (target := into / name.partition("/")[2]).exists():
                if (data := self._checked(entry, name, files)) is None:
                    return False
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        return True

    def _read(self, entry: Path, key: str) -> tuple[dict[str, tuple[int, str]], bytes] | None:
        """Return size and hash of each file of an entry, and the text of its trace; None without an entry."""
        content = self.sealed.read(entry / _TRACE_FILE, cache=TRACES, key=key, entry=entry)
        if content is None:
            return None
        head, _, text = content.partition(b"\n")
        return {name: (size, digest) for name, size, digest in json.loads(head)}, text

    def _checked(self, entry: Path, name: str, files: Mapping[str, tuple[int, str]]) -> bytes | None:
        """Return the content of a file of an entry; None, and the entry is refused, if it is not what was stored."""
        size, digest = files.get(name, (-1, ""))
        try:
            data = read_regular(entry / name, most=MOST_BYTES, source="a file", size=size)
            if _file_digest(data) == digest:
                return data
            problem = "does not have the content that was stored"
        except DoorError as error:
            problem = error.problem
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        self.sealed.refuse(entry, cache=TRACES, reason=f"has a file {name.rpartition('/')[2]} that {problem}")
        return None

    def building(self) -> AbstractContextManager[Path]:
        """Create a folder to compile in, outside of the cache; it is removed afterwards."""
        return temporary_folder("compile")

    def store(self, key: str, trace: Trace, artifacts: Path) -> Trace:
        """Store a trace and its files under a key, replacing an existing entry.

        Args:
            key: The key.
            trace: The trace.
            artifacts: Folder of its files, of which copies are stored. Other files there are left out.

        Raises:
            OSError: It cannot be written.
        """
        from pytest_nvfp4.toolchain.trace import Trace

        entry = self._entry(key)
        stages = self.sealed.folder / "builds"
        self.sealed.make_folder(stages)
        with temporary_folder("trace", parent=stages) as stage:
            new = stage / "new"
            new.mkdir()
            files = [(name, len(data), _file_digest(data)) for name, data in take_files(artifacts, new).items()]
            text = trace.model_dump_json(exclude={"folder"}).encode()
            content = json.dumps(files).encode() + b"\n" + text
            self.sealed.write(new / _TRACE_FILE, content, cache=TRACES, key=key)
            self.sealed.make_folder(entry.parent)
            for attempt in range(_ATTEMPTS):
                with contextlib.suppress(FileNotFoundError):
                    entry.rename(stage / f"old-{attempt}")
                try:
                    new.rename(entry)
                    break
                except OSError as error:  # another process has stored one meanwhile
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or attempt == _ATTEMPTS - 1:
                        raise
        for pattern in (f"{TRACES}/??/*", f"{BUILDERS}/*"):
            self.prune(pattern, most=_CAPACITY)
        return Trace.model_validate_json(text).model_copy(update={"folder": str(entry)})

    def prune(self, pattern: str, *, most: int) -> None:
        """Remove the least recently used of the sealed files or folders that a pattern names, beyond a number."""
        entries = list(self.sealed.folder.glob(pattern))
        if len(entries) > most:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - most]:
                    path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)


def _unchanged(files: Mapping[str, str], now: Callable[[Path], str]) -> bool:
    return all(now(Path(path)) == before for path, before in files.items())


def is_artifact(name: str) -> bool:
    """Return whether a name is that of a stored artifact."""
    return _ARTIFACT.fullmatch(name) is not None


def take_files(folder: Path, into: Path, *, artifacts: re.Pattern[str] = _ARTIFACT) -> dict[str, bytes]:
    """Copy the files of a trace from a folder that a worker may have written; nothing else there is opened.

    Args:
        folder: The folder.
        into: A new folder, which only this side writes.
        artifacts: Names of artifacts. Those of lowered modules are fixed.

    Returns:
        The content of the copies by name.

    Raises:
        DoorError: A file of such a name is a link or no regular file, or the files are too large or too many.
    """
    taken: dict[str, bytes] = {}
    left = MOST_BYTES
    for path in sorted(_candidates(folder, artifacts)):
        name = path.relative_to(folder).as_posix()
        if len(taken) == _MOST_FILES:
            raise DoorError("the files of the compile", f"are more than {_MOST_FILES}")
        data = taken[name] = read_regular(path, most=left, source=f"the artifact {name[:200]!r}")
        left -= len(data)
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        written = path.lstat().st_mtime_ns  # artifacts are numbered in the order in which they were written
        os.utime(target, ns=(written, written))
    return taken


def _candidates(folder: Path, artifacts: re.Pattern[str]) -> Iterator[Path]:
    for first in _inside(folder):
        if artifacts.fullmatch(first.name):
            yield first
        elif _COMPILED.fullmatch(first.name):
            for module in _inside(first):
                if _MODULE.fullmatch(module.name):
                    yield from (file for file in _inside(module) if _MODULE_FILE.fullmatch(file.name))


def _inside(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder; nothing if it is a link or no folder."""
    if folder.is_dir() and not folder.is_symlink():
        yield from folder.iterdir()


def _file_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
