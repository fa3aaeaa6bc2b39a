"""``nvfp4 exec --device modal`` as a user runs it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import ROOT, git
from tests.waiting import LONGEST_S, alive, far_enough, until

from ..loopback import Fault, Loopback
from ..programs import SLEEPS, read_pids
from .user import User, start

LAUNCHES = """
import sys, torch
print(torch.cuda.get_device_name(0), int((torch.arange(8, device="cuda") * 3).sum()))
"""


@pytest.fixture
def user(shared_server: Loopback, tmp_path: Path) -> User:
    shared_server.forget()
    return User(shared_server, tmp_path)


def run(user: User, *arguments: object, stdin: bytes = b"", backend: str = "none") -> tuple[int, str, str]:
    process = start(user, *arguments, stdin=subprocess.PIPE, backend=backend)
    out, error = process.communicate(stdin, timeout=5 * LONGEST_S)
    return process.returncode, out.decode(), error.decode()


@pytest.mark.slow
def test_a_file_with_what_is_mounted_and_nothing_else(user: User) -> None:
    git("init", "-q", cwd=user.folder)
    user.write("helper.py", "WORD = 'mounted'\n")
    user.write(".env", "KEY=not-to-be-sent-77\n")
    user.write("local/deep/x", "data")
    user.write(
        "program.py",
        "import helper, os, sys\n"
        "print(helper.WORD, open('far/deep/x').read(), sys.argv[1:], sys.stdin.read(), os.path.exists('.env'))\n"
        "print(sorted(os.environ), file=sys.stderr)\n"
        "sys.exit(9)\n",
    )
    given = ["--mount", "--mount-dir", "local:far", "--env", "MINE=1", "--stdin", "program.py", "a", "--b"]
    status, out, error = run(user, *given, stdin=b"typed")
    assert (status, out) == (9, "mounted data ['a', '--b'] typed False\n"), error
    assert "'MINE'" in error
    assert "not mounted, because they look like secrets: .env" in error
    assert "MODAL_TOKEN" not in error.partition("[")[2], "nor are Modal's variables in the program's environment"
    (user.folder / ".env").unlink()
    user.assert_no_secret(out, error, secrets=["not-to-be-sent-77"])


@pytest.mark.slow
def test_code_on_standard_input_and_as_an_argument(user: User) -> None:
    status, out, error = run(user, "-", "x", stdin=b"import sys; print(sys.argv[1:]); raise ValueError('no')")
    assert (status, out) == (1, "['x']\n")
    # What it cost comes at the end.
    told = [line for line in error.splitlines() if not line.startswith("nvfp4: modal: ")]
    assert told[-1] == "ValueError: no", error


@pytest.mark.slow
def test_what_it_computes_on_a_device_is_simulated_where_that_is_asked_for(user: User) -> None:
    status, out, _ = run(user, "--json", LAUNCHES, backend="sim")
    said = json.loads(out)
    assert (status, said["status"], said["stdout"]) == (0, 0, "NVIDIA B200 84\n"), said


@pytest.mark.slow
def test_ctrl_c_ends_it_there_and_output_comes_while_it_runs(user: User) -> None:
    file = user.folder / "pids"
    process = start(user, SLEEPS.format(file=str(file)))
    try:
        pids = read_pids(file)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", "before it has ended"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LONGEST_S) == 130
    finally:
        process.kill()
        process.communicate()
    assert until(lambda: not any(map(alive, pids)))
    assert user.server.count("FunctionCallCancel") == 1
    assert user.server.count("AppClientDisconnect") == 1


@pytest.mark.slow
def test_ctrl_c_with_a_deployed_app_leaves_its_container_for_the_next(user: User) -> None:
    """Nothing but a cancel of the call ends the program there; the container goes on."""
    server = user.server
    subprocess.run(
        [sys.executable, "-m", "modal", "deploy", "-m", "pytest_nvfp4.device.remote.modal.app"],
        env=user.environment(PYTHONPATH=str(ROOT)),
        check=True,
        capture_output=True,
        timeout=LONGEST_S,
    )
    file = user.folder / "pids"
    process = start(user, "--deployed-app", "pytest-nvfp4", SLEEPS.format(file=str(file)))
    try:
        pids = read_pids(file)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LONGEST_S) == 130
    finally:
        process.kill()
        process.communicate()
    assert until(lambda: not any(map(alive, pids)))
    containers = list(server.service.containers)
    assert len(containers) == 1
    assert run(user, "--deployed-app", "pytest-nvfp4", "print(1)")[:2] == (0, "1\n")
    assert list(server.service.containers) == containers


HANGS = "print('up', flush=True); import time; time.sleep(600)"


def run_within(user: User, seconds: float) -> tuple[int, str, str]:
    """Run a program that hangs, with a deadline that is not over before it has begun."""
    return far_enough(
        lambda deadline_s: run(user, "--timeout", f"{deadline_s:g}", HANGS), lambda end: end[1], first_s=seconds
    )


@pytest.mark.slow
def test_deadlines_and_crashes_keep_their_status(user: User) -> None:
    status, out, error = run_within(user, 2)
    assert (status, out) == (124, "up\n"), error
    assert re.search(r"stopped after \d+ s", error)
    assert run(user, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")[0] == 137


@pytest.mark.slow
def test_a_deadline_begins_when_the_program_does(user: User) -> None:
    """A container that takes longer to come than the program may run."""
    slow = Fault("ContainerHello", "delay", worker=True)
    user.server.faults.add(slow)
    for seconds in (1, 10):  # ten where a second is not enough to start a Python
        slow.seconds = 4.0 * seconds
        status, out, error = run(user, "--timeout", seconds, "print('up')")
        if status == 0:
            break
    assert (status, out) == (0, "up\n"), error
    status, out, error = run_within(user, 1)
    assert (status, out) == (124, "up\n"), error


@pytest.mark.slow
def test_no_machine_comes_within_the_wait(user: User) -> None:
    capacity, user.server.service.capacity = user.server.service.capacity, 0
    try:
        status, out, error = far_enough(
            lambda wait_s: run(user, "--remote-timeout", f"{wait_s:g}", "--timeout", "600", "print('up')"),
            lambda _: user.server.count("FunctionMap"),
            first_s=4,
        )
    finally:
        user.server.service.capacity = capacity
    assert (status, out) == (2, "")
    assert re.search(r"did not start within \d+ s", error)
    assert "--remote-timeout" in error
    assert "Traceback" not in error
    assert user.server.count("FunctionCallCancel") == 1


@pytest.mark.slow
def test_much_output_of_both_streams_in_order(user: User) -> None:
    code = (
        "import sys\n"
        "for number in range(20000):\n"
        "    print(number, 'x' * 90)\n"
        "    if number % 100 == 0: print(number, file=sys.stderr)\n"
    )
    status, out, error = run(user, code)
    assert status == 0
    assert [int(line.split()[0]) for line in out.splitlines()] == list(range(20000))
    assert [int(line) for line in error.splitlines() if line.isdigit()] == list(range(0, 20000, 100))


@pytest.mark.slow
def test_the_container_dies_in_the_middle(user: User) -> None:
    file = user.folder / "pids"
    process = start(user, SLEEPS.format(file=str(file)))
    read_pids(file)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    user.server.kill_container()
    out, error = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 2
    assert out == b""
    assert b"modal:" in error
    assert b"Traceback" not in error
