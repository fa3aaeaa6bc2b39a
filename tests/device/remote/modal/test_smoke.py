"""``nvfp4 remote smoke``: what it says before, what each step records, and the budget that holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_nvfp4.cli.app import app
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.smoke import try_out
from pytest_nvfp4.device.remote import smoke
from pytest_nvfp4.device.remote.base import Batch, Cost, RemoteOptions, RemoteStatus
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from pytest_nvfp4.device.remote.smoke import Smoke
from tests.waiting import LONGEST_S

from ..fakes import FakeRemote
from ..loopback import Loopback
from ..loopback.server import TOKEN_ID, TOKEN_SECRET

Make = Callable[..., ModalRemote]


@pytest.mark.slow
def test_every_step_records_what_it_saw(
    server: Loopback, remote: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "_QUIET_S", 0.2)
    monkeypatch.setattr(smoke, "_PROBES", 1)
    monkeypatch.setattr(ModalRemote, "container_memory_gib", 0)
    one, file = remote(), tmp_path / "report.json"
    document = try_out(one, "modal", one.options, budget=2.0, file=file, agreed=True, dry=False)
    data = json.loads(file.read_text())
    steps = {step["name"]: step for step in data["steps"]}
    assert [step["outcome"] for step in data["steps"]] == ["done"] * len(steps), data
    assert document.ok
    assert steps["isolation"]["facts"]["output"]["own variables"] == []
    assert set(steps["isolation"]["facts"]["output"]) >= {"network", "memory of other processes", "uid"}
    ends = steps["ends"]["facts"]
    assert [ends[name]["exit status"] for name in ("exit 3", "exception", "timeout")] == [3, 1, 124]
    assert "ValueError: smoke" in ends["exception"]["output"]
    assert steps["silence"]["facts"]["output"].startswith("still here")
    assert "nvfp4-smoke-no-such-app" in steps["no such app"]["facts"]["error"]["problem"]
    assert steps["start"]["facts"]["place"]["image"] == "im-loopback"
    assert steps["end"]["facts"]["containers"] == 0
    assert not any(word in file.read_text() for word in (TOKEN_ID, TOKEN_SECRET, str(tmp_path)))
    assert server.count("AppClientDisconnect") >= 1


def test_no_step_begins_that_would_exceed_the_budget(server: Loopback, remote: Make) -> None:
    one = remote()
    done = Smoke(
        one, one.options, budget=1e-6, without=lambda options: remote(**{"deployed_app": options.deployed_app})
    )
    records = done.run(lambda _: None)
    assert {record.outcome for record in records[:-1]} == {"left out"}
    assert server.count("FunctionMap") == 0


class Costly(FakeRemote):
    """Nothing ever ends there, and every look at the cost finds 20 seconds more of it."""

    def cost(self) -> Cost:
        self.seconds += 20
        return super().cost()


def test_no_wait_goes_on_above_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_SLICE_S", 0.01)
    one = Costly(lambda _: None, usd_per_hour=3600.0)
    done = Smoke(one, RemoteOptions(timeout_s=10 * LONGEST_S), budget=300.0, without=lambda _: one)
    start = next(record for record in done.run(lambda _: None) if record.name == "start")
    assert start.error is not None
    assert start.error["kind"] == "cost"
    assert "the budget is $300.00" in start.error["problem"]
    assert len(one.cancelled) == 1


class Odd(FakeRemote):
    """Raises an error that no remote should."""

    def status(self) -> RemoteStatus:
        raise KeyError("odd")


def interrupted(_: Batch) -> None:
    raise KeyboardInterrupt


def test_what_was_seen_is_written_whatever_ends_the_steps(tmp_path: Path) -> None:
    one, file = Odd(interrupted, usd_per_hour=1.0), tmp_path / "report.json"

    def attempt(to: Path) -> None:
        try_out(one, "odd", RemoteOptions(), budget=2.0, file=to, agreed=True, dry=False)

    with pytest.raises(InputError, match="cannot be written"):
        attempt(tmp_path)
    assert one.stopped == 0, "nothing was begun"
    with pytest.raises(KeyboardInterrupt):
        attempt(file)
    (step,) = json.loads(file.read_text())["steps"]
    assert (step["name"], step["outcome"]) == ("status", "failed")
    assert "KeyError" in step["error"]["problem"]
    assert one.stopped == 1


@pytest.mark.parametrize(("more", "code"), [(("--dry-run",), 0), ((), 1), (("--gpu", "A10"), 2)])
def test_nothing_is_contacted_before_the_user_agrees(
    more: tuple[str, ...], code: int, server: Loopback, tmp_path: Path
) -> None:
    arguments = ["remote", "smoke", "modal", "--report", str(tmp_path / "x.json"), *more]
    done = CliRunner().invoke(app, arguments, prog_name="nvfp4")
    assert done.exit_code == code, done.output
    wanted = ["--gpu-price"] if "A10" in more else ["isolation: try the network", "about $"]
    assert all(text in done.output for text in wanted), done.output
    assert server.calls == []
    assert not (tmp_path / "x.json").exists()
