"""Configurations of Triton's tuner that a user picks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.triton_pick import Pick, PickError, Picks, index_of, install


class Config:
    """A configuration as Triton shows it."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def all_kwargs(self) -> dict[str, Any]:
        return self._values

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self._values.items())


def tuner(name: str = "gemm") -> Any:
    configs = [Config(BM=64, num_warps=4), Config(BM=128, num_warps=4), Config(BM=128, num_warps=8, EVEN=True)]
    return SimpleNamespace(base_fn=SimpleNamespace(__name__=name), configs=configs)


def picked(text: str, of: Any) -> list[int]:
    return [index_of(of, each) for each in Picks((Pick.of(text),)).among(of, of.configs)]


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("2", [2]),
        ("gemm:1", [1]),
        ("BM=128", [1, 2]),
        ("BM=128, num_warps=8", [2]),
        ("gemm:EVEN=True", [2]),
        ("other:0", [0, 1, 2]),
    ],
)
def test_picks(text: str, indices: list[int]) -> None:
    assert picked(text, tuner()) == indices


@pytest.mark.parametrize("text", ["3", "BM=32", "num_stages=4", "gemm:BM=64,num_warps=8"])
def test_a_pick_of_nothing_names_what_there_is(text: str) -> None:
    with pytest.raises(HostSideError) as raised:
        picked(text, tuner())
    assert f"--autotune {text} picks no configuration of gemm" in str(raised.value)
    assert "it has 0: BM: 64, num_warps: 4 | 1: BM: 128, num_warps: 4 | 2: BM: 128" in str(raised.value)


def test_a_configuration_that_the_kernel_prunes_is_not_picked() -> None:
    of = tuner()
    with pytest.raises(HostSideError, match=r"it has 1: .* its own pruning leaves out 2 for these arguments"):
        Picks((Pick.of("0"),)).among(of, of.configs[1:2])


def test_a_pick_for_a_kernel_goes_before_one_for_all() -> None:
    picks = Picks((Pick.of("0"), Pick.of("gemm:2")))
    of, other = tuner(), tuner("other")
    assert picks.among(of, of.configs) == of.configs[2:]
    assert picks.among(other, other.configs) == other.configs[:1]
    assert picks.unused() == []


def test_a_pick_that_no_kernel_meets() -> None:
    picks = Picks((Pick.of("gem:0"),))
    of = tuner()
    picks.among(of, of.configs)
    (message,) = picks.unused()
    assert "--autotune gem:0 picks a configuration, and no kernel gem with configurations" in message


@pytest.mark.parametrize("text", ["", "BM", "gemm:", "BM=", "=4", "-1", "BM=64,,"])
def test_another_form(text: str) -> None:
    with pytest.raises(PickError, match="write --autotune INDEX"):
        Pick.of(text)


def test_other_options_stay() -> None:
    assert install("--opt-level 2  --ptxas-options '-v -w'")[1] == "--opt-level 2  --ptxas-options '-v -w'"
    picks, others = install("--opt-level 2 --autotune=gemm:BM=64 --autotune 1 --ptxas-options '-v -w'")
    assert others == "--opt-level 2 --ptxas-options '-v -w'"
    assert [pick.text for pick in picks.picks] == ["gemm:BM=64", "1"]
    with pytest.raises(PickError, match="has no value"):
        install("--autotune")
