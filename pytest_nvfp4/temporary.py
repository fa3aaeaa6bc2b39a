"""Temporary folders and files that the next run removes if the process that made them is killed.

Beside each folder lies a file that its owner holds locked (flock(2)). The system releases the lock when the owner ends,
however it ends, so a folder with a free lock belongs to nobody. This also holds where process numbers do not tell: in
containers that share a folder, and after a restart. A file that is written beside its place and then renamed has the
number of its process in its name; it exists for moments only.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PREFIX: Final = "nvfp4-tmp-"
_LOCK: Final = ".lock"
_BESIDE: Final = ".tmp"
_UNFINISHED: Final = re.compile(r"\..*\.([0-9]+)-[0-9a-f]{8}\.tmp", re.DOTALL)


class TemporaryFolder:
    """A new folder of this process.

    Args:
        purpose: A word in its name, for people.
        parent: The folder that it is made in; the system's folder of temporary files by default.

    Attributes:
        path: The folder.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, purpose: str, *, parent: Path | None = None) -> None:
        place = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(place)
        while True:
            self.path = place / f"{_PREFIX}{purpose}-{secrets.token_hex(6)}"
            held = _lock(_lock_of(self.path), create=True)
            if held is not None:
                break
        self._held = held
        try:
            self.path.mkdir(mode=0o700)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder; what cannot be removed is left to the next run. A second call has no effect."""
        if self._held < 0:
            return
        _remove(self.path)
        held, self._held = self._held, -1
        os.close(held)


@contextmanager
def temporary_folder(purpose: str, *, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for the length of a ``with`` block; see `TemporaryFolder`."""
    folder = TemporaryFolder(purpose, parent=parent)
    try:
        yield folder.path
    finally:
        folder.remove()


@contextmanager
def folder_in(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in one of this process's own for the length of a ``with`` block."""
    made = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield made
    finally:
        remove_tree(made)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all below it, as far as this user may; a link is left alone.

    A kernel chooses what it holds: folders inside each other, deeper than any recursion (``shutil.rmtree``) and longer
    than any path, or without permissions. So folders are moved to the top before they are looked into.
    """
    if folder.is_symlink():
        return
    moved, pending = 0, [folder]
    name = f".{_PREFIX}{secrets.token_hex(8)}-"
    while pending:
        place = pending.pop()
        inside: list[Path] = []
        with contextlib.suppress(OSError):
            place.chmod(0o700)
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in list(entries):
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        inside.append(Path(entry.path))
                    else:
                        os.unlink(entry.path)  # noqa: PTH108 - of a name that may be no path
        for below in inside:
            if place == folder:
                pending.append(below)
                continue
            with contextlib.suppress(OSError):
                below.chmod(0o700)  # its entry ".." changes
                moved += 1
                pending.append(below.rename(folder / f"{name}{moved}"))
        if place != folder:
            with contextlib.suppress(OSError):
                place.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the folders of this user in ``parent`` whose owners have ended."""
    place = Path(tempfile.gettempdir()) if parent is None else parent
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.name.endswith(_LOCK):
                file = place / entry.name
                if (held := _lock(file, create=False)) is not None:
                    _remove(file.with_name(entry.name.removesuffix(_LOCK)))
                    os.close(held)


def name_beside(path: Path) -> Path:
    """Return a new name beside a file or folder, for a process that makes it there and renames it to ``path``."""
    return path.with_name(f".{path.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}{_BESIDE}")


def remove_unfinished(folder: Path) -> None:
    """Remove what has a name of `name_beside` in a folder, and whose process has ended before it renamed it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (named := _UNFINISHED.fullmatch(entry.name)) and not _lives(int(named[1])):
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(Path(entry.path))
                    continue
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)


def _remove(folder: Path) -> None:
    """Remove a folder, and then its lock file, unless a part of the folder remains."""
    remove_tree(folder)
    if not folder.is_dir():
        with contextlib.suppress(OSError):
            _lock_of(folder).unlink()


def _lock(file: Path, *, create: bool) -> int | None:
    """Return the descriptor of a lock file that this process now holds; None if it is held, foreign, or gone."""
    import fcntl

    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | ((os.O_CREAT | os.O_EXCL) if create else 0)
    try:
        held = os.open(file, flags, 0o600)
    except FileExistsError:
        return None
    except OSError:
        if create:
            raise
        return None
    try:
        found = os.fstat(held)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have removed the file between the two calls; a lock on it is then worth nothing.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.stat(file, follow_symlinks=False), found):  # noqa: PTH116
                        return held
    except OSError:
        # A file system without locks: nobody can tell whether the owner lives, so the folder is never removed for it.
        if create:
            return held
    os.close(held)
    return None
