from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device import gpus
from pytest_nvfp4.device import select as selection
from pytest_nvfp4.device.base import DeviceUnavailableError
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.sim import SimDevice


def test_gpus_are_dealt_out_over_test_processes() -> None:
    assert [gpus.share(["0", "3"], worker) for worker in (None, "gw0", "gw1", "gw2", "master")] == [
        "0",
        "0",
        "3",
        "0",
        "0",
    ]
    assert gpus.share([], "gw0") is None


@pytest.mark.parametrize(
    ("value", "found"), [("", []), ("-1", []), ("0,2", ["0", "2"]), (" GPU-ab , MIG-1 ", ["GPU-ab", "MIG-1"])]
)
def test_the_users_choice_of_gpus_is_kept(monkeypatch: pytest.MonkeyPatch, value: str, found: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert gpus.visible_gpus() == found


def test_a_listed_gpu_makes_a_local_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert isinstance(selection.select("auto", folder=tmp_path), LocalDevice)


@pytest.mark.parametrize(("name", "words"), [("none", "none"), ("local", "no NVIDIA GPU"), ("abacus", "choose one of")])
def test_what_is_not_there_is_unavailable_because(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceUnavailableError, match=words):
        selection.select(name, folder=tmp_path)


@pytest.mark.parametrize("name", ["auto", "sim"])
def test_where_no_gpu_is_there_the_simulator_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    device = selection.select(name, folder=tmp_path)
    assert isinstance(device, SimDevice)
    assert device.describe().simulated
    assert device.unsupported("sm_80") is not None


def test_another_package_may_add_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = object()

    class Entry:
        name = "abacus"

        @staticmethod
        def load() -> object:
            return lambda **_options: made

    def entry_points(*, group: str, name: str | None = None) -> list[object]:
        return [Entry] if group == selection.ENTRY_POINTS and name in (None, "abacus") else []

    monkeypatch.setattr(selection.importlib.metadata, "entry_points", entry_points)
    assert selection.select("abacus", folder=tmp_path) is made
    assert "abacus" in selection.known_names()
