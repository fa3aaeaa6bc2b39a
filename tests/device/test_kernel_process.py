"""The kernel's process as the machine's process sees it."""

from __future__ import annotations

import os
import select
import socket
from typing import Any, NoReturn

import pytest

from pytest_nvfp4.device.worker import kernel_process
from pytest_nvfp4.device.worker.kernel_fork import ForkedKernel
from pytest_nvfp4.device.worker.kernel_process import KernelProcess
from pytest_nvfp4.machine.wire import Channel

POLL = select.poll


class EndFirst:
    """``select.poll`` that a busy machine interrupts: of what a process did before its end, it shows the end alone."""

    def __init__(self) -> None:
        self._poll = POLL()
        self._last = -1

    def register(self, descriptor: Any, events: int) -> None:
        self._poll.register(descriptor, events)
        self._last = descriptor

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        if timeout is not None:
            return self._poll.poll(timeout)
        select.select([self._last], [], [])
        return [(self._last, select.POLLIN)]


def answering(*messages: str) -> ForkedKernel:
    """Fork a process that answers one command, and ends."""
    commands, own_commands = socket.socketpair()
    requests, own_requests = socket.socketpair()
    pid = os.fork()
    if not pid:
        commands.close()
        channel = Channel(own_commands)
        channel.receive()
        channel.send("returned", {"messages": [*messages]})
        os._exit(0)
    own_commands.close()
    own_requests.close()
    return ForkedKernel(pid, commands, requests, (0, 0))


def unexpected(what: object) -> NoReturn:
    raise AssertionError(what)


class AtOnce(EndFirst):
    """``select.poll`` of a process that a busy machine runs late: it shows all, when the other process has ended."""

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        super().poll(timeout)
        return self._poll.poll(0)


@pytest.mark.parametrize("poll", [select.poll, EndFirst, AtOnce])
def test_the_last_answer_counts_although_the_process_has_ended(poll: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_process.select, "poll", poll)
    monkeypatch.setattr(KernelProcess, "_ended", unexpected)  # which would end this process
    process: Any = KernelProcess(answering("m"), None, None, violated=unexpected, crashed=unexpected)  # type: ignore[arg-type]
    assert process.end() == ["m"]
