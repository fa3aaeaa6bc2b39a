"""Every end leaves nothing that costs money, or says what may still run and how to end it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from grpclib import Status

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from tests.cli.helpers import ROOT
from tests.waiting import LONGEST_S, gone

from ..fakes import batch
from ..loopback import Fault, Loopback
from .user import SMALL, User, start

Make = Callable[..., ModalRemote]
SLEEPS = "print('up', flush=True); import time; time.sleep(600)"


@pytest.fixture(scope="module")
def ready_server() -> Iterator[Loopback]:
    """A server whose containers pass a probe."""
    with Loopback(backend="exact:run") as server:
        yield server


@pytest.fixture
def ready(ready_server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    for app in ready_server.service.apps.values():
        ready_server.service._end_app(app)
    ready_server.forget()
    for name, value in ready_server.environ().items():
        monkeypatch.setenv(name, value)
    yield ready_server
    ready_server.forget()


def command(user: User, *arguments: str) -> tuple[int, str, str]:
    """``nvfp4`` in the user's folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.cli", *arguments],
        cwd=user.folder,
        env=user.environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_sigterm_ends_a_program_as_ctrl_c_does(shared_server: Loopback, tmp_path: Path) -> None:
    shared_server.forget()
    process = start(User(shared_server, tmp_path), SLEEPS)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in told
    assert shared_server.count("FunctionCallCancel") == 1
    assert shared_server.count("AppClientDisconnect") == 1
    assert b"may still run" not in told


@pytest.mark.slow
def test_a_second_ctrl_c_waits_and_a_third_leaves_and_says_what_is_left(
    shared_server: Loopback, tmp_path: Path
) -> None:
    shared_server.forget()
    process = start(User(shared_server, tmp_path), SLEEPS)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"up\n"
        shared_server.faults.add(Fault("FunctionCallCancel", "hang"), Fault("AppClientDisconnect", "hang"))
        process.send_signal(signal.SIGINT)
        shared_server.wait_for(lambda: shared_server.count("FunctionCallCancel"))
        process.send_signal(signal.SIGINT)
        told = process.stderr.readline() + process.stderr.readline()
        assert b"cancelling what runs; once more leaves it as it is" in told
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in told
    app = list(shared_server.service.apps.values())[-1].app_id.encode()
    assert b"the app " + app in told
    assert b"may still run: `nvfp4 remote stop modal` ends it" in told
    shared_server.forget()
    shared_server.end_apps()


