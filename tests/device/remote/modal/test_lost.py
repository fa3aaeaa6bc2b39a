"""What was done before a container, the session or this machine is lost has come, and is not paid for again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.device.remote.device import RemoteDevice
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from pytest_nvfp4.device.remote.session import RemoteSession
from tests.waiting import LONGEST_S

from ..loopback import Loopback
from .exact_jobs import COUNT, executed_jobs, independent_jobs, result_cache

Make = Callable[..., ModalRemote]


def done(log: Path) -> Counter[str]:
    """How often each job was begun."""
    return Counter(name for *_, names in executed_jobs(log) for name in names)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact") / "log"


@pytest.fixture(scope="module")
def exact(log: Path) -> Iterator[Loopback]:
    with Loopback(backend="exact:run", environ={"NVFP4_EXACT_LOG": str(log)}, capacity=1) as server:
        yield server


@pytest.fixture
def server(exact: Loopback, log: Path, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    exact.end_apps()
    exact.forget()
    log.write_text("")
    for name, value in exact.environ().items():
        monkeypatch.setenv(name, value)
    return exact


@pytest.mark.slow
@pytest.mark.parametrize("by", ["SIGKILL", "SIGINT"])  # SIGINT is what Modal sends first when it preempts a container
@pytest.mark.parametrize("restarts", [False, True])
def test_a_container_that_dies_takes_one_job_with_it(
    server: Loopback, remote: Make, log: Path, tmp_path: Path, restarts: bool, by: str
) -> None:
    """Whether the loss is told, or Modal runs the call once more by itself."""
    server.service.restarts = restarts
    session = RemoteSession(remote())
    device = RemoteDevice(session, name="modal", gpu="B200")
    asked = independent_jobs(f"DIES_AT = 4\nDIES_BY = {by!r}\n")
    device.send_ahead(asked)
    assert [device.run(one, folder=tmp_path).status for one in asked] == ["passed"] * COUNT
    session.close()
    assert done(log) == {one.id: 2 if one.id == "p3" else 1 for one in asked}
    assert server.count("FunctionMap") == COUNT + (not restarts)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
def test_as_one_call_it_would_take_all_that_was_done(server: Loopback, remote: Make, log: Path, restarts: bool) -> None:
    """The negative control."""
    server.service.restarts = restarts
    session = RemoteSession(remote())
    asked = independent_jobs("DIES_AT = 4\n")
    (request,) = session.add([Batch(jobs=tuple(asked))])
    assert len(request.wait().results) == COUNT
    session.close()
    assert done(log) == {one.id: 2 if number < 4 else 1 for number, one in enumerate(asked)}


@pytest.mark.slow
def test_after_ctrl_c_only_the_rest_is_paid_for(server: Loopback, remote: Make, log: Path, tmp_path: Path) -> None:
    asked = independent_jobs("TAKES_S = 0.2\n")
    session = RemoteSession(remote(), cache=result_cache(tmp_path))
    device = RemoteDevice(session, name="modal", gpu="B200")
    device.send_ahead(asked)
    for one in asked[:3]:
        device.run(one, folder=tmp_path)
    session.close()
    resume(server, remote, log, tmp_path, asked, least=3)


CLIENT = """
import sys
from pathlib import Path
from pytest_nvfp4.device.remote.base import RemoteOptions
from pytest_nvfp4.device.remote.device import RemoteDevice
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from pytest_nvfp4.device.remote.session import RemoteSession
from tests.device.remote.modal.exact_jobs import independent_jobs, result_cache

folder = Path(sys.argv[1])
device = RemoteDevice(RemoteSession(ModalRemote(RemoteOptions()), cache=result_cache(folder)), name="modal", gpu="B200")
asked = independent_jobs("TAKES_S = 0.2\\n")
device.send_ahead(asked)
for one in asked:
    device.run(one, folder=folder)
    print(one.id, flush=True)
