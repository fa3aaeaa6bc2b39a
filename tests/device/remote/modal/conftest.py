"""Loopback servers, and clients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("modal", reason="modal is not installed: pip install 'pytest-nvfp4[modal]'")
pytest.importorskip("grpclib")

from pytest_nvfp4.device.remote.base import RemoteOptions
from pytest_nvfp4.device.remote.modal import patience
from pytest_nvfp4.device.remote.modal.client import ModalRemote

from ..loopback import Loopback


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
        made.append(ModalRemote(RemoteOptions(**{"timeout_s": 60.0, **more})))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice silence after fractions of a second."""
    monkeypatch.setattr(patience, "QUIET_S", 0.4)
    monkeypatch.setattr(patience, "SIGN_S", 0.5)
    monkeypatch.setattr(patience, "STOP_S", 2.0)
    monkeypatch.setattr(patience, "STATUS_S", 1.0)
