"""Loopback servers, and clients of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("modal", reason="modal is not installed: pip install 'pytest-nvfp4[modal]'")
pytest.importorskip("grpclib")

from pytest_nvfp4.device.remote.base import RemoteOptions
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from tests.waiting import LONGEST_S

from ..loopback import Fault, Loopback


def _aim(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODAL_PROFILE", "MODAL_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Loopback]:
    """A server whose containers run nothing and answer at once."""
    with Loopback(backend="none") as server:
        yield server


@pytest.fixture
def server(shared_server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """The shared server, without faults and with nothing said to it."""
    shared_server.forget()
    _aim(shared_server, monkeypatch)
    yield shared_server
    shared_server.forget()


@pytest.fixture
def idle_server(server: Loopback) -> Iterator[Loopback]:
    """The shared server, with no containers: a test that needs no result need not wait for a process to start."""
    capacity, server.service.capacity = server.service.capacity, 0
    yield server
    server.service.capacity = capacity


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Loopback]]:
    """Servers of the test's own."""
    made: list[Loopback] = []

    def make(**more: Any) -> Loopback:
        made.append(Loopback(**{"backend": "none", **more}).__enter__())
        _aim(made[-1], monkeypatch)
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


@pytest.fixture
def remote() -> Iterator[Callable[..., ModalRemote]]:
    """Remotes that are stopped at the end."""
    made: list[ModalRemote] = []

    def make(**more: Any) -> ModalRemote:
        made.append(ModalRemote(RemoteOptions(**{"timeout_s": 10 * LONGEST_S, **more})))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is well is waited for, however slow this machine is."""
    for name in ("CONNECT_S", "SIGN_S", "SILENT_S", "SENT_S", "CANCEL_S", "STOP_S", "STATUS_S"):
        monkeypatch.setattr(timeouts, name, LONGEST_S)


@pytest.fixture
def curious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a sign of life after fractions of a second of silence, and wait for it."""
    monkeypatch.setattr(timeouts, "QUIET_S", 0.4)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As ``curious``. Once called: wait a fraction of a second for it, and not for long at the end."""
    monkeypatch.setattr(timeouts, "QUIET_S", 0.4)

    def lose_patience() -> None:
        shorter = {"CONNECT_S": 1.0, "SIGN_S": 0.5, "SILENT_S": 0.9, "SENT_S": 0.5}
        shorter |= {"CANCEL_S": 2.0, "STOP_S": 2.0, "STATUS_S": 1.0}
        for name, seconds in shorter.items():
            monkeypatch.setattr(timeouts, name, seconds)

    return lose_patience


@pytest.fixture
def falls_silent(impatient: Callable[[], None]) -> Iterator[Callable[[Loopback, str], None]]:
    """Has a server say nothing any more as soon as it was asked something."""
    threads: list[threading.Thread] = []

    def make(server: Loopback, rpc: str) -> None:
        server.faults.add(Fault(rpc, "hang"))

        def hush() -> None:
            server.wait_for(lambda: server.count(rpc))
            impatient()
            server.faults.add(Fault("ClientHello", "hang"))

        threads.append(threading.Thread(target=hush))
        threads[-1].start()

    yield make
    for thread in threads:
        thread.join()
