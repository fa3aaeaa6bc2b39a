"""Every way in which Modal can fail, as far as a server of our own can show it: bounded time, and words that help."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from grpclib import Status
from modal_proto import api_pb2

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from pytest_nvfp4.device.remote.session import RemoteSession
from tests.waiting import LONGEST_S, far_enough

from ..fakes import batch
from ..loopback import Fault, Loopback

Make = Callable[..., ModalRemote]


def trouble(remote: ModalRemote, *, within: float = LONGEST_S) -> RemoteError:
    """The error of one batch in a session."""
    session = RemoteSession(remote, timeout_s=remote.options.timeout_s)
    start = time.monotonic()
    (request,) = session.add([batch()])
    with pytest.raises(RemoteError) as caught:
        request.wait()
    session.close()
    assert time.monotonic() - start < within
    assert caught.value.remedy or caught.value.kind == "remote"
    return caught.value


def status_fault(status: int, text: str) -> Fault:
    def change(answer: Any) -> Any:
        result = api_pb2.GenericResult(status=status, exception=text)  # type: ignore[arg-type]
        answer.ClearField("outputs")
        answer.outputs.add(result=result)
        return answer

    return Fault("FunctionGetOutputs", "answer", change=change)


def test_no_token(server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    error = trouble(remote())
    assert error.kind == "login"
    assert "MODAL_TOKEN_ID" in error.remedy
    assert server.calls == []


@pytest.mark.usefixtures("server")
def test_a_bad_token(remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong-secret")
    error = trouble(remote())
    assert error.kind == "login"
    assert "as-wrong-secret" not in str(error)


@pytest.mark.usefixtures("server")
def test_nothing_listens(remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MODAL_SERVER_URL", f"http://127.0.0.1:{one.getsockname()[1]}")
        error = trouble(remote())
    assert error.kind == "network"
    assert "MODAL_SERVER_URL" in error.remedy


@pytest.mark.usefixtures("server")
def test_a_server_that_accepts_and_never_answers(
    remote: Make, monkeypatch: pytest.MonkeyPatch, impatient: Callable[[], None]
) -> None:
    impatient()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(8)
        monkeypatch.setenv("MODAL_SERVER_URL", f"http://127.0.0.1:{one.getsockname()[1]}")
        error = trouble(remote())
    assert error.kind == "network"
    assert "has not responded" in str(error)


@pytest.mark.parametrize(
    "rpc", ["AppCreate", pytest.param("ImageGetOrCreate", marks=pytest.mark.slow), "FunctionMap", "FunctionGetOutputs"]
)
def test_a_server_that_falls_silent(
    idle_server: Loopback, remote: Make, falls_silent: Callable[[Loopback, str], None], rpc: str
) -> None:
    falls_silent(idle_server, rpc)
    error = trouble(remote())
    assert error.kind == "network", error
    assert "has not responded" in str(error)


@pytest.mark.usefixtures("curious")
def test_a_server_that_lives_but_gives_no_result(idle_server: Loopback, remote: Make) -> None:
    """As when a job hangs: signs of life alone are not enough."""
    idle_server.faults.add(Fault("FunctionGetOutputs", "hang"))
    error = far_enough(
        lambda timeout_s: trouble(remote(timeout_s=timeout_s), within=timeout_s + LONGEST_S),
        lambda _: idle_server.count("FunctionGetOutputs"),
        first_s=2.0,
    )
    assert error.kind in ("timeout", "capacity")
    assert idle_server.count("ClientHello")


@pytest.mark.slow
@pytest.mark.usefixtures("curious")
def test_a_server_without_hello_is_alive_all_the_same(server: Loopback, remote: Make) -> None:
    server.faults.add(
        Fault("ClientHello", "error", status=Status.UNIMPLEMENTED),
        Fault("FunctionGetOutputs", "delay", seconds=1.5, times=1),
    )
    session = RemoteSession(remote())
    assert session.add([batch()])[0].wait().results
    session.close()
    assert server.count("ClientHello")


@pytest.mark.slow
def test_the_server_dies_in_the_middle(
    own_server: Callable[..., Loopback], remote: Make, impatient: Callable[[], None]
) -> None:
    server = own_server(capacity=0)
    server.faults.add(Fault("FunctionGetOutputs", "hang"))
    session = RemoteSession(remote())
    (request,) = session.add([batch()])
    server.wait_for(lambda: server.count("FunctionGetOutputs"))
    start = time.monotonic()
    impatient()
    server.die()
    with pytest.raises(RemoteError) as caught:
        request.wait()
    session.close()
    assert caught.value.kind == "network"
    assert time.monotonic() - start < LONGEST_S


@pytest.mark.slow
def test_no_capacity(own_server: Callable[..., Loopback], remote: Make) -> None:
    server = own_server(capacity=0)
    error = far_enough(
        lambda timeout_s: trouble(remote(timeout_s=timeout_s), within=timeout_s + LONGEST_S),
        lambda _: server.count("FunctionMap"),
        first_s=2.0,
    )
    assert error.kind == "capacity"
    assert "--nvfp4-gpu" in error.remedy


def test_the_image_cannot_be_built(own_server: Callable[..., Loopback], remote: Make) -> None:
    server = own_server()
    server.service.image_status = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
    server.service.image_log = ["Step 1\nlooking for to", "rch==99\n\x1b[31mNo matching distribution ", "found\n"]
    one = remote()
    error = trouble(one)
    assert error.kind == "image"
    assert "torch==99" in str(error)
    assert "    looking for torch==99\n    No matching distribution found" in str(error)
    assert one.left() == ""


@pytest.mark.slow
def test_a_call_that_is_gone_ends_no_session(server: Loopback, remote: Make) -> None:
    """It is sent once more; an app that is gone would refuse that."""
    server.faults.add(Fault("FunctionGetOutputs", "error", times=1, status=Status.NOT_FOUND, message="no such call"))
    session = RemoteSession(remote())
    requests = session.add([batch(number) for number in range(3)])
    assert [len(request.wait().results) for request in requests] == [1, 1, 1]
    session.close()
    assert server.count("FunctionMap") == 4


@pytest.mark.slow
@pytest.mark.parametrize(("recovers", "deadlines"), [(True, False), (False, False), (False, True)])
def test_a_server_that_is_silent_for_a_while(
    server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch, recovers: bool, deadlines: bool
) -> None:
    """Longer than one question waits for its answer; without its end the session ends.

    So it does if something before the server says all the while that a request's deadline has passed.
    """
    monkeypatch.setattr(timeouts, "QUIET_S", 0.2)
    session = RemoteSession(remote())
    assert session.add([batch()])[0].wait().results
    monkeypatch.setattr(timeouts, "SIGN_S", 0.2)
    monkeypatch.setattr(timeouts, "SILENT_S", LONGEST_S if recovers else 1.0)
    monkeypatch.setattr(timeouts, "CANCEL_S", 0.5)
    monkeypatch.setattr(timeouts, "STOP_S", 0.5)
    if deadlines:
        server.faults.add(Fault("FunctionGetOutputs", "error", status=Status.DEADLINE_EXCEEDED))
    server.faults.add(Fault("FunctionGetOutputs", "delay", seconds=0.4, times=1))
    (request,) = session.add([batch(1)])
    server.wait_for(lambda: server.count("FunctionMap") == 2)
    server.answering = False
    asked = server.count("ClientHello")
    server.wait_for(lambda: server.count("ClientHello") > asked + 2 or request.done)
    if recovers:
        server.answering = True
        assert request.wait().results
    else:
        with pytest.raises(RemoteError, match="has not responded"):
            request.wait()
        server.answering = True
    session.close()


def test_a_token_that_is_revoked_in_the_middle(idle_server: Loopback, remote: Make) -> None:
    one = remote()
    session = RemoteSession(one)
    (request,) = session.add([batch()])
    idle_server.wait_for(lambda: idle_server.count("FunctionGetOutputs"))
    idle_server.token = ("ak-another", "as-another")
    (second,) = session.add([batch(1)])
    for waiting in (request, second):
        with pytest.raises(RemoteError, match="Modal refused the token") as caught:
            waiting.wait()
        assert caught.value.kind == "login"
    session.close()


def test_a_result_that_is_gone(idle_server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has none, and nothing that would become one."""

    def none_left(answer: Any) -> Any:
        answer.num_unfinished_inputs = 0
        return answer

    monkeypatch.setattr(timeouts, "POLL_S", 0.1)
    idle_server.faults.add(Fault("FunctionGetOutputs", "answer", change=none_left))
    error = trouble(remote())
    assert error.kind == "lost"
    assert "is deleted" in str(error)


