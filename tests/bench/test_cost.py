"""Costs: facts of a call by hand, groups of warps, tolerances, and what fails."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.bench.cost import (
    cost_changes,
    cost_facts,
    flops_of,
    instructions_by_role,
    tolerance_of,
)
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.problem import parse_shape

from .cost_samples import call

PROBLEM = parse_shape("100x128x256")


class TestFacts:
    def test_of_a_call_by_hand(self) -> None:
        facts = cost_facts(call(writers=(3,)), PROBLEM)
        assert facts["flops.useful"] == str(2 * 100 * 128 * 256)
        assert facts["flops.executed"] == str(2 * 128 * 128 * 256)
        assert facts["flops.padding"] == "21.88 %"  # 28 rows of 128
        assert facts["launch.0.kernel"] == "fill"
        assert facts["launch.0.clusters"] == "2"
        assert facts["launch.0.waves"] == "1"
        assert facts["launch.0.idle_ctas"] == "1"
        assert facts["launch.0.instructions.by.load"] == "160"
        assert facts["launch.0.instructions.by.tensormap+tmem"] == "200"
        assert facts["launch.0.instructions.by.nothing"] == "100"
        assert not [name for name in facts if "warp" in name]
        assert facts["launch.0.shared.load.conflicts"] == "0"
        assert "launch.0.tma.load.requests" not in facts  # zero

    def test_all_matrix_units_count(self) -> None:
        counters = {"mma.macs": 10, "wgmma.macs": 100, "mma.flops": 1000}
        assert flops_of(call(counters=counters), PROBLEM).executed == 1220
        assert flops_of(call(counters={}), PROBLEM).padding == 0

    def test_waves_are_rounds_of_all_sms(self) -> None:
        launch = call().launches[0].model_copy(update={"grid": (297, 1, 1), "ctas_per_sm": 1})
        assert [launch.waves(sms) for sms in (148, 149, 297)] == [3, 2, 1]

    def test_a_result_of_a_later_version_can_be_read(self) -> None:
        data = call().model_dump(mode="json")
        data["launches"][0]["registers"] = 40
        data["energy"] = "none"
        assert SimulatedCall.model_validate(data) == call()


class TestRoles:
    @given(st.permutations(range(6)))
    def test_they_do_not_depend_on_the_numbers_of_warps(self, numbers: list[int]) -> None:
        does = [("load",), ("mma", "scale-copy"), ("tmem",), ("tmem",), (), ("tmem", "store")]
        counters = {f"instructions.warp{warp}": 2**place for place, warp in enumerate(numbers)}
        counters |= {f"warp{warp}.{word}": 1 for place, warp in enumerate(numbers) for word in does[place]}
        roles = {"load": 1, "mma+scale-copy": 2, "tmem": 12, "nothing": 16, "store+tmem": 32}
        assert instructions_by_role(counters) == roles


class TestTolerance:
    def test_the_longest_pattern_of_the_user_wins(self) -> None:
        own = (("tma.*", 0.1), ("tma.load.bytes", 0.2), ("*", math.inf))
        assert tolerance_of("tma.load.bytes", own) == 0.2
        assert tolerance_of("tma.load.requests", own) == 0.1
        assert tolerance_of("instructions.by.mma", own) == math.inf
        assert tolerance_of("instructions.by.mma", ()) == 0.1
        assert tolerance_of("mbarrier.waits", ()) == tolerance_of("barrier.cta.arrivals", ()) == math.inf
        assert tolerance_of("mbarrier.arrived_bytes", ()) == 0
        assert tolerance_of("tma.load.bytes", ()) == 0


def gated(changes: dict[str, str | None], **how: object) -> set[str]:
    """Names of the facts that fail when those of the sample change."""
    old = cost_facts(call(), PROBLEM)
    new = {name: value for name, value in (old | changes).items() if value is not None}
    return {found.change.name for found in cost_changes(old, new, **how) if found.gates}  # type: ignore[arg-type]


class TestWhatFails:
    @pytest.mark.parametrize(
        ("fact", "value", "fails"),
        [
            ("launch.0.tma.load.bytes", "4097", True),
            ("launch.0.tma.load.bytes", "4095", False),
            ("launch.0.tma.load.bytes", None, False),
            ("launch.0.atomics", "1", True),
            ("launch.0.shared.load.conflicts", "1", True),
            ("launch.0.instructions", "506", False),
            ("launch.0.instructions", "507", True),
            ("launch.0.instructions.by.load", "177", True),
            ("launch.0.instructions.by.load", None, False),
            ("launch.0.instructions.by.load+mma", "160", False),  # merged roles: the sum is the same
            ("launch.0.barrier.cta.arrivals", "8", False),
            ("launch.0.fence.proxy.async", "8", False),
            ("launch.0.kernel", "other", False),
            ("launch.0.ctas_per_sm", "1", True),
            ("launch.0.ctas_per_sm", "3", True),
            ("launch.0.waves", "2", True),
            ("launch.1.kernel", "second", True),
            ("launches", "2", True),
            ("flops.padding", "50.00 %", False),
            ("flops.executed", "999999999", True),
            ("flops.useful", "1", True),
        ],
    )
    def test_one_fact(self, fact: str, value: str | None, fails: bool) -> None:
        assert gated({fact: value}) == ({fact} if fails else set())

    def test_a_kernel_in_the_place_of_another_fails(self) -> None:
        old = {"launch.0.kernel": "first", "launch.1.kernel": "second"}
        assert not any(found.gates for found in cost_changes(old, old | {"launch.1.kernel": "third"}))
        assert all(
            found.gates for found in cost_changes(old, {"launch.0.kernel": "second", "launch.1.kernel": "first"})
        )

    def test_another_compiler_may_write_more_instructions(self) -> None:
        changes: dict[str, str | None] = {"launch.0.instructions": "4600", "launch.0.tma.load.bytes": "8192"}
        changes |= {"launch.0.shared.store.requests": "1", "launch.0.global.load.sectors": "1"}
        assert gated(changes) == set(changes)
        assert gated(changes, same_dsl=False) == {"launch.0.tma.load.bytes"}

    def test_a_counter_that_a_new_version_adds_fails_nothing(self) -> None:
        changes: dict[str, str | None] = {"launch.0.new.counter": "7", "launch.0.tma.load.bytes": "8192"}
        assert gated(changes) == {"launch.0.new.counter", "launch.0.tma.load.bytes"}
        assert gated(changes, same_counts=False) == {"launch.0.tma.load.bytes"}

    def test_any_growth(self) -> None:
        assert gated({"launch.0.tma.load.bytes": "9999"}, tolerance=(("tma.*", math.inf),)) == set()