"""


@pytest.mark.slow
def test_after_this_machine_died_only_the_rest_is_paid_for(
    server: Loopback, remote: Make, log: Path, tmp_path: Path
) -> None:
    root = Path(__file__).parents[4]
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline().strip() for _ in range(3)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert said == ["p0", "p1", "p2"]
    resume(server, remote, log, tmp_path, independent_jobs("TAKES_S = 0.2\n"), least=3)


def resume(server: Loopback, remote: Make, log: Path, folder: Path, asked: list[Job], *, least: int) -> None:
    """A second session fetches what the first had ended without knowing, and is sent the rest and nothing else."""
    server.end_apps()
    server.forget()
    had = {one.id for one in asked if result_cache(folder).get(Batch(jobs=(one,), capability=(10, 0)))}
    assert least <= len(had) < COUNT
    log.write_text("")
    session = RemoteSession(remote(), cache=result_cache(folder), reuse=True)
    device = RemoteDevice(session, name="modal", gpu="B200")
    device.send_ahead(asked)
    assert {device.run(device.job_as_run(one), folder=folder).status for one in asked} == {"passed"}
    session.close()
    again, fetched = done(log), session.progress.cached - len(had)
    assert fetched >= 0
    assert not set(again) & had
    assert set(again.values()) <= {1}
    assert len(again) == server.count("FunctionMap") == COUNT - len(had) - fetched


@pytest.mark.slow
@pytest.mark.parametrize("app_ends", [False, True])
def test_after_a_cut_what_ended_is_fetched_and_what_runs_is_waited_for(
    server: Loopback, remote: Make, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app_ends: bool
) -> None:
    """Every job was sent, and the session ended before a result came; only what ended with its app runs again."""
    monkeypatch.setattr(timeouts, "QUIET_S", 0.2)
    asked = independent_jobs("TAKES_S = 0.3\n")
    session = RemoteSession(remote(containers=COUNT), containers=COUNT, cache=result_cache(tmp_path))
    device = RemoteDevice(session, name="modal", gpu="B200")
    device.send_ahead(asked)
    server.wait_for(lambda: len(done(log)) >= 2)
    for name in ("SIGN_S", "SILENT_S", "CANCEL_S", "STOP_S", "OUTAGE_S", "ATTACHED_S"):
        monkeypatch.setattr(timeouts, name, 0.3)
    server.connected = False
    server.wait_for(lambda: session.failure is not None and not session.progress.open)
    session.close()
    assert session.failure is not None
    assert session.failure.kind == "network"
    if app_ends:
        server.end_apps()
        server.wait_for(lambda: not any(one.alive for one in server.service.containers.values()))
    else:
        assert len(done(log)) < COUNT, "some still run, or wait"
    before, kept = done(log), result_cache(tmp_path)
    had = sum(1 for one in asked if kept.get(Batch(jobs=(one,), capability=(10, 0))))
    server.forget()
    for name in ("SIGN_S", "SILENT_S", "CANCEL_S", "STOP_S"):
        monkeypatch.setattr(timeouts, name, LONGEST_S)
    session = RemoteSession(remote(), cache=kept, reuse=True)
    device = RemoteDevice(session, name="modal", gpu="B200")
    device.send_ahead(asked)
    assert {device.run(device.job_as_run(one), folder=tmp_path).status for one in asked} == {"passed"}
    session.close()
    if app_ends:
        assert 1 <= server.count("FunctionMap") <= COUNT - len(before) + 1
        assert session.progress.cached >= max(1, had)
    else:
        assert server.count("FunctionMap") == server.count("AppCreate") == 0
        assert done(log) == {one.id: 1 for one in asked}
        assert session.progress.cached == COUNT


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_a_container_that_answers_many_calls_costs_its_time_once(remote: Make, log: Path, tmp_path: Path) -> None:
    session = RemoteSession(remote())
    device = RemoteDevice(session, name="modal", gpu="B200")
    asked = independent_jobs("TAKES_S = 0.1\n")
    device.send_ahead(asked)
    for one in asked:
        device.run(one, folder=tmp_path)
    assert 0.1 * COUNT <= session.cost.seconds < 0.1 * COUNT + 5
    assert len({container for container, *_ in executed_jobs(log)}) == len(session.places) == 1
    session.close()
