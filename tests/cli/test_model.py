"""``nvfp4 model``: the group, and the listing of device tables."""

import csv
import io
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from pytest_nvfp4.cli.model.command import DEFAULT, ModelGroup, model_command
from pytest_nvfp4.model.constants import DEVICES, MARKS, UNITS
from tests.cli.helpers import Result

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
    monkeypatch.setattr(ModelGroup, "table", {**ModelGroup.table, DEFAULT: ("cli.model.devices", "")})
    kernel = tmp_path / "kernel"
    kernel.touch()
    for first in ("my_kernel.py", "folder/my_kernel", str(kernel), "--problem"):
        with pytest.raises(AttributeError, match=f"{DEFAULT}_command"):
            model_command.main([first], standalone_mode=False)
    with pytest.raises(Exception, match="no such command"):
        model_command.main(["calibrat"], standalone_mode=False)
