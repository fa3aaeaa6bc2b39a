"""``nvfp4 bench`` without a GPU: why nothing is timed, and what cannot be asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.helpers import Result

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_on_the_simulator_nothing_is_timed(cli: Callable[..., Result]) -> None:
    done = cli("bench", "--device", "sim", "--json")
    assert done.code == 1
    data = json.loads(done.out)
    assert data["suite"] == "smoke"
    assert {case["status"] for case in data["cases"]} == {"unavailable"}
    assert len(data["cases"]) == 8
    assert all("the simulator has no clock" in case["because"] for case in data["cases"])
    text = cli("bench", "--device", "sim").out
    assert "unavailable: kernels/reduce_sum/sm90.py::row_sums[float16-1024x1024]: the simulator" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "nothing"), "give one of gpumode"),
        (("--device", "nothing"), "nothing"),
        (("--save", "../x"), "is not a name"),
        (("--suite", "pyproject.toml"), "lacks case"),
        (("missing.py",), "missing.py"),
    ],
)
def test_what_cannot_be_asked_for(cli: Callable[..., Result], arguments: tuple[str, ...], said: str) -> None:
    done = cli("bench", "--device", "sim", *arguments)
    assert done.code == 2
    assert said in done.err
