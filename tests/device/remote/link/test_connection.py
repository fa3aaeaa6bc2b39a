"""A line to a Python of this machine: all of it but ssh."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError
from pytest_nvfp4.device.remote.bundle import bundle
from pytest_nvfp4.device.remote.link import bootstrap, client
from pytest_nvfp4.device.remote.link.client import BOOTSTRAP, AgentConnection, AgentSettings
from pytest_nvfp4.device.remote.link.frames import Message
from tests.device.remote.programs import HONEST, SLEEPS, batch_of, children, read_pids, script
from tests.waiting import LONGEST_S, alive, until

Open = Callable[..., AgentConnection]


def ended(status: int | None, errors: str) -> RemoteError:
    return RemoteError("remote", f"ended with {status}: {errors}")


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The far side's folder."""
    folder = tmp_path / "far"
    folder.mkdir()
    return folder


@pytest.fixture
def line(far: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Makes lines, and closes them; the far end may take its time to put away what it has."""
    monkeypatch.setattr(client, "_END_S", LONGEST_S)
    made: list[AgentConnection] = []

    def make(*command: str, **settings: object) -> AgentConnection:
        settings = {"folder": str(far), "hello_s": LONGEST_S, "ready_s": LONGEST_S, **settings}
        one = AgentConnection(
            list(command) or [sys.executable, "-c", BOOTSTRAP],
            environ=os.environ,
            settings=AgentSettings(**settings),  # type: ignore[arg-type]
            explain=ended,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def run(one: AgentConnection, source: str, **program: object) -> tuple[int, str, str]:
    """Run a program: status, output, errors."""
    said = {"stdout": b"", "stderr": b""}

    def take(stream: str, piece: bytes) -> None:
        said[stream] += piece

    execution = PythonProgram(source, **program)  # type: ignore[arg-type]
    status = one.execute(execution, on_output=take, on_state=lambda _: None)
    return status, said["stdout"].decode(), said["stderr"].decode()


def trouble(one: AgentConnection) -> RemoteError:
    with pytest.raises(RemoteError) as raised:
        one.open()
    assert not one.alive
    return raised.value


@pytest.mark.slow
def test_a_program_runs_there_and_nothing_is_left(line: Open, far: Path) -> None:
    one = line()
    about = one.open()
    assert about.executable == sys.executable
    status, out, err = run(
        one,
        "import os, sys\nprint(sys.argv[1:], open('a/b').read(), sys.stdin.read())\n"
        "os.write(2, b'to stderr')\nsys.exit(7)",
        arguments=("x y", "--z"),
        files={"a/b": b"mounted"},
        stdin=b"given",
    )
    assert (status, out, err) == (7, "['x y', '--z'] mounted given\n", "to stderr")
    assert run(one, "raise ValueError('no')")[0] == 1
    assert run(one, "import os; os.kill(os.getpid(), 11)")[0] == 128 + signal.SIGSEGV
    assert [entry.name for entry in far.iterdir()], "it works in the folder that was named"
    one.close()
    assert list(far.iterdir()) == []


@pytest.mark.parametrize("freed", [True, False])
def test_a_gpu_of_another_session_is_waited_for_on_its_own(
    line: Open, monkeypatch: pytest.MonkeyPatch, freed: bool
) -> None:
    """The wait is none of the program's time, and has an end."""
    one, states = line(), []

    def far_side(message: Message) -> None:
        if message.kind != "execute":
            return
        said = [("state", {"state": "waiting"})]
        said += [("state", {"state": "running"}), ("exit", {"status": 0, "timed_out": False})] if freed else []
        for kind, header in said:
            one._inbox.put(Message(kind, {"id": message.header["id"], **header}))

    monkeypatch.setattr(one, "_send", far_side)
    monkeypatch.setattr(client, "_SLACK_S", LONGEST_S)
    program = PythonProgram("pass", deadline_s=LONGEST_S)
    if freed:
        assert one.execute(program, on_output=lambda *_: None, on_state=states.append, wait_s=LONGEST_S) == 0
        assert states == ["waiting", "running"]
        return
    with pytest.raises(RemoteError, match="did not provide a free GPU before the timeout") as raised:
        one.execute(program, on_output=lambda *_: None, on_state=states.append, wait_s=0.1)
    assert (raised.value.kind, states) == ("timeout", ["waiting"])


@pytest.mark.slow
def test_output_comes_as_it_is_written(line: Open, tmp_path: Path) -> None:
    """The program goes on only when its last line has come."""
    one = line()
    one.open()
    seen: list[bytes] = []

    def take(_stream: str, piece: bytes) -> None:
        seen.append(piece)
        (tmp_path / str(b"".join(seen).count(b"\n"))).touch()

    source = (
        "import os, sys, time\n"
        "for i in range(3):\n"
        "    print(i)\n"
        "    while not os.path.exists(os.path.join(sys.argv[1], str(i + 1))):\n"
        "        time.sleep(0.01)\n"
    )
    program = PythonProgram(source, arguments=(str(tmp_path),), deadline_s=LONGEST_S)
    assert one.execute(program, on_output=take, on_state=lambda _: None) == 0
    assert b"".join(seen) == b"0\n1\n2\n"


@pytest.mark.slow
def test_a_batch_is_done_there(line: Open) -> None:
    from pytest_nvfp4.device.verdict import Judge

    one = line(backend="host")
    one.open()
    batch = batch_of(HONEST)
    states: list[str] = []
    answer = one.execute_batch(batch, timeout_s=LONGEST_S, on_state=states.append)
    assert states == ["running"]
    assert answer.batch == batch.id
    (result,) = answer.results
    assert result.status == "passed", result.findings
    assert all(output.data.inline for output in result.outputs), "the outputs come along"
    (verdict,) = Judge().judge(batch.jobs[0], result, folder=None)  # type: ignore[arg-type]
    assert verdict.status == "passed", verdict.findings


@pytest.mark.slow
def test_the_deadline_of_a_program_is_kept_there(line: Open) -> None:
    one = line()
    one.open()
    status, _, err = run(one, "import time; time.sleep(600)", deadline_s=0.5)
    assert status == 124
    assert "stopped after 0.5 s" in err


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancel", "close", "cut"])
def test_what_runs_ends_with_whoever_wanted_it(line: Open, far: Path, tmp_path: Path, end: str) -> None:
    relay = script(tmp_path / "relay", f'cat | {sys.executable} "$@"')
    one = line(str(relay), "-c", BOOTSTRAP)
    one.open()
    file = tmp_path / "pids"
    raised: list[BaseException] = []

    def take(_stream: str, _piece: bytes) -> None:
        if end == "cancel":
            raise KeyboardInterrupt

    def work() -> None:
        try:
            one.execute(PythonProgram(SLEEPS.format(file=str(file))), on_output=take, on_state=lambda _: None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    pids = read_pids(file)
    assert end == "cancel" or all(map(alive, pids))
    assert one._process is not None
    if end == "close":
        one.close()
    elif end == "cut":
        (cat,) = (pid for pid in children(one._process.pid) if Path(f"/proc/{pid}/comm").read_text() == "cat\n")
        os.kill(cat, signal.SIGKILL)  # as when ssh goes
    thread.join(timeout=LONGEST_S)
    assert until(lambda: not any(map(alive, pids))), "the program and its child are gone"
    (error,) = raised
    if end == "cancel":
        assert isinstance(error, KeyboardInterrupt)
        assert run(one, "print('still here')")[1] == "still here\n", "the line serves on"
    else:
        assert isinstance(error, RemoteError)
        assert error.kind == {"close": "cancelled", "cut": "lost"}[end]
    if end == "close":
        assert until(lambda: not list(far.iterdir())), "its folder is gone"


@pytest.mark.slow
def test_what_a_killed_agent_left_is_removed_by_the_next(line: Open, far: Path) -> None:
    one = line()
    one.open()
    assert one._process is not None
    one._process.kill()
    one._process.wait()
    assert len(list(far.iterdir())) == 1
    other = line()
    other.open()
    third = line()
    third.open()
    assert len(list(far.iterdir())) == 2, "that of the killed one is gone, those in use are not"


def test_a_folder_that_another_agent_clears_before_it_is_locked_is_made_anew(
    far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin at once: the lock is there, and nobody holds it yet."""
    lock, looked = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not looked:
            looked.extend(far.iterdir())
            bootstrap.remove_stale(far)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with bootstrap.private_folder(far) as folder:
        assert looked
        assert looked[0] != folder
        bootstrap.remove_stale(far)
        assert list(far.iterdir()) == [folder], "one in use is left alone"
    assert list(far.iterdir()) == []


@pytest.mark.slow
def test_it_ends_when_we_are_killed(far: Path, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = (
        "import os, sys\n"
        "from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError\n"
        "from pytest_nvfp4.device.remote.link.client import BOOTSTRAP, AgentConnection, AgentSettings\n"
        f"one = AgentConnection([sys.executable, '-c', BOOTSTRAP], environ=os.environ, "
        f"settings=AgentSettings(folder={str(far)!r}), explain=lambda *_: RemoteError('remote', ''))\n"
        "one.open()\n"
        f"one.execute(PythonProgram({SLEEPS.format(file=str(file))!r}), on_output=lambda *_: None, "
        "on_state=lambda _: None)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        pids = read_pids(file)
    finally:
        ours.kill()
        ours.wait()
    assert until(lambda: not any(map(alive, pids)))
    assert until(lambda: not list(far.iterdir())), "nothing of it is left"


def test_an_end_that_says_nothing_counts_as_gone(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.py"
    quiet.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(client.__file__).parents[4])!r})\n"
        "from pytest_nvfp4.device.remote.link import agent\nagent._SILENCE_S = 1.0\n"
        "agent.Agent({}).serve()\nagent.os._exit(0)\n"
    )
    process = subprocess.Popen([sys.executable, str(quiet)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.wait(timeout=LONGEST_S) == 0, "its standard input is open still, but nothing comes"
    finally:
        process.kill()
        process.communicate()


# What may be wrong with the far side


def test_greetings_of_a_login_shell_are_passed_over(line: Open, tmp_path: Path) -> None:
    greeting = script(tmp_path / "python", f"echo Welcome; echo 'NVFP4 or so'; exec {sys.executable} \"$@\"")
    one = line(str(greeting), "-c", BOOTSTRAP)
    one.open()
    assert run(one, "print(1)")[1] == "1\n"


def test_a_shell_that_prints_without_end(line: Open, tmp_path: Path) -> None:
    error = trouble(line(str(script(tmp_path / "python", "exec yes")), "-c", BOOTSTRAP))
    assert error.kind == "version"
    assert "prints" in str(error)


def test_an_old_python_is_named(line: Open, tmp_path: Path) -> None:
    old = script(tmp_path / "python", "echo NVFP4-REMOTE 3 9; cat > /dev/null")
    error = trouble(line(str(old), "-c", BOOTSTRAP, python="/opt/python", host="box"))
    assert error.kind == "setup"
    assert "/opt/python of box is Python 3.9, and 3.11 or newer is required" in str(error)


def test_a_missing_module_is_named(line: Open, tmp_path: Path) -> None:
    bare = script(tmp_path / "python", f'exec {sys.executable} -S -E "$@"')
    error = trouble(line(str(bare), "-c", BOOTSTRAP, host="box"))
    assert error.kind == "setup"
    assert "of box lacks" in str(error)
    assert "?python=" in str(error)


@pytest.mark.slow
def test_another_version_of_this_package_there_is_not_used(line: Open, tmp_path: Path) -> None:
    other = tmp_path / "installed" / "pytest_nvfp4"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise RuntimeError('the installed version')")
    python = script(tmp_path / "python", f'PYTHONPATH={other.parent} exec {sys.executable} "$@"')
    one = line(str(python), "-c", BOOTSTRAP)
    one.open()
    status, out, err = run(one, "import pytest_nvfp4; print(pytest_nvfp4.__file__)")
    assert status == 0, err
    assert "nvfp4-remote-" in out, "the one that came along"


@pytest.mark.slow
def test_another_protocol_is_refused(line: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROTOCOL", 99)
    error = trouble(line())
    assert error.kind == "version"
    assert "uses protocol 1, this side protocol 99" in str(error)


def test_a_full_disk_is_named(line: Open, tmp_path: Path, far: Path) -> None:
    # A limit on the size of files stands in for a disk: writing fails in the same places.
    full = script(tmp_path / "python", f'ulimit -f 8; exec {sys.executable} "$@"')
    error = trouble(line(str(full), "-c", BOOTSTRAP, host="box"))
    assert error.kind == "setup"
    assert "box cannot write to" in str(error)
    assert "?folder=" in str(error)
    assert list(far.iterdir()) == [], "what was begun is removed"


def test_a_disk_that_is_really_full(line: Open, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=300k none {folder} && exec {sys.executable} \\"\\$@\\"'
    tried = subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip("mounting a small file system needs user namespaces, which are switched off here")
    full = script(tmp_path / "python", f'exec unshare -rm sh -c "{mount}" sh "$@"')
    error = trouble(line(str(full), "-c", BOOTSTRAP, folder=str(folder), host="box"))
    assert error.kind == "setup"
    assert "No space left on device" in str(error)


@pytest.mark.slow
def test_a_disk_that_fills_up_later(line: Open, tmp_path: Path) -> None:
    full = script(tmp_path / "python", f'ulimit -f 4096; exec {sys.executable} "$@"')
    one = line(str(full), "-c", BOOTSTRAP, host="box")
    one.open()
    with pytest.raises(RemoteError, match="box: the remote side cannot write") as raised:
        run(one, "pass", files={"big": bytes(4096 * 1024 + 1)})
    assert raised.value.kind == "setup"
    assert run(one, "print(1)")[1] == "1\n", "the next one is served"


def test_a_command_that_is_not_there(line: Open) -> None:
    error = trouble(line("/nowhere/ssh"))
    assert error.kind == "setup"
    assert "/nowhere/ssh cannot be started" in str(error)


def test_one_that_ends_at_once(line: Open, tmp_path: Path) -> None:
    error = trouble(line(str(script(tmp_path / "python", "echo because >&2; exit 9")), "-c", BOOTSTRAP))
    assert str(error) == "ended with 9: because"


def test_one_that_never_answers(line: Open, tmp_path: Path) -> None:
    error = trouble(line(str(script(tmp_path / "python", "exec sleep 600")), "-c", BOOTSTRAP, hello_s=0.3))
    assert error.kind == "timeout"


@pytest.mark.slow
def test_files_stay_below_the_folder(line: Open) -> None:
    one = line()
    one.open()
    for name in ("../out", "/out", "a/../../out", ""):
        with pytest.raises(RemoteError, match="outside the program's folder"):
            run(one, "pass", files={name: b""})


def test_the_package_that_goes_along_is_source_only() -> None:
    packed = bundle()
    assert packed is bundle()
    with tarfile.open(fileobj=io.BytesIO(packed.data), mode="r:gz") as archive:
        entries = archive.getmembers()
    assert all(entry.isfile() and entry.name.endswith(".py") for entry in entries)
    names = {entry.name for entry in entries}
    assert "pytest_nvfp4/device/worker/__main__.py" in names
    assert not any(name.startswith(("pytest_nvfp4/cli/", "pytest_nvfp4/plugin/")) for name in names)
    assert {(entry.uname, entry.uid, entry.mtime) for entry in entries} == {("", 0, 0)}, "nothing of this machine"