NO_RESULT = [
    ("TIMEOUT", "", "timeout"),
    ("INTERNAL_FAILURE", "worker preempted", "lost"),
    ("INTERNAL_FAILURE", "task exited with exit code: 137", "lost"),
    ("INTERNAL_FAILURE", "exit code 137: the container ran out of memory", "memory"),
    ("FAILURE", "this version of the client is not supported", "remote"),
    ("FAILURE", "Runner was preempted", "lost"),
    ("FAILURE", "Container out of memory: killed", "memory"),
    ("KERNEL_OOM_KILL", "exit code: 137", "memory"),
    ("TERMINATED", "the call was cancelled", "cancelled"),
    ("FAILURE", "SystemExit(3)", "remote"),
    ("FAILURE", "ValueError('what?')", "remote"),
    ("INIT_FAILURE", "Container failed to start", "image"),
]


@pytest.mark.slow
def test_results_that_are_none(server: Loopback, remote: Make) -> None:
    one = remote()
    for status, text, expected in NO_RESULT:
        server.faults.clear()
        server.faults.add(status_fault(getattr(api_pb2.GenericResult, f"GENERIC_STATUS_{status}"), text))
        (end,) = one.collect(one.submit([batch()]), timeout_s=LONGEST_S)
        assert end.error is not None
        assert end.error.kind == expected, (status, text)
        assert text.split("(")[0] in str(end.error)


