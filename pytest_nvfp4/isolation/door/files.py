"""Files from outside: regular, of a bounded size that is compared before a byte is read, without links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from pytest_nvfp4.isolation.door.error import DoorError

_CHUNK_BYTES = 1 << 20
_MOST_PARTS = 32
_WHAT = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def file_name_problem(name: str) -> str | None:
    """Return why a name from outside is no path of a file below a folder, as a predicate; None if it is one."""
    if not name or "\0" in name or "\\" in name:
        return "is not a name of a file"
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or not parts or len(parts) > _MOST_PARTS:
        return "must be relative and stay below its folder"
    return None


def read_file(path: Path, *, source: str, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; links are followed, as the user may have set one.

    Raises:
        DoorError: It is no regular file, or is larger.
        OSError: It cannot be read; FileNotFoundError if it does not exist.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise DoorError(source, "has a name that no file can have") from None
    try:
        size = _regular(descriptor, source)
        if size > most:
            raise DoorError(source, f"has {size} bytes, and at most {most} are read")
        return _read(descriptor, most=most, source=source)
    finally:
        os.close(descriptor)


def read_text(path: Path, *, source: str, most: int) -> str:
    """Return the text of a UTF-8 file. Raises DoorError and OSError as `read_file`."""
    try:
        return read_file(path, source=source, most=most).decode()
    except UnicodeDecodeError as error:
        raise DoorError(source, f"is not UTF-8: byte {error.start} cannot be decoded") from None


def read_below(folder: Path, name: str, *, source: str, size: int) -> bytes:
    """Return the content of a file that an answer names, of exactly ``size`` bytes.

    No component of the name may be a link, also no hard one: a process that may write to the folder could link a
    private file of this user there. Its size is compared before it is read.

    Args:
        folder: Folder that is shared with the other side.
        name: Path below the folder.
        source: What the file is, for the error.
        size: Its announced size, which the caller has compared with what was asked.

    Raises:
        DoorError: The name leaves the folder, or the file is missing, is no regular file, or has another size.
    """
    if problem := file_name_problem(name):
        raise DoorError(source, f"is named {name[:80]!r}, which {problem}")
    parts = PurePosixPath(name).parts
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened.append(os.open(part, flags, dir_fd=opened[-1]))
        # O_NONBLOCK, so that a pipe in its place does not wait for a writer.
        opened.append(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened[-1]))
        found = _regular(opened[-1], source)
        if os.fstat(opened[-1]).st_nlink != 1:
            raise DoorError(source, "is a hard link, and links are not followed")
        if found != size:
            raise DoorError(source, f"has {found} bytes, and {size} are expected")
        data = _read(opened[-1], most=size, source=source)
    except OSError as error:
        raise DoorError(source, _open_problem(error)) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    if len(data) != size:
        raise DoorError(source, f"has {len(data)} bytes, and {size} are expected")
    return data


def purge(folder: Path, *, most: int) -> list[str]:
    """Remove from a folder what no worker needs to leave there, and return a predicate for each.

    Afterwards the folder's own entries are regular files of together at most ``most`` bytes, and folders, whose content
    is not looked at. Links, pipes, sockets and devices are removed, and then the largest files.
    """
    problems = []
    files: list[tuple[int, Path]] = []
    for path in sorted(folder.iterdir()):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            files.append((found.st_size, path))
        elif not stat.S_ISDIR(found.st_mode):
            path.unlink()
            problems.append(
                f"{path.name[:80]!r} is {_WHAT.get(stat.S_IFMT(found.st_mode), 'no regular file')}, not a file"
            )
    total = sum(size for size, _ in files)
    for size, path in sorted(files, reverse=True):
        if total <= most:
            break
        path.unlink()
        total -= size
        problems.append(f"{path.name[:80]!r} has {size} bytes, and at most {most} are read")
    return problems


def _open_problem(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return "is a link, and links are not followed"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "did not come with the answer"
    return f"cannot be read: {error.strerror or error}"


def _regular(descriptor: int, source: str) -> int:
    """Return the size of an open regular file. Raises DoorError."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise DoorError(source, f"is {_WHAT.get(stat.S_IFMT(found.st_mode), 'no regular file')}, not a file")
    return found.st_size


def _read(descriptor: int, *, most: int, source: str) -> bytes:
    """Read to the end, which must come within ``most`` bytes: a file may grow while it is read."""
    chunks = bytearray()
    while chunk := os.read(descriptor, min(_CHUNK_BYTES, most + 1 - len(chunks))):
        chunks += chunk
        if len(chunks) > most:
            raise DoorError(source, f"grew beyond {most} bytes while it was read")
    return bytes(chunks)
