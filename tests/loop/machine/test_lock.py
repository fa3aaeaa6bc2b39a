"""The lock: one process at a time; what a dead process, a reused number or a silent host holds is taken over."""

import os
import signal
import socket
from pathlib import Path

import pytest

from pytest_nvfp4.loop.clock import Clock, stamp
from pytest_nvfp4.loop.machine.lock import LockedError, LoopLock, is_running, read_owner, this_process
from pytest_nvfp4.loop.state import Heartbeat, LockOwner, write_model
from tests.waiting import until

NOW = 1_800_000_000.0


class StoppedClock(Clock):
    def now(self) -> float:
        return NOW


@pytest.fixture
def lock(tmp_path: Path) -> LoopLock:
    return _lock(tmp_path)


def _lock(folder: Path) -> LoopLock:
    return LoopLock(
        folder / "lock" / "active.lock",
        what="the loop",
        heartbeat=folder / "heartbeat.json",
        stale_s=600,
        clock=StoppedClock(),
    )


def _owned_by(folder: Path, **fields: object) -> None:
    owner = this_process(folder / "heartbeat.json", StoppedClock()).model_dump() | fields
    write_model(folder / "lock" / "active.lock", LockOwner.model_validate(owner))


def test_a_second_one_is_refused_until_the_first_is_released(tmp_path: Path, lock: LoopLock) -> None:
    with lock:
        with pytest.raises(LockedError, match=f"process {os.getpid()} on .*nvfp4 loop stop"), _lock(tmp_path):
            pass
        assert read_owner(tmp_path / "lock" / "active.lock") is not None
    assert read_owner(tmp_path / "lock" / "active.lock") is None
    with lock:
        pass


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path, lock: LoopLock) -> None:
    if (child := os.fork()) == 0:
        with _lock(tmp_path):
            signal.pause()
    file = tmp_path / "lock" / "active.lock"
    try:
        assert until(lambda: (owner := read_owner(file)) is not None and owner.pid == child)
        with pytest.raises(LockedError, match=f"process {child} on"), lock:
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    owner = read_owner(file)
    assert owner is not None
    assert not is_running(owner)
    with lock:
        assert (taken := read_owner(file)) is not None
        assert taken.pid == os.getpid()


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": os.getppid(), "started": 1},  # a later process has the number
        {"pid": os.getppid(), "boot": "another boot"},
        {"pid": (1 << 31) - 1},
        {},  # left by this very process
        {"host": "elsewhere", "created_at": stamp(NOW - 601)},
        {"host": "elsewhere", "created_at": ""},
        {"host": "elsewhere", "created_at": stamp(NOW + 601)},  # a clock that has jumped is no sign of life
    ],
)
def test_what_is_stale_is_taken_over(tmp_path: Path, lock: LoopLock, fields: dict[str, object]) -> None:
    _owned_by(tmp_path, **fields)
    with lock:
        owner = read_owner(tmp_path / "lock" / "active.lock")
        assert owner is not None
        assert (owner.pid, owner.host) == (os.getpid(), socket.gethostname())


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": os.getppid(), "started": 0},  # a file system without locks
        {"host": "elsewhere", "created_at": stamp(NOW - 599)},
    ],
)
def test_what_may_be_alive_is_not_taken_over(tmp_path: Path, lock: LoopLock, fields: dict[str, object]) -> None:
    _owned_by(tmp_path, **fields)
    with pytest.raises(LockedError), lock:
        pass
    owner = read_owner(tmp_path / "lock" / "active.lock")
    assert owner is not None
    assert owner.model_dump().items() >= fields.items()


@pytest.mark.parametrize(
    ("host", "age", "taken"), [("elsewhere", 10, False), ("elsewhere", 601, True), ("x", 10, True)]
)
def test_the_heartbeat_of_another_host_counts(
    tmp_path: Path, lock: LoopLock, host: str, age: float, taken: bool
) -> None:
    _owned_by(tmp_path, host="elsewhere", created_at=stamp(NOW - 7200))
    write_model(tmp_path / "heartbeat.json", Heartbeat(host=host, updated_at=stamp(NOW - age)))
    if taken:
        with lock:
            return
    with pytest.raises(LockedError, match=r"no heartbeat has come for 10 minutes \(limits\.lock_minutes\)"), lock:
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": -1, "host": "x"}', '{"pid": "rm -rf"}', "\0" * 100])
def test_a_damaged_file_names_nobody(tmp_path: Path, lock: LoopLock, text: str) -> None:
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / "active.lock").write_text(text)
    with lock:
        pass
