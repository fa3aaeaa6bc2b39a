"""``ssh:HOST`` against a real sshd, with faults."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote import ssh
from pytest_nvfp4.device.remote.base import Batch, BatchResult, ProgramRemote, PythonProgram, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.ssh import SshRemote
from tests.device.remote.programs import HONEST, SLEEPS, batch_of, children, read_pids, script
from tests.device.remote.ssh.conftest import Sshd
from tests.waiting import LONGEST_S, alive, far_enough, until

Make = Callable[..., SshRemote]
SECRETS = {
    "MODAL_TOKEN_SECRET": "as-planted-0001",
    "GITHUB_TOKEN": "as-planted-0002",
    "LC_SECRET_OF_MINE": "as-planted-0003",
    "SOME_NAME_NOBODY_THOUGHT_OF": "as-planted-0004",
}


def answers(
    remote: SshRemote, batches: list[Batch], *, timeout_s: float = 10 * LONGEST_S
) -> dict[str, BatchResult | RemoteError]:
    """Have batches done."""
    found: dict[str, BatchResult | RemoteError] = {}
    for ended in remote.collect(remote.submit(batches), timeout_s=timeout_s):
        end = ended.result or ended.error
        assert end is not None
        found[ended.batch.id] = end
    return found


def kernel(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    return path


def quietly(_stream: str, _piece: bytes) -> None:
    """Output that nobody reads."""


def test_a_batch_a_program_and_nothing_of_ours_travels(
    remote: Make, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    one = remote(backend="host")
    honest = batch_of(HONEST)
    spy = batch_of(kernel(tmp_path, f"import os\nprint(dict(os.environ))\n{HONEST.read_text()}"))
    found = answers(one, [honest, spy])
    for batch in (honest, spy):
        answer = found[batch.id]
        assert isinstance(answer, BatchResult), answer
        assert answer.results[0].status == "passed", answer.results[0].findings
    seen: list[bytes] = []
    status = one.execute(
        PythonProgram("import os; print(dict(os.environ)); raise SystemExit(3)"),
        on_output=lambda _, piece: seen.append(piece),
    )
    assert status == 3
    one.stop()
    assert not list(sshd.far.iterdir()), "nothing is left there"
    spied = found[spy.id]
    assert isinstance(spied, BatchResult)
    assert "PATH" in spied.results[0].stdout, "the kernel could see its environment"
    everything = [b"".join(seen), str(found).encode()]
    everything += [path.read_bytes() for path in [*sshd.sent, *sshd.environments]]
    everything += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(sshd.sent) >= 2
    assert len(sshd.environments) >= 2
    for secret in SECRETS.values():
        assert not any(secret.encode() in text for text in everything), secret
    assert one.cost().seconds > 0
    assert one.cost().usd is None


def test_status_says_what_is_there(remote: Make) -> None:
    one = remote(price=3.6)
    assert isinstance(one, ProgramRemote)
    status = one.status()
    assert status.reachable, status.summary
    assert "no GPU" in status.summary or "GPU" in status.summary
    assert status.details["torch"]
    assert one.cost().usd_per_hour == 3.6
    one.warm()
    assert one.status().containers == 1


@pytest.mark.parametrize(
    ("host", "more", "trouble", "said"),
    [
        ("nowhere", {}, "network", "~/.ssh/config"),
        ("closed", {}, "network", "see that sshd runs there"),
        ("strangers", {}, "login", "ssh-add"),
        ("unknown", {}, "login", "connect once by hand"),
        ("box", {"python": "/no/such/python3"}, "setup", "no /no/such/python3"),
        ("box", {"python": "/etc/passwd"}, "setup", "?python="),
        ("box", {"config": "/no/such/config"}, "setup", "correct your ssh config"),
    ],
)
def test_what_keeps_it_from_starting_is_said_once_for_all(
    remote: Make, host: str, more: dict[str, object], trouble: str, said: str
) -> None:
    one = remote(host, **more)
    batches = [batch_of(HONEST, identity=f"j{index}") for index in range(20)]
    found = answers(one, batches)
    assert len(found) == len(batches)
    for error in found.values():
        assert isinstance(error, RemoteError)
        assert error.kind == trouble, error
        assert said in str(error)
    with pytest.raises(RemoteError, match=r"ssh to|has no|cannot be executed"):
        one.submit(batches)
    status = one.status()
    assert not status.reachable
    assert said in status.summary
    with pytest.raises(RemoteError):
        one.warm()


def cut(sshd: Sshd, pid: int) -> None:
    """Kill the server's processes of the connection that a far process belongs to."""
    for child in [child for child in children(sshd.process.pid) if pid in children(child)]:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().startswith("sshd"):
                os.kill(child, signal.SIGKILL)


