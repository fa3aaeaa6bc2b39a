"""One session at a time on a GPU: others wait, so that nobody's kernel is timed beside another's."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_S = 0.05
_FOLDER = "/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir()  # the same for every session, whatever its TMPDIR


def _open(path: Path) -> int | None:
    """The lock file, for whoever made it; None where somebody put something else in its place."""
    with suppress(FileExistsError, PermissionError):
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return None


@contextmanager
def gpu_to_itself(gpu: str, *, waiting: Callable[[], None], folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of a GPU of this machine; other users' sessions of this package take the same.

    Args:
        gpu: What names it, as in ``CUDA_VISIBLE_DEVICES``; empty for none, which needs no lock.
        waiting: Called once if somebody else has it.
        folder: Where the lock files are, for tests.
    """
    name = "".join(character if character.isalnum() else "-" for character in gpu)
    descriptor = _open((folder or Path(_FOLDER)) / f"pytest-nvfp4-gpu-{name}.lock") if gpu else None
    if descriptor is None:
        yield
        return
    try:
        said = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    waiting()
                    said = True
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
