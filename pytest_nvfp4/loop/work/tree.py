"""The files below a folder that an untrusted process wrote: bounded, through descriptors, without following a link."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MOST_DEPTH: Final = 64
_CHUNK_BYTES: Final = 1 << 20
_OWN: Final = ".git"
"""The repository of the checkout itself, at its top; it is the worker's, and nobody reads it."""
_WHAT: Final = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file",
}  # fmt: skip


class TreeError(ValueError):
    """A tree of files is larger or deeper than allowed, or a file of it cannot be read. The text is a predicate."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a link, or anything else but a folder.

    Attributes:
        path: Path below the top; bytes that are no UTF-8 are lone surrogates, as in `os.fsdecode`.
        status: Its own status; that of a link, not of its target.
        folder: Descriptor of the folder that holds it, which is open while the entry is looked at.
    """

    path: str
    status: os.stat_result
    folder: int

    @property
    def name(self) -> str:
        """Its name in its folder."""
        return self.path.rpartition("/")[2]

    @property
    def what(self) -> str:
        """What it is, as a noun."""
        return _WHAT.get(stat.S_IFMT(self.status.st_mode), "no regular file")

    @property
    def regular(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    def read(self, most: int) -> bytes:
        """Return the content of a regular file of at most ``most`` bytes, as it was at one moment. Raises TreeError."""
        return b"".join(self._chunks(most))

    def digest(self, most: int) -> tuple[bytes, int]:
        """Return the SHA-256 of the content of such a file, and its size. Raises TreeError."""
        whole, size = hashlib.sha256(), 0
        for chunk in self._chunks(most):
            whole.update(chunk)
            size += len(chunk)
        return whole.digest(), size

    def _chunks(self, most: int) -> Iterator[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.name, flags, dir_fd=self.folder)
        except OSError as error:
            raise TreeError(f"cannot be read: {error.strerror}") from None
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise TreeError("is no regular file any more")
            if before.st_size > most:
                raise TreeError(f"has {before.st_size} bytes, and at most {most} are read")
            size = 0
            while chunk := os.read(descriptor, min(_CHUNK_BYTES, most + 1 - size)):
                size += len(chunk)
                if size > most:
                    raise TreeError(f"grew beyond {most} bytes while it was read")
                yield chunk
            if _version(os.fstat(descriptor)) != _version(before):
                raise TreeError("was changed while it was read")
        except OSError as error:
            raise TreeError(f"cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def link(self) -> bytes:
        """Return the target of a link. Raises TreeError."""
        try:
            return os.readlink(os.fsencode(self.name), dir_fd=self.folder)
        except OSError as error:
            raise TreeError(f"cannot be read: {error.strerror}") from None


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def entries(top: int, *, most: int) -> Iterator[Entry]:
    """Yield all entries below an open folder, but not what lies in its own ``.git``.

    Args:
        top: Descriptor of the folder: it is still the same one if a process has renamed or replaced it.
        most: Largest number of entries, folders included.

    Raises:
        TreeError: There are more, folders lie deeper than 64 levels, or one cannot be read.
    """
    left = [most]
    yield from _below(top, "", 1, left, most)


def _below(folder: int, prefix: str, depth: int, left: list[int], most: int) -> Iterator[Entry]:
    with os.scandir(folder) as listing:
        names = []
        for found in listing:
            left[0] -= 1
            if left[0] < 0:
                raise TreeError(f"holds more than {most} files and folders")
            names.append(found.name)
    for name in sorted(names):
        path = prefix + name
        if path == _OWN:
            continue
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            yield Entry(path, status, folder)
            continue
        if depth > _MOST_DEPTH:
            raise TreeError(f"holds folders deeper than {_MOST_DEPTH} levels")
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            raise TreeError(f"holds the folder {path[:200]!r}, which cannot be read: {error.strerror}") from None
        try:
            yield from _below(inner, f"{path}/", depth + 1, left, most)
        finally:
            os.close(inner)


@dataclass(frozen=True, slots=True)
class Known:
    """What a file was before a worker ran.

    Attributes:
        size: Bytes; of a link, those of its target's name.
        executable: Whether its owner may execute it.
        digest: SHA-256 of the content, or of the target of a link.
        link: Whether it is a link.
    """

    size: int
    executable: bool
    digest: bytes
    link: bool

    @classmethod
    def of(cls, entry: Entry, *, most: int) -> Known:
        """Read an entry. Raises TreeError."""
        if stat.S_ISLNK(entry.status.st_mode):
            target = entry.link()
            return cls(len(target), False, hashlib.sha256(target).digest(), True)
        digest, size = entry.digest(most)
        return cls(size, bool(entry.status.st_mode & stat.S_IXUSR), digest, False)


def take(top: int, *, most: int, most_bytes: int) -> dict[str, Known]:
    """Return all files and links below an open folder by path. Raises TreeError as `entries` and `Entry.read`."""
    return {entry.path: Known.of(entry, most=most_bytes) for entry in entries(top, most=most)}