def test_a_failure_whose_exception_comes_as_a_pickle_is_told_in_its_words(
    idle_server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "POLL_S", 0.1)

    def pickled(answer: Any) -> Any:
        for item in answer.outputs:
            item.result.data = b"\x80\x05pickled"
        return answer

    failure = status_fault(api_pb2.GenericResult.GENERIC_STATUS_INIT_FAILURE, "ImportError: no torch")
    told = failure.change
    assert told is not None
    failure.change = lambda answer: pickled(told(answer))
    idle_server.faults.add(failure)
    error = trouble(remote())
    assert error.kind == "image"
    assert "no container could be started" in str(error)
    assert "ImportError: no torch" in str(error)


REFUSALS = [
    (Status.RESOURCE_EXHAUSTED, "no more", "capacity"),
    (Status.PERMISSION_DENIED, "no", "login"),
    (Status.INVALID_ARGUMENT, "no", "setup"),
    (Status.FAILED_PRECONDITION, "this client version is no longer supported: please upgrade", "version"),
    (Status.FAILED_PRECONDITION, "the client version 1.5.4 is too old", "version"),
    (Status.INVALID_ARGUMENT, "the client sent a GPU. It is not supported", "setup"),
    (Status.UNIMPLEMENTED, "unknown method", "version"),
    (Status.NOT_FOUND, "no such app", "setup"),
]


def test_refusals(server: Loopback, remote: Make) -> None:
    one = remote()
    for status, message, expected in REFUSALS:
        server.faults.clear()
        server.faults.add(Fault("FunctionMap", "error", status=status, message=message))
        with pytest.raises(RemoteError) as caught:
            one.submit([batch()])
        assert caught.value.kind == expected
        assert message in str(caught.value)


@pytest.mark.parametrize("times", [2, 1_000])
def test_a_server_that_asks_for_patience(idle_server: Loopback, remote: Make, times: int) -> None:
    """It is waited for as long as the user allows, and then its own reason is told."""
    fault = Fault("FunctionMap", "error", times=times, status=Status.RESOURCE_EXHAUSTED, message="too many requests")
    fault.retry_after_s = 0.1
    idle_server.faults.add(fault)
    if times == 2:
        assert len(remote().submit([batch()])) == 1
        return

    def ask(timeout_s: float) -> RemoteError:
        fault.retry_after_s = 0.6 * timeout_s  # asked for a second time, it is clear that a third time is too late
        idle_server.calls.clear()
        return trouble(remote(timeout_s=timeout_s), within=timeout_s + LONGEST_S)

    error = far_enough(ask, lambda _: idle_server.count("FunctionMap") > 1, first_s=5.0)
    assert error.kind == "capacity"
    assert "too many requests" in str(error)


