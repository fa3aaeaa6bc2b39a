"""The baseline's own layouts and facts as snapshots, where the repository has none.

They lie in the directory of state and are copied into the worktree of each candidate; the user's files stay as they
are. A snapshot that the repository has is never replaced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FOLDER: Final = "snapshots"
_SKIPPED: Final = frozenset({".git", "__pycache__", ".pytest_cache"})
Stamps = dict[str, tuple[int, int]]


def stamps(root: Path) -> Stamps:
    """Return size and time of change of each file of a worktree."""
    found = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _SKIPPED]
        for name in files:
            path = Path(folder, name)
            status = path.lstat()
            found[path.relative_to(root).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found


def keep_new(root: Path, before: Stamps, into: Path) -> bool:
    """Copy the files that were added to a worktree; return whether none of those before has changed.

    They replace what an interrupted call left.
    """
    after = stamps(root)
    shutil.rmtree(into / _FOLDER, ignore_errors=True)
    for name in sorted(after.keys() - before.keys()):
        _copy(root / name, into / _FOLDER / name)
    return all(after.get(name) == stamp for name, stamp in before.items())


def lay_out(root: Path, source: Path) -> None:
    """Copy the kept snapshots into a worktree, except those that it has."""
    for name in _kept(source / _FOLDER):
        if not (root / name).exists():
            _copy(source / _FOLDER / name, root / name)


def _kept(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
