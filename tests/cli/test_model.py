"""``nvfp4 model``: the group, and the listing of device tables."""

import csv
import io
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_nvfp4.cli.model.command import ModelGroup, model_command
from pytest_nvfp4.device.remote import registry
from pytest_nvfp4.device.remote.base import Cost, PythonProgram, RemoteError
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.model.constants import DEVICES, MARKS, UNITS, load_device, shipped_device
from tests.cli.helpers import Result
from tests.model.calibrate.readings_of import HOPPER, known_gpu

Cli = Callable[..., Result]
TABLE = (files("pytest_nvfp4.model") / "devices" / "b200.toml").read_text()


@pytest.fixture(autouse=True)
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NVFP4_DATA_DIR", str(tmp_path))
    (tmp_path / "devices").mkdir()
    return tmp_path / "devices"


def test_devices_lists_every_shipped_table(cli: Cli) -> None:
    listed = cli("model", "devices", "--json")
    devices = {device["name"]: device for device in json.loads(listed.out)["devices"]}
    assert sorted(devices) == sorted(DEVICES)
    assert all(sum(device["marks"].values()) == len(UNITS) for device in devices.values())
    assert {device["origin"] for device in devices.values()} == {"shipped"}
    rows = list(csv.DictReader(io.StringIO(cli("model", "devices", "--csv").out)))
    assert [row["device"] for row in rows] == list(devices)
    assert set(MARKS) <= set(rows[0])


def test_devices_lists_each_constant_with_its_source(cli: Cli) -> None:
    found = json.loads(cli("model", "devices", "b200", "--json").out)
    assert [row["name"] for row in found["constants"]] == list(UNITS)
    assert all(row["source"] and row["mark"] in MARKS for row in found["constants"])
    text = cli("model", "devices", "b200").out
    assert all(name in text for name in UNITS)


def test_the_users_own_table_comes_first_and_is_named(cli: Cli, own_tables: Path) -> None:
    own = own_tables / "b200.toml"
    own.write_text(TABLE.replace("value = 148\n", "value = 147\n", 1))
    found = json.loads(cli("model", "devices", "b200", "--json").out)
    assert (found["origin"], found["constants"][0]["value"]) == (str(own), 147)
    assert str(own) in cli("model", "devices").out
    own.unlink()
    assert json.loads(cli("model", "devices", "b200", "--json").out)["constants"][0]["value"] == 148


def test_a_damaged_table_of_the_user_is_an_error_that_names_it(cli: Cli, own_tables: Path) -> None:
    (own_tables / "b200.toml").write_text(TABLE.replace('mark = "published"\n', "", 1))
    done = cli("model", "devices", "b200")
    assert done.code == 2
    assert "b200.toml" in done.err
    assert "constant.sms.mark" in done.err
    assert "delete it" in done.err


def test_an_unknown_device_and_a_misspelled_subcommand_are_named(cli: Cli) -> None:
    assert "there is no device 'b9000'" in cli("model", "devices", "b9000").err
    assert "did you mean 'devices'" in cli("model", "device").err


def test_a_kernel_stands_for_the_default_subcommand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ModelGroup, "table", {**ModelGroup.table, ModelGroup.default: ("cli.model.devices", "")})
    kernel = tmp_path / "kernel"
    kernel.touch()
    for first in ("my_kernel.py", "folder/my_kernel", str(kernel), "--problem"):
        with pytest.raises(AttributeError, match=f"{ModelGroup.default}_command"):
            model_command.main([first], standalone_mode=False)
    with pytest.raises(Exception, match="no such command"):
        model_command.main(["calibrat"], standalone_mode=False)


class FakeRemote:
    """A remote whose GPU has known constants."""

    def __init__(self, report: bytes, *, error: RemoteError | None = None) -> None:
        self.report, self.error, self.stopped = report, error, False

    def execute(self, program: PythonProgram, *, on_output: OnOutput) -> int:
        assert 0 < program.deadline_s <= 30
        if self.error is not None:
            raise self.error
        on_output("stdout", self.report)
        return 0

    def stop(self) -> None:
        self.stopped = True

    def cost(self) -> Cost:
        return Cost(seconds=12)


@pytest.fixture
def remotes(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeRemote]:
    made: dict[str, FakeRemote] = {}

    def make(name: str, options: RemoteOptions) -> FakeRemote:
        assert options.longest_s == 90
        return made[name]

    monkeypatch.setattr(registry, "remote", make)
    return made


def test_calibrate_writes_a_table_that_is_found_by_name(
    cli: Cli, own_tables: Path, remotes: dict[str, FakeRemote]
) -> None:
    remotes["modal"] = FakeRemote(known_gpu().report(HOPPER))
    done = cli("model", "calibrate", "--remote", "modal", "--timeout", 30, "--json")
    found = json.loads(done.out)
    assert (found["device"], found["file"]) == ("h200", str(own_tables / "h200.toml"))
    assert found["constants"]["tma_row"]["value"] == 2.5
    assert not found["missing"]
    assert remotes["modal"].stopped
    assert "12 s" in done.err
    own = load_device("h200")
    assert (own.origin, own["tma_row"], own.digest) == (found["file"], 2.5, found["digest"])
    listed = cli("model", "devices", "h200").out
    assert "measured_here" in listed
    assert re.search(r"load from the far part of L2 +410 cycle", listed)


def test_calibrate_names_what_it_did_not_measure(cli: Cli, tmp_path: Path, remotes: dict[str, FakeRemote]) -> None:
    known = known_gpu()
    known.per["map.load.changed"] = 100.0
    remotes["modal"] = FakeRemote(known.report(HOPPER))
    out = tmp_path / "new" / "mine.toml"
    done = cli("model", "calibrate", "--remote", "modal", "--timeout", 30, "--out", out)
    assert done.code == 0
    assert "map_acquire_changed: map_acquire_changed would be -970" in done.out
    shipped = shipped_device("h200").constants["map_acquire_changed"]
    assert load_device(str(out)).constants["map_acquire_changed"] == shipped


def test_calibrate_needs_a_gpu(cli: Cli, own_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = cli("model", "calibrate")
    assert (done.code, done.out) == (2, "")
    assert "this machine: there is no NVIDIA GPU" in done.err
    assert not list(own_tables.iterdir())


def test_a_remote_that_fails_or_runs_no_programs_is_an_error(cli: Cli, remotes: dict[str, FakeRemote]) -> None:
    remotes["modal"] = FakeRemote(b"", error=RemoteError("network", "no route"))
    assert "modal: no route" in cli("model", "calibrate", "--remote", "modal", "--timeout", 30).err
    remotes["modal"] = FakeRemote(b"")
    assert "reported no GPU" in cli("model", "calibrate", "--remote", "modal", "--timeout", 30).err
    remotes["popcorn:x"] = SimpleNamespace(stop=lambda: None, cost=Cost)  # type: ignore[assignment]
    done = cli("model", "calibrate", "--remote", "popcorn:x", "--timeout", 30)
    assert "runs kernels, but no programs" in done.err


def test_calibrate_runs_its_benchmarks_in_a_process(
    cli: Cli, own_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is none: the process looks for it with the driver, and says what is missing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000000")
    done = cli("model", "calibrate")
    assert done.code == 2
    assert "this machine: the GPU cannot be used: " in done.err
    assert not list(own_tables.iterdir())
