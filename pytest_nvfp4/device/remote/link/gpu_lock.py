"""Lock of a GPU: sessions use it one at a time, so that no kernel is timed while another one runs."""

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
    """Open the lock file of any user; return None if the path is something else (a link, a folder)."""
    with suppress(FileExistsError, PermissionError):
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return None


@contextmanager
def exclusive_gpu(gpu: str, *, waiting: Callable[[], None], folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of a GPU of this machine; sessions of other users take the same lock.

    Args:
        gpu: The GPU, as in ``CUDA_VISIBLE_DEVICES``; empty for no GPU, which needs no lock.
        waiting: Called once if another session holds the lock.
        folder: Folder of the lock files, for tests.
    """
    name = "".join(character if character.isalnum() else "-" for character in gpu)
    descriptor = _open((folder or Path(_FOLDER)) / f"pytest-nvfp4-gpu-{name}.lock") if gpu else None
    if descriptor is None:
        yield
        return
    try:
        reported = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not reported:
                    waiting()
                    reported = True
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
