"""Sealed files: entries of the caches, which only a process with the key of their folder can have written.

A file begins with a line that holds a digest, keyed with 32 random bytes, of the cache's name, the entry's key and the
content. So a file that was damaged, cut off, or copied from another entry, cache or folder is a cache miss. The key is
a file of mode 0600 in the same folder. A process that runs a kernel's code must neither read nor write below that
folder: see `sealed_folder`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_below
from pytest_nvfp4.temporary import name_beside, remove_unfinished
from pytest_nvfp4.text import plural

_FOLDER = "sealed"
_KEY_FILE = "key"
_KEY_BYTES = 32
_MAGIC = b"nvfp4-sealed 1 "
_DIGEST_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + 2 * _DIGEST_BYTES + 1
MOST_BYTES = 256 << 20
"""Size of the largest file that is read or stored."""


def sealed_folder(root: Path) -> Path:
    """Return the folder of all sealed files below a cache root, with their key.

    It is the one folder of the cache that no process with a kernel's code may read or write. What else is in the cache
    root is not sealed: environments of other DSL versions, and trees of other revisions.
    """
    return root / _FOLDER


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry of a cache that was not used.

    Attributes:
        cache: Name of the cache.
        file: The file or folder.
        reason: What is wrong with it, as a predicate.
    """

    cache: str
    file: str
    reason: str


class SealedFiles:
    """Reads and writes the sealed files of one cache root; all caches of a process below that root may share it.

    Attributes:
        refused: Entries that were refused. Each was removed, and is made anew when it is stored again.
    """

    def __init__(self, root: Path) -> None:
        self.folder = sealed_folder(root)
        self.refused: list[RefusedEntry] = []
        self._lock = threading.Lock()
        self._known_key: bytes | None = None

    def read(self, path: Path, *, cache: str, key: str, entry: Path | None = None) -> bytes | None:
        """Return the content of an entry; None if there is none, or if it is refused.

        Args:
            path: The file.
            cache: Name of the cache.
            key: Key of the entry.
            entry: What is removed if the file is refused, if that is more than the file.
        """
        try:
            data = read_regular(path, most=MOST_BYTES, source="the entry")
            content = memoryview(data)[_HEAD_BYTES:]
            if hmac.compare_digest(data[:_HEAD_BYTES], self._seal(cache, key, content)):
                return bytes(content)
            reason = "has a seal that does not fit its content, key and cache"
        except FileNotFoundError:
            return None
        except DoorError as error:
            reason = error.problem
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        self.refuse(entry or path, cache=cache, reason=reason)
        return None

    def write(self, path: Path, content: bytes, *, cache: str, key: str) -> None:
        """Write an entry whole. Raises OSError if it cannot be written; an old one is unchanged then."""
        self.make_folder(path.parent)
        write_file(path, self._seal(cache, key, content), content)

    def make_folder(self, path: Path) -> None:
        """Make a folder below the sealed one, in place of anything else that lies there. Raises OSError."""
        parts = path.relative_to(self.folder).parts
        for place in (self.folder, *(self.folder.joinpath(*parts[: count + 1]) for count in range(len(parts)))):
            _make_folder(place)

    def refuse(self, path: Path, *, cache: str, reason: str) -> None:
        """Record that an entry is not used, and remove it, whatever lies in its place."""
        self.refused.append(RefusedEntry(cache, str(path), reason))
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _seal(self, cache: str, key: str, content: bytes | memoryview) -> bytes:
        """Return the first line of an entry. Raises OSError if there is no key and none can be written."""
        digest = hashlib.blake2b(key=self._key(), digest_size=_DIGEST_BYTES, person=b"nvfp4-cache")
        for part in (cache.encode(), key.encode(), content):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return _MAGIC + digest.hexdigest().encode() + b"\n"

    def _key(self) -> bytes:
        with self._lock:
            if self._known_key is None:
                self._known_key = _stored_key(self.folder) or _new_key(self.folder)
            return self._known_key


def refused_lines(refused: Sequence[RefusedEntry]) -> list[str]:
    """Return one line for each cache and reason with entries that were refused: which, and what was done."""
    counts = Counter((entry.cache, entry.reason) for entry in refused)
    first = {(entry.cache, entry.reason): entry.file for entry in reversed(refused)}
    lines = []
    for (cache, reason), count in counts.items():
        more = f" (and so {plural(count - 1, 'more entry', 'more entries')})" if count > 1 else ""
        lines.append(f"cache {cache!r}: {first[cache, reason]} {reason}{more}; removed, and computed again")
    return lines


def read_regular(path: Path, *, most: int, source: str, size: int | None = None) -> bytes:
    """Return the content of a regular file, without following a link in its place.

    Args:
        path: The file.
        most: Largest size in bytes, which is compared before anything is read.
        source: What the file is, for the error.
        size: The exact size, if it is known.

    Raises:
        DoorError: It is something else, or has another size.
        FileNotFoundError: There is nothing.
        OSError: Nothing can be known about it.
    """
    found = path.lstat()
    if stat.S_ISREG(found.st_mode) and (found.st_size > most or size not in (None, found.st_size)):
        raise DoorError(source, f"has an unexpected size of {found.st_size} bytes")
    return read_below(path.parent, path.name, source=source, size=found.st_size)


def write_file(path: Path, *parts: bytes | memoryview, mode: int = 0o600) -> None:
    """Write a file beside its place and rename it, so that no reader sees a part of it, also after a crash.

    Raises:
        OSError: It cannot be written; an old file is unchanged.
    """
    remove_unfinished(path.parent)
    beside = name_beside(path)
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
        try:
            beside.replace(path)
        except IsADirectoryError:
            shutil.rmtree(path)
            beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _stored_key(folder: Path) -> bytes | None:
    """Return the key of a folder; None if there is none that nobody else could have read or written."""
    path = folder / _KEY_FILE
    try:
        found = path.lstat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        return read_regular(path, most=_KEY_BYTES, source="the key", size=_KEY_BYTES)
    except (OSError, DoorError):
        return None


def _make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder in place of anything else that lies there. Raises OSError."""
    if not folder.is_dir():
        with contextlib.suppress(IsADirectoryError, PermissionError):  # another process has made the folder since
            folder.unlink(missing_ok=True)
        folder.mkdir(mode=mode, parents=True, exist_ok=True)


def _new_key(folder: Path) -> bytes:
    """Make the key of a folder, or return the one that another process has made meanwhile. Raises OSError."""
    from filelock import FileLock  # here, because most runs of pytest have no kernels

    _make_folder(folder, mode=0o700)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without a lock, the process that writes last decides which entries last
            stack.enter_context(FileLock(folder / f"{_KEY_FILE}.lock"))
        if (known := _stored_key(folder)) is not None:
            return known
        key = secrets.token_bytes(_KEY_BYTES)
        write_file(folder / _KEY_FILE, key)
        return key