@pytest.mark.slow
def test_a_terminal_that_is_closed_cancels_what_runs(shared_server: Loopback, tmp_path: Path) -> None:
    """SIGHUP comes, and every write to the terminal fails."""
    shared_server.forget()
    user = User(shared_server, tmp_path)
    user.write("kernel.py", "def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
    shared_server.faults.add(Fault("FunctionGetOutputs", "hang"))
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(user.folder)
        arguments = user.command("kernel.py", "-k", "verify", *SMALL)
        os.execve(arguments[0], arguments, user.environment())
    try:
        shared_server.wait_for(lambda: shared_server.count("FunctionMap"))
    finally:
        os.close(terminal)
    shared_server.wait_for(lambda: shared_server.count("AppClientDisconnect"))
    assert shared_server.count("FunctionCallCancel") == shared_server.count("FunctionMap")
    os.waitpid(process, 0)
    assert gone(process)


@pytest.mark.slow
def test_an_app_whose_end_was_not_confirmed_is_named(
    server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = remote()
    one.submit([batch()])
    assert "may still run" in one.left(), "before the end it does"
    monkeypatch.setattr(timeouts, "STOP_S", 0.5)
    server.faults.add(Fault("AppClientDisconnect", "hang"))
    one.stop()
    (app,) = [app for app in server.service.apps.values() if not app.ended]
    assert f"app {app.app_id} http" in one.left()
    server.forget()
    two = remote()
    two.submit([batch()])
    two.stop()
    assert two.left() == "", "the control"
    assert remote().end_all() == [f"app pytest-nvfp4 ({app.app_id}, 1 container)"]


@pytest.mark.slow
def test_what_is_warmed_is_used_by_the_next_run_and_stopped_by_the_command(ready: Loopback, tmp_path: Path) -> None:
    user = User(ready, tmp_path)
    status, out, error = command(user, "remote", "warm", "modal", "--json")
    assert (status, error.count("\n")) == (0, 1), "it waits, and nothing more: " + error
    said = json.loads(out)
    assert said["cost"]["usd"] > 0.5, "5 minutes of an idle B200 are paid for"
    assert "stay up for 300 s after their last job: `nvfp4 remote stop modal` ends them now" in said["left"]
    containers = list(ready.service.containers)
    assert len(containers) == 1
    ready.calls.clear()
    status, out, error = command(user, "exec", "--device", "modal", "print(1)")
    assert (status, out) == (0, "1\n"), error
    assert "pytest-nvfp4-warm-" in error
    assert list(ready.service.containers) == containers
    assert not {"AppCreate", "ImageGetOrCreate"} & set(ready.calls)
    status, out, error = command(user, "exec", "--device", "modal", "--gpu", "H200", "print(1)")
    assert (status, ready.count("AppCreate")) == (0, 1), "the control: another GPU needs another container"
    status, out, error = command(user, "remote", "stop", "modal")
    assert status == 0, error
    assert "stopped app pytest-nvfp4-warm-" in out
    assert ready.count("AppStop") == 1
    assert not any(one.alive for one in ready.service.containers.values())
    assert "nothing of this tool runs there" in command(user, "remote", "stop", "modal")[1]
    user.assert_no_secret(out, error)


@pytest.mark.slow
def test_a_warmed_container_that_cannot_be_used_is_stopped(server: Loopback, remote: Make) -> None:
    """The containers of this server run nothing."""
    one = remote()
    with pytest.raises(RemoteError, match="runs nothing"):
        one.warm()
    one.stop()
    assert server.count("AppStop") == 1
    assert one.left() == ""


@pytest.mark.slow
def test_a_stop_that_does_not_stop_fails(server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = remote()
    one.submit([batch()])
    monkeypatch.setattr(timeouts, "STOP_S", 0.3)
    server.faults.add(Fault("AppStop", "answer", change=lambda answer: answer))
    monkeypatch.setattr(server.service, "_end_app", lambda _: None)
    with pytest.raises(RemoteError, match="still running after"):
        remote().end_all()
    monkeypatch.undo()


@pytest.mark.slow
def test_a_deployed_app_loses_its_containers_and_stays(server: Loopback, remote: Make) -> None:
    import modal

    from pytest_nvfp4.device.remote.modal.build import make_app

    one = remote(deployed_app="mine")
    app, _ = make_app(one.settings)
    app.deploy(name="mine", client=modal.Client.from_credentials(*server.token))
    (call,) = one.submit([batch()])
    assert next(one.collect([call], timeout_s=LONGEST_S)).result
    one.stop()
    assert "stay up for 20 s after their last job: `nvfp4 remote stop modal --deployed-app mine` ends" in one.left()
    assert not any("mine" in ended for ended in remote().end_all()), "that is not the usual name"
    (ended,) = remote(deployed_app="mine").end_all()
    assert ended.startswith("the containers of the deployed app mine (ap-")
    assert (server.count("ContainerStop"), server.count("AppStop")) == (1, 0)
    again = remote(deployed_app="mine")
    (call,) = again.submit([batch()])
    assert next(again.collect([call], timeout_s=LONGEST_S)).result, "it is still deployed"


@pytest.mark.parametrize("kind", ["error", "hang"])
def test_a_server_that_knows_nothing_of_warmed_apps_serves_all_the_same(
    idle_server: Loopback, remote: Make, monkeypatch: pytest.MonkeyPatch, kind: Literal["error", "hang"]
) -> None:
    monkeypatch.setattr(timeouts, "SIGN_S", 0.3)
    idle_server.faults.add(Fault("ClassGet", kind, status=Status.UNKNOWN))
    assert len(remote().submit([batch()])) == 1
    assert idle_server.count("ClassGet")
