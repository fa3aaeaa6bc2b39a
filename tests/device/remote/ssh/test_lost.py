"""A connection that is cut in the middle of several jobs: those that were done have come, and are done once."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteOptions
from pytest_nvfp4.device.remote.link.client import AgentConnection
from pytest_nvfp4.device.remote.schedule import split_batch
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.remote.ssh import SshRemote
from tests.device.remote.programs import script

JOBS = tuple(Job(id=f"j{number}", action="probe") for number in range(4))


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteSession]:
    """Of a machine that is this one, by an ``ssh`` that only starts what it is to start there."""
    script(tmp_path / "ssh", 'for last in "$@"; do :; done\nexec sh -c "$last"')
    (tmp_path / "remote").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    target = f"box?backend=host&python={sys.executable}&folder={tmp_path / 'far'}"
    made = RemoteSession(SshRemote(RemoteOptions(target=target)))
    yield made
    made.close()


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each job was sent; the line is cut when the third has begun, or what it is sent with."""
    sent: Counter[str] = Counter()
    do = AgentConnection.execute_batch

    def counted(
        line: AgentConnection, batch: Batch, *, timeout_s: float, on_state: Callable[[str], None]
    ) -> BatchResult:
        first = not sent["j2"]
        sent.update(job.id for job in batch.jobs)

        def on_running(state: str) -> None:
            on_state(state)
            assert line._process is not None
            os.kill(line._process.pid, signal.SIGKILL)

        return do(line, batch, timeout_s=timeout_s, on_state=on_running if first and sent["j2"] else on_state)

    monkeypatch.setattr(AgentConnection, "execute_batch", counted)
    return sent


@pytest.mark.slow
def test_a_line_that_is_cut_takes_one_job_with_it(session: RemoteSession, cut: Counter[str]) -> None:
    for request in session.add(split_batch(Batch(jobs=JOBS))):
        assert [result.status for result in request.wait().results] == ["passed"]
    assert cut == {"j0": 1, "j1": 1, "j2": 2, "j3": 1}


@pytest.mark.slow
def test_as_one_batch_it_takes_all(session: RemoteSession, cut: Counter[str]) -> None:
    """The negative control."""
    (request,) = session.add([Batch(jobs=JOBS)])
    assert len(request.wait().results) == len(JOBS)
    assert cut == {job.id: 2 for job in JOBS}
