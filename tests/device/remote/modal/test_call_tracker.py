"""No call that was begun is left to its own time limit: with a deployed app, nothing but a cancel would end it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpclib import Status
from modal_proto import api_pb2

from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError
from pytest_nvfp4.device.remote.modal.call_tracker import CallTracker
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from pytest_nvfp4.device.remote.session import RemoteSession
from tests.waiting import LONGEST_S

from ..fakes import batch
from ..loopback import Fault, Loopback
from .user import User, start

Make = Callable[..., ModalRemote]
APP = "pytest-nvfp4"


@pytest.fixture(scope="module")
def deployed_server() -> Iterator[Loopback]:
    """A server with our app deployed on it, and no container free."""
    import modal

    from pytest_nvfp4.device.remote.modal.build import make_app
    from pytest_nvfp4.device.remote.modal.settings import ModalSettings

    with Loopback(backend="none", capacity=0) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        client = modal.Client.from_credentials("ak-loopback-id", "as-loopback-secret")
        app, _ = make_app(ModalSettings())
        app.deploy(name=APP, client=client)
        client.close()
        yield server


@pytest.fixture
def full(deployed_server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    deployed_server.forget()
    for name, value in deployed_server.environ().items():
        monkeypatch.setenv(name, value)
    return deployed_server


def cancelled(server: Loopback) -> list[str]:
    """The calls that the server was asked to cancel."""
    requests = zip(server.calls, server.received, strict=True)
    return [
        api_pb2.FunctionCallCancelRequest.FromString(sent).function_call_id
        for name, sent in requests
        if name == "FunctionCallCancel"
    ]


def calls(server: Loopback) -> set[str]:
    """The calls that wait, or run."""
    return {one.call_id for one in server.service.inputs.values() if one.output is None and not one.cancelled}


@pytest.mark.parametrize("slow", [0.0, 0.4])
def test_a_program_that_waits_for_a_container(full: Loopback, remote: Make, slow: float) -> None:
    """It has said nothing yet, its name included; it may be just being sent."""
    one, ends = remote(deployed_app=APP), []
    full.faults.add(Fault("FunctionMap", "delay", seconds=slow))

    def run() -> None:
        with pytest.raises(RemoteError) as caught:
            one.execute(PythonProgram(source="print(1)"), on_output=lambda *_: None)
        ends.append(caught.value.kind)

    thread = threading.Thread(target=run)
    thread.start()
    full.wait_for(lambda: full.count("FunctionMap"))
    one.stop()
    thread.join(LONGEST_S)
    assert ends == ["cancelled"]
    assert full.count("FunctionMap") == 1
    assert len(cancelled(full)) == 1
    assert calls(full) == set()


@pytest.mark.slow
def test_a_program_where_the_server_offers_attempts(idle_server: Loopback, remote: Make) -> None:
    """An attempt has no name by which it could be cancelled: the program is a call there, too."""
    idle_server.service.attempts = True
    one = remote()

    def run() -> None:
        with pytest.raises(RemoteError, match="has ended"):
            one.execute(PythonProgram(source="print(1)"), on_output=lambda *_: None)

    thread = threading.Thread(target=run)
    thread.start()
    idle_server.wait_for(lambda: idle_server.count("FunctionMap"))
    one.stop()
    thread.join(LONGEST_S)
    assert not thread.is_alive()
    assert idle_server.count("AttemptStart") == 0
    assert len(cancelled(idle_server)) == 1


def test_a_program_that_has_cost_enough(full: Loopback, remote: Make) -> None:
    one = remote(deployed_app=APP, max_cost=1e-9)
    with pytest.raises(RemoteError, match="the program was stopped") as caught:
        one.execute(PythonProgram(source="print(1)"), on_output=lambda *_: None)
    assert caught.value.kind == "cost"
    assert len(cancelled(full)) == full.count("FunctionMap")
    assert calls(full) == set()


def test_a_server_that_falls_silent_while_a_program_waits(
    full: Loopback, remote: Make, falls_silent: Callable[[Loopback, str], None]
) -> None:
    falls_silent(full, "FunctionGetOutputs")
    with pytest.raises(RemoteError, match="has not responded") as caught:
        remote(deployed_app=APP).execute(PythonProgram(source="print(1)"), on_output=lambda *_: None)
    assert caught.value.kind == "network"


@pytest.mark.slow
@pytest.mark.usefixtures("curious")
def test_a_program_that_says_nothing_for_long(server: Loopback, remote: Make, tmp_path: Path) -> None:
    """The control: silence of the program is none of the server."""
    enough = tmp_path / "enough"
    source = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\nprint(1)\n"
    program = PythonProgram(source=source, arguments=(str(enough),), deadline_s=10 * LONGEST_S)

    def ask_no_more() -> None:
        server.wait_for(lambda: server.count("ClientHello") > 2)
        enough.touch()

    thread = threading.Thread(target=ask_no_more)
    thread.start()
    assert remote().execute(program, on_output=lambda *_: None) == 0
    thread.join()
    assert enough.exists()


def test_a_batch_that_is_just_being_sent(full: Loopback, remote: Make) -> None:
    full.faults.add(Fault("FunctionMap", "delay", seconds=0.4))
    session = RemoteSession(remote(deployed_app=APP), containers=2)
    requests = session.add([batch(number) for number in range(3)])
    full.wait_for(lambda: full.count("FunctionMap"))
    session.close()
    assert all(request.done for request in requests)
    assert full.count("FunctionMap") == len(cancelled(full)) == 3
    assert calls(full) == set()


def test_when_one_of_several_cannot_be_sent_the_others_are_cancelled(full: Loopback, remote: Make) -> None:
    """Their names never came to the session."""
    full.faults.add(Fault("FunctionMap", "error", after=2, status=Status.RESOURCE_EXHAUSTED))
    session = RemoteSession(remote(deployed_app=APP), containers=2)
    for request in session.add([batch(number) for number in range(4)]):
        with pytest.raises(RemoteError, match="no more capacity for this workspace"):
            request.wait()
    session.close()
    assert len(cancelled(full)) == 2
    assert calls(full) == set()


@pytest.mark.slow
def test_what_has_ended_is_not_cancelled(server: Loopback, remote: Make) -> None:
    """The negative control."""
    one = remote()
    session = RemoteSession(one)
    for request in session.add([batch(number) for number in range(3)]):
        request.wait()
    assert one.execute(PythonProgram(source="print(1)"), on_output=lambda *_: None) == 0
    session.close()
    assert server.count("FunctionMap") == 4
    assert cancelled(server) == []


def test_a_call_that_was_lost_on_the_way_is_sent_again_under_the_same_key(full: Loopback, remote: Make) -> None:
    """Four refusals are more than the client would try by itself."""
    full.faults.add(Fault("FunctionMap", "error", times=4, status=Status.UNAVAILABLE))
    one = remote(deployed_app=APP)
    one.submit([batch()])
    assert full.count("FunctionMap") == 5
    keys = {head for name, head in zip(full.calls, full.idempotency_keys, strict=True) if name == "FunctionMap"}
    assert len(keys) == 1


@pytest.mark.slow
def test_ctrl_c_before_a_container_has_started(full: Loopback, tmp_path: Any) -> None:
    user = User(full, tmp_path)
    process = start(user, "--deployed-app", APP, "print(1)")
    try:
        full.wait_for(lambda: full.count("FunctionMap"))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LONGEST_S) == 130
    finally:
        process.kill()
        process.communicate()
    assert len(cancelled(full)) == 1
    assert calls(full) == set()


@pytest.mark.slow
def test_ctrl_c_in_pytest_before_a_container_has_started(full: Loopback, tmp_path: Any) -> None:
    user = User(full, tmp_path)
    user.write("kernel.py", "def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
    more = ("--nvfp4-problem=7x128x256", "--nvfp4-problem=3x128x256", "--nvfp4-deployed-app", APP)
    process = user.start("kernel.py", "-k", "verify", *more)
    try:
        full.wait_for(lambda: full.count("FunctionMap"))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
    assert process.returncode == 2, said
    assert len(cancelled(full)) == full.count("FunctionMap")
    assert calls(full) == set()


def test_batches_are_cancelled_also_where_nothing_is_overheard(
    full: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a client whose inside is another."""
    monkeypatch.setattr(CallTracker, "attach", lambda *_: None)
    one = remote(deployed_app=APP)
    calls = one.submit([batch(1), batch(2), batch(3)])
    one.cancel(calls[:1])
    assert cancelled(full) == [calls[0].id]
    one.stop()
    assert sorted(cancelled(full)) == sorted(call.id for call in calls)


def test_a_client_with_another_inside_is_left_alone() -> None:
    heard = CallTracker()
    heard.attach(object())
    assert heard.open() == []
    assert asyncio.run(heard.wait_sent(timeout_s=0.1))
