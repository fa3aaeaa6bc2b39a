"""A process that looks late, as other work held it up, takes nobody who was in time for late, and loses no words."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_nvfp4.isolation.monitor import ProcessMonitor

SOURCE = "import os, sys; print('out'); print('err', file=sys.stderr); os.write(int(sys.argv[1]), b'result')"
SAID = {"stdout": b"out\n", "stderr": b"err\n", "result": b"result"}

Ended = Callable[..., ProcessMonitor]


@pytest.fixture
def ended() -> Iterator[Ended]:
    """Watches of a process that has ended already; nothing that it wrote has been read."""
    reads: list[int] = []

    def make(*, until: float) -> ProcessMonitor:
        read, write = os.pipe()
        reads.append(read)
        process = subprocess.Popen(
            [sys.executable, "-c", SOURCE, str(write)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        process.wait()
        return ProcessMonitor(process, read, token="of-nobody", until=until)

    yield make
    for read in reads:
        os.close(read)


def said(watch: ProcessMonitor) -> dict[str, bytes]:
    return dict(watch.output())


def test_who_ended_before_the_deadline_is_in_time_however_late_that_is_seen(ended: Ended) -> None:
    watch = ended(until=time.monotonic() - 5)
    assert said(watch) == SAID
    assert not watch.timed_out


def test_what_was_written_is_read_however_long_after_the_end(ended: Ended) -> None:
    watch = ended(until=time.monotonic() + 1000)
    watch._notice_end()
    watch._until = time.monotonic() - 5  # the time for reading on has passed
    assert said(watch) == SAID


def test_who_has_not_ended_is_late() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        ["sleep", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as one:
        os.close(write)
        watch = ProcessMonitor(one, read, token="of-nobody", until=time.monotonic() - 5)
        assert said(watch) == {}
        assert watch.timed_out
    os.close(read)
