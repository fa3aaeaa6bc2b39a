"""The lock of a loop: one process at a time, taken over when its owner has ended.

The system's lock on a file (flock(2)) ends with the process, however it ends. Beside it stands who holds it, for people
and for file systems on which such locks do not reach from one host to another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.clock import Clock, seconds_of
from pytest_nvfp4.loop.state import Heartbeat, LockOwner, read_model, write_model
from pytest_nvfp4.text import visible


class LockedError(Exception):
    """Another process runs this loop."""


class LoopLock:
    """A lock that other processes on this host, and as far as heartbeats tell on others, respect.

    Args:
        file: File that names the owner; a second one, which is locked, lies beside it.
        what: What is locked, for the error.
        heartbeat: Heartbeat file of the loop that wants the lock.
        stale_s: Seconds without a heartbeat after which an owner on another host counts as ended.
    """

    def __init__(self, file: Path, *, what: str, heartbeat: Path, stale_s: float, clock: Clock | None = None) -> None:
        self._file, self._what, self._heartbeat, self._stale_s = file, what, heartbeat, stale_s
        self._guard = file.with_name(file.name + ".guard")
        self._clock = clock or Clock()
        self._held = -1

    def __enter__(self) -> Self:
        """Take the lock. Raises LockedError and OSError."""
        held = self._guarded()
        try:
            owner = read_owner(self._file)
            if owner is not None and self._runs(owner):
                raise LockedError(self._refusal(owner))
            write_model(self._file, this_process(self._heartbeat, self._clock))
        except BaseException:
            os.close(held)
            raise
        self._held = held
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        del kind, error, trace
        held, self._held = self._held, -1
        with contextlib.suppress(OSError):
            if self._is_in_place(held):  # the directory of state may have been renamed
                self._file.unlink(missing_ok=True)
                self._guard.unlink()
                self._file.parent.rmdir()
        os.close(held)

    def _guarded(self) -> int:
        """Return the descriptor of the file whose lock this process now holds. Raises LockedError and OSError."""
        while True:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                held = os.open(self._guard, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # the former owner has removed the folder
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(held)
                raise LockedError(self._refusal(read_owner(self._file))) from None
            except OSError:
                return held  # a file system without such locks: who is named as the owner decides
            if self._is_in_place(held):
                return held
            os.close(held)

    def _is_in_place(self, held: int) -> bool:
        """Return whether a lock is worth something: its file may have been removed or renamed."""
        try:
            return os.path.samestat(self._guard.lstat(), os.fstat(held))
        except FileNotFoundError:
            return False

    def _runs(self, owner: LockOwner) -> bool:
        if owner.host == socket.gethostname():
            # The lock of the system is free; where there are no such locks, the owner may be alive all the same.
            return owner.pid != os.getpid() and is_running(owner)
        last = max(seconds_of(owner.created_at) or 0.0, self._last_beat(owner))
        return abs(self._clock.now() - last) < self._stale_s

    def _last_beat(self, owner: LockOwner) -> float:
        with contextlib.suppress(OSError, DoorError):
            beat = read_model(Path(owner.heartbeat) if owner.heartbeat else self._heartbeat, Heartbeat)
            if beat is not None and beat.host == owner.host:
                return seconds_of(beat.updated_at) or 0.0
        return 0.0

    def _refusal(self, owner: LockOwner | None) -> str:
        who, wait = "another process", "until it has ended"
        if owner is not None:
            who = f"process {owner.pid} on {visible(owner.host)} since {visible(owner.created_at)}"
            if owner.host != socket.gethostname():
                wait = f"until no heartbeat has come for {self._stale_s / 60:g} minutes (limits.lock_minutes)"
        return f"{self._what} is in use by {who}; end it with `nvfp4 loop stop`, or wait {wait}"


def this_process(heartbeat: Path, clock: Clock) -> LockOwner:
    """Return the calling process as an owner."""
    return LockOwner(
        pid=os.getpid(),
        started=_start_of(os.getpid()),
        boot=_boot(),
        host=socket.gethostname(),
        created_at=clock.stamp(),
        heartbeat=str(heartbeat.absolute()),
    )


def read_owner(file: Path) -> LockOwner | None:
    """Return who is named as the owner; None if nobody is, or nobody who can be read."""
    with contextlib.suppress(OSError, DoorError):
        return read_model(file, LockOwner)
    return None


def is_running(owner: LockOwner) -> bool:
    """Return whether an owner on this host is alive: its number may belong to a later process by now."""
    if owner.boot and owner.boot != _boot():
        return False
    started = _start_of(owner.pid)
    return started > 0 and owner.started in (0, started)


def _start_of(pid: int) -> int:
    """Return the start of a process in clock ticks since the boot (proc(5), field 22); 0 if it has ended."""
    try:
        # The second field is the program's name in parentheses, which may itself hold parentheses and spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
