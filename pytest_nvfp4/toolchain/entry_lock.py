"""A lock on a cache entry while it is made, which a stopped process does not hold for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_POLL_S = 1.0
_LOCKS = Path("/proc/locks")


@contextlib.contextmanager
def entry_lock(file: Path) -> Iterator[None]:
    """Hold a lock file, so that of several processes one makes an entry, and the others find it.

    The system releases the lock of a process that was killed. If the one that holds it is stopped (SIGSTOP), this one
    goes on without the lock: the entry is then made twice, and each replaces it whole. So it does where the file cannot
    be locked.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=_POLL_S)
        except Timeout:
            pass
        except OSError:
            break
        if _holder_is_stopped(file):
            break
    try:
        yield
    finally:
        lock.release()


def _holder_is_stopped(file: Path) -> bool:
    """Return whether the process that holds the lock is stopped; False if that is not known (see proc_locks(5))."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = str(file.stat().st_ino)
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                status = Path(f"/proc/{int(fields[4])}/stat").read_text(encoding="utf-8", errors="replace")
                return status.rpartition(")")[2].split()[0] in ("T", "t")
    return False
