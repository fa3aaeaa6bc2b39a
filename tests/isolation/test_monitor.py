"""A monitor that was itself held up reports no timeout of a process that ended in time, and loses no output."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_nvfp4.isolation.monitor import ProcessMonitor

SOURCE = "import os, sys; print('out'); print('err', file=sys.stderr); os.write(int(sys.argv[1]), b'result')"
OUTPUT = {"stdout": b"out\n", "stderr": b"err\n", "result": b"result"}

Ended = Callable[..., ProcessMonitor]


@pytest.fixture
def ended() -> Iterator[Ended]:
    """Factory of monitors of a process that has ended and whose output has not been read."""
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
        return ProcessMonitor(process, read, until=until)

    yield make
    for read in reads:
        os.close(read)


def output_of(monitor: ProcessMonitor) -> dict[str, bytes]:
    return dict(monitor.output())


def test_an_end_before_the_deadline_is_in_time_however_late_it_is_noticed(ended: Ended) -> None:
    monitor = ended(until=time.monotonic() - 5)
    assert output_of(monitor) == OUTPUT
    assert not monitor.timed_out


def test_output_is_read_however_long_after_the_end(ended: Ended) -> None:
    monitor = ended(until=time.monotonic() + 1000)
    monitor._check_end()
    monitor._until = time.monotonic() - 5  # the time for reading on has passed
    assert output_of(monitor) == OUTPUT


def test_a_process_that_has_not_ended_times_out() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        ["sleep", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        os.close(write)
        monitor = ProcessMonitor(process, read, until=time.monotonic() - 5)
        assert output_of(monitor) == {}
        assert monitor.timed_out
    os.close(read)
