"""Remotes by name, those of other distributions too."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.registry import names, remote

CLOUD = """
from pytest_nvfp4.device.remote.base import Cost, RemoteStatus


class Cloud:
    name = "mycloud"

    def __init__(self, options):
        self.options = options

    def describe(self):
        return f"a cloud at {self.options.target} with a {self.options.gpu}"

    def submit(self, batches):
        return []

    def collect(self, calls, *, timeout_s):
        return iter(())

    def cancel(self, calls): ...

    def status(self):
        return RemoteStatus(True, "fine")

    def warm(self): ...

    def stop(self): ...

    def cost(self):
        return Cost(0.0, 2.0, "a price")


class Unfinished:
    def __init__(self, options): ...


def broken(options):
    raise AssertionError


raising = None
"""


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution of somebody else's that registers remotes."""
    site = tmp_path / "site"
    (site / "mycloud-1.0.dist-info").mkdir(parents=True)
    (site / "mycloud-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mycloud\nVersion: 1.0\n")
    (site / "mycloud-1.0.dist-info" / "entry_points.txt").write_text(
        "[pytest_nvfp4.remotes]\nmycloud = nvfp4_mycloud:Cloud\nunfinished = nvfp4_mycloud:Unfinished\n"
        "gone = nvfp4_mycloud:NotThere\nssh = nvfp4_mycloud:Unfinished\n"
    )
    (site / "nvfp4_mycloud.py").write_text(CLOUD)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "nvfp4_mycloud", raising=False)
    return site


def test_a_remote_of_another_package(distribution: Path) -> None:
    assert distribution.is_dir()
    assert names()[:4] == ["modal", "ssh", "wafer", "popcorn"]
    assert {"mycloud", "unfinished", "gone"} <= set(names())
    assert names().count("ssh") == 1
    assert "nvfp4_mycloud" not in sys.modules, "listing loads nothing"
    made = remote("mycloud:eu", RemoteOptions(gpu="H200"))
    assert made.describe() == "a cloud at eu with a H200"
    assert type(remote("ssh:box")).__module__ == "pytest_nvfp4.device.remote.ssh", "ours are not replaced"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("unfinished", "has no describe, submit"),
        ("gone", "cannot be imported"),
        ("mycluod", "did you mean 'mycloud'"),
        ("zzz", "known remotes: modal, ssh"),
        ("ssh", "names no host"),
    ],
)
def test_remotes_that_cannot_be_had(distribution: Path, spec: str, said: str) -> None:
    del distribution
    with pytest.raises(RemoteError, match=said) as raised:
        remote(spec)
    assert raised.value.kind == "setup"


@pytest.mark.parametrize("spec", ["ssh:box", "wafer:b200", "modal"])
def test_a_limit_on_the_cost_needs_a_price(spec: str) -> None:
    options = RemoteOptions(gpu="A100", max_cost=2.0)
    with pytest.raises(RemoteError, match="--nvfp4-gpu-price") as raised:
        remote(spec, options)
    assert raised.value.kind == "setup"
    assert remote(spec, replace(options, gpu_price=2.5)).cost().usd_per_hour >= 2.5  # type: ignore[operator]
    assert remote(spec, replace(options, max_cost=None)).cost().usd is None, "the control"


@pytest.mark.parametrize("price", ["nan", "-1", "inf", "much", "1e9", ""])
def test_a_price_that_is_none(price: str) -> None:
    with pytest.raises(RemoteError, match="not a number of US dollars an hour"):
        remote(f"ssh:box?price={price}", RemoteOptions(max_cost=2.0))