def test_a_connection_that_is_cut_in_the_middle(remote: Make, sshd: Sshd, tmp_path: Path) -> None:
    one = remote()
    file = tmp_path / "pids"
    raised: list[RemoteError] = []

    def work() -> None:
        try:
            one.execute(PythonProgram(SLEEPS.format(file=str(file))), on_output=quietly)
        except RemoteError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    pids = read_pids(file)
    assert all(map(alive, pids))
    cut(sshd, pids[0])
    thread.join(timeout=LONGEST_S)
    assert raised[0].kind == "lost", raised
    assert "box" in str(raised[0])
    assert until(lambda: not any(map(alive, pids))), "what ran there ended with the connection"
    assert until(lambda: not list(sshd.far.iterdir())), "and its folder is gone"
    assert one.execute(PythonProgram("pass"), on_output=quietly) == 0, "a new connection serves again"


def test_a_batch_that_nobody_needs_ends_there(remote: Make, sshd: Sshd, tmp_path: Path) -> None:
    one = remote(backend="host")
    file = tmp_path / "pids"
    running = batch_of(kernel(tmp_path, SLEEPS.format(file=str(file))))
    waiting = batch_of(HONEST)
    calls = one.submit([running, waiting])
    pids = read_pids(file)
    assert list(one.collect(calls, timeout_s=0.1)) == [], "it has not ended"
    one.cancel(calls)
    ends = list(one.collect(calls, timeout_s=LONGEST_S))
    assert [arrival.error and arrival.error.kind for arrival in ends] == ["cancelled", "cancelled"]
    assert until(lambda: not any(map(alive, pids)))
    assert until(lambda: not list(sshd.far.iterdir()))


def test_deadlines_of_a_job_and_of_a_batch(remote: Make, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    sleeping = kernel(tmp_path, SLEEPS.format(file=str(file)))

    def gone() -> bool:
        return not any(map(alive, read_pids(file)))

    def started(_: object) -> bool:
        return file.exists()

    def of_a_job(deadline_s: float) -> BatchResult | RemoteError:
        batch = batch_of(sleeping, deadline_s=deadline_s)
        return answers(one, [batch])[batch.id]

    def of_a_batch(timeout_s: float) -> BatchResult | RemoteError:
        batch = batch_of(sleeping, deadline_s=10 * LONGEST_S)
        return answers(remote(backend="host", options=RemoteOptions(timeout_s=timeout_s)), [batch])[batch.id]

    one = remote(backend="host")
    answer = far_enough(of_a_job, started, first_s=5)
    assert isinstance(answer, BatchResult), answer
    assert answer.results[0].status == "timeout"
    assert until(gone)
    file.unlink()
    error = far_enough(of_a_batch, started, first_s=3)
    assert isinstance(error, RemoteError)
    assert error.kind == "timeout"
    assert until(gone), "nothing hangs on there"


def test_two_sessions_at_once(remote: Make, sshd: Sshd) -> None:
    ones = [remote(options=RemoteOptions(containers=2)), remote(options=RemoteOptions(containers=2))]
    said: dict[int, list[bytes]] = {0: [], 1: []}
    meet = sshd.folder / "seen"
    source = (
        "import os, sys, time\n"
        f"open({str(meet)!r} + '/met.' + sys.argv[1], 'w').close()\n"
        f"while not os.path.exists({str(meet)!r} + '/met.' + sys.argv[2]): time.sleep(0.01)\n"
        "print(sys.argv[1])\n"
    )

    def work(index: int) -> None:
        program = PythonProgram(source, arguments=(f"s{index}", f"s{1 - index}"), deadline_s=600)
        assert ones[index].execute(program, on_output=lambda _, piece: said[index].append(piece)) == 0

    threads = [threading.Thread(target=work, args=(index,)) for index in said]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {index: b"".join(pieces) for index, pieces in said.items()} == {0: b"s0\n", 1: b"s1\n"}
    for one in ones:
        one.stop()
    assert until(lambda: not list(sshd.far.iterdir()))


def test_stop_ends_a_connection_that_does_not_come_about(
    remote: Make, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_CONNECT_S", 10 * int(LONGEST_S))
    one = remote(python=script(sshd.folder / "silent", "exec cat > /dev/null"))
    calls = one.submit([batch_of(HONEST)])
    assert until(lambda: bool(one._lines))
    start = time.monotonic()
    one.stop()
    one.stop()
    assert time.monotonic() - start < LONGEST_S, "not the time until it would have given up by itself"
    assert [arrival.error and arrival.error.kind for arrival in one.collect(calls, timeout_s=LONGEST_S)] == [
        "cancelled"
    ]
    with pytest.raises(RemoteError, match="was stopped"):
        one.submit([batch_of(HONEST)])


def test_nothing_is_contacted_before_it_is_asked_for(sshd: Sshd) -> None:
    before = len(sshd.environments)
    one = SshRemote(RemoteOptions(target=sshd.target()))
    assert "over ssh" in one.describe()
    assert one.cost().seconds == 0
    one.stop()
    assert len(sshd.environments) == before