def test_warnings_of_the_server_are_no_errors(
    idle_server: Loopback, remote: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where warnings are (``pytest -W error``): the client issues them in the middle of an answer."""
    idle_server.warning = "the workspace is near its limit"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(remote().submit([batch()])) == 1
    assert caplog.text.count("the workspace is near its limit") == 1
    idle_server.warning = ""


@pytest.mark.slow
@pytest.mark.parametrize(("times", "asked", "sent"), [(1, 2, 1), pytest.param(3, 4, 2, marks=pytest.mark.slow)])
def test_a_damaged_result_is_asked_for_again_and_run_again_only_at_last(
    server: Loopback, remote: Make, times: int, asked: int, sent: int
) -> None:
    def damage(answer: Any) -> Any:
        answer.outputs[0].result.data = answer.outputs[0].result.data[:-8]
        return answer

    server.faults.add(Fault("FunctionGetOutputs", "answer", change=damage, times=times))
    session = RemoteSession(remote())
    (request,) = session.add([batch()])
    try:
        assert request.wait().results
        assert (server.count("FunctionGetOutputs"), server.count("FunctionMap")) == (asked, sent)
    finally:
        session.close()


@pytest.mark.slow
def test_a_pickled_answer_is_not_opened(server: Loopback, remote: Make, tmp_path: Any) -> None:
    """A container that was taken over could answer so; nothing of it may run here."""
    import pickle

    bomb = tmp_path / "opened"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(bomb), "w"))

    def change(answer: Any) -> Any:
        answer.ClearField("outputs")
        answer.outputs.add(
            data_format=api_pb2.DATA_FORMAT_PICKLE,
            result=api_pb2.GenericResult(
                status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, data=pickle.dumps(Bomb())
            ),
        )
        return answer

    server.faults.add(Fault("FunctionGetOutputs", "answer", change=change))
    assert trouble(remote()).kind in ("remote", "version", "lost")
    assert not bomb.exists()


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_container_dies(own_server: Callable[..., Loopback], remote: Make, deaths: int) -> None:
    server = own_server()
    server.faults.add(Fault("FunctionPutOutputs", "hang", worker=True, times=deaths))
    session = RemoteSession(remote())
    (request,) = session.add([batch()])
    for number in range(deaths):
        server.wait_for(lambda number=number: server.worker_calls.count("FunctionPutOutputs") == number + 1)  # type: ignore[misc]
        server.kill_container()
    if deaths == 1:
        assert request.wait().results
    else:
        with pytest.raises(RemoteError, match="submitted 2 times") as caught:
            request.wait()
        assert caught.value.kind == "lost"
    session.close()


def test_cancelling_reaches_the_server(idle_server: Loopback, remote: Make) -> None:
    session = RemoteSession(remote())
    (request,) = session.add([batch()])
    idle_server.wait_for(lambda: idle_server.count("FunctionMap"))
    session.cancel([request])
    idle_server.wait_for(lambda: idle_server.count("FunctionCallCancel"))
    session.close()
    assert idle_server.count("AppClientDisconnect") == 1


@pytest.mark.parametrize("gpu", ["B200+", "B200:2", "B200,H200", "B 200", ""])
def test_only_one_gpu_of_one_kind(gpu: str, remote: Make) -> None:
    with pytest.raises(RemoteError, match="--nvfp4-gpu"):
        remote(gpu=gpu)


def test_without_the_client(monkeypatch: pytest.MonkeyPatch, remote: Make) -> None:
    import importlib.metadata

    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "modal":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    error = trouble(remote())
    assert error.kind == "setup"
    assert "pip install" in error.remedy


@pytest.mark.parametrize("version", ["1.4.9", "2.0.0", "0.73.1"])
def test_a_client_that_nobody_tried(monkeypatch: pytest.MonkeyPatch, remote: Make, version: str) -> None:
    import importlib.metadata

    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "modal" else real(name))
    error = trouble(remote())
    assert error.kind == "version"
    assert version in str(error)


@pytest.mark.slow
def test_a_killed_session_leaves_no_container(own_server: Callable[..., Loopback]) -> None:
    """The server's own duty on Modal (heartbeats); here it is that our process leaves nothing on this machine."""
    own_server()
    code = (
        "from tests.device.remote.fakes import batch\n"
        "from pytest_nvfp4.device.remote.base import RemoteOptions\n"
        "from pytest_nvfp4.device.remote.modal.client import ModalRemote\n"
        "from pytest_nvfp4.device.remote.session import RemoteSession\n"
        "import os\n"
        "RemoteSession(ModalRemote(RemoteOptions())).add([batch()])[0].wait()\n"
        "print('answered', flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.stdout == "answered\n", done.stderr
    assert done.returncode == -9
