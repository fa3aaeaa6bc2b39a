"""The verdict by modelled times or a counter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.loop.protocols import InfrastructureError
from pytest_nvfp4.loop.schemas import Examination, Verdict
from tests.loop.judge.products import COMMIT, Bench, candidate, check, ended, modelled

AGAINST = COMMIT


def decided(bench: Bench, incumbent: Examination) -> Verdict:
    found = bench.examine(candidate())
    folder = bench.state.candidate(1)
    return bench.judge.decide(
        candidate(), found, against=AGAINST, incumbent=incumbent, folder=folder, purse=bench.purse
    )


def against_10_us(tmp_path: Path, *times: dict[str, Any], **sections: Any) -> Verdict:
    bench = Bench(tmp_path, **sections)
    incumbent = bench.baseline()
    bench.script.times = list(times)
    return decided(bench, incumbent)


@pytest.mark.parametrize(
    ("us", "outcome"),
    [
        (9.9, "faster"), (9.95, "faster"), (9.951, "undecided"), (10.0, "undecided"), (10.04, "undecided"),
        (10.06, "slower"), (20.0, "slower"),
    ],
)  # fmt: skip
def test_a_gain_is_one_from_the_least_gain_on(tmp_path: Path, us: float, outcome: str) -> None:
    verdict = against_10_us(tmp_path, modelled(us))
    assert (verdict.outcome, verdict.value, verdict.metric) == (outcome, pytest.approx(us), "modelled")
    assert verdict.incumbent_value == pytest.approx(10.0)
    assert verdict.against == AGAINST


def test_without_a_least_gain_only_a_tie_is_undecided(tmp_path: Path) -> None:
    target = {"least_gain": 0.0}
    assert against_10_us(tmp_path / "a", modelled(10.0), target=target).outcome == "undecided"
    assert against_10_us(tmp_path / "b", modelled(9.999), target=target).outcome == "faster"
    assert against_10_us(tmp_path / "c", modelled(10.001), target=target).outcome == "slower"


def test_the_geometric_mean_of_all_problems_decides(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.script.times = [modelled(10.0), modelled(1000.0, problem="p1")]
    incumbent = bench.baseline()
    bench.script.times = [modelled(9.0), modelled(1050.0, problem="p1")]
    verdict = decided(bench, incumbent)
    assert (verdict.outcome, verdict.value) == ("faster", pytest.approx((9.0 * 1050.0) ** 0.5))


def test_times_of_another_model_are_not_compared_the_incumbent_is_examined_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    incumbent = bench.baseline()
    bench.script.times = [modelled(5.0, model="m2")]
    verdict = decided(bench, incumbent)
    assert (verdict.outcome, verdict.incumbent_value) == ("undecided", pytest.approx(5.0))
    assert bench.script.ran[-1] == "model"
    assert bench.script.ran.count("compile") == 1, "only the model ran for the incumbent"


def test_an_incumbent_that_cannot_be_examined_again_is_infrastructure(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    incumbent = bench.baseline()
    bench.script.times = [modelled(5.0, model="m2")]
    found = bench.examine(candidate())
    bench.script.times = [modelled(5.0)]
    with pytest.raises(InfrastructureError, match="the incumbent was modelled with b200 1 abc, model m1"):
        bench.judge.decide(
            candidate(), found, against=AGAINST, incumbent=incumbent, folder=tmp_path / "f", purse=bench.purse
        )


@pytest.mark.parametrize(
    ("us", "outcome"), [(8.5, "undecided"), (8.0, "faster"), (11.5, "undecided"), (13.0, "slower")]
)
def test_another_kind_of_kernel_must_leave_both_bands(tmp_path: Path, us: float, outcome: str) -> None:
    verdict = against_10_us(tmp_path, modelled(us, kind="group GEMM"))
    assert verdict.outcome == outcome
    assert "as GEMM and the candidate as group GEMM" in verdict.reason


def test_a_kind_without_a_band_ranks_with_its_own_only(tmp_path: Path) -> None:
    assert against_10_us(tmp_path / "a", modelled(1.0, kind="other", band=None)).outcome == "undecided"
    assert against_10_us(tmp_path / "b", modelled(9.0, band=None)).outcome == "faster"


def test_a_counter_may_fall_to_zero(tmp_path: Path) -> None:
    bench = Bench(tmp_path, target={"metric": "counter:conflicts"})
    bench.script.counters = {"conflicts": 0}
    clean = bench.baseline()
    bench.script.counters = {"conflicts": 80}
    verdict = decided(bench, clean)
    assert (verdict.outcome, verdict.value, verdict.incumbent_value) == ("slower", pytest.approx(80.0), 0.0)
    dirty = bench.examine(candidate())
    bench.script.counters = {"other": 1}
    verdict = decided(bench, dirty)
    assert (verdict.outcome, verdict.value) == ("faster", 0.0)


def test_what_got_worse_is_told_by_name_sorted_by_share(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.script.counters = {"a": 100, "b": 10, "kernel": "x"}
    incumbent = bench.baseline()
    bench.script.counters = {"a": 110, "b": 100, "c": 5, "kernel": "x"}
    bench.script.times = [modelled(12.0)]
    verdict = decided(bench, incumbent)
    assert [(one.name, one.incumbent, one.candidate) for one in verdict.worse] == [
        ("b", 10.0, 100.0), ("c", None, 5.0), ("a", 100.0, 110.0),
    ]  # fmt: skip
    assert "- p0 b: 10 -> 100" in verdict.feedback
    assert "- p0/mma: tcgen05.mma: 10 -> 12" in verdict.feedback


def test_a_red_gate_rejects_with_line_and_hint_however_fast_the_model_says_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    incumbent = bench.baseline()
    bench.script.times = [modelled(0.001)]
    finding = {"kind": "race", "message": "m", "file": "k.py", "line": 3, "text": "x[0] = 1", "hint": "add a fence"}
    bench.script.checks["races"] = [check("races", "failed", message="a race", file="k.py", line=3, findings=[finding])]
    verdict = decided(bench, incumbent)
    assert (verdict.outcome, verdict.value) == ("rejected", None)
    assert verdict.reason == "the gate races failed: races[gpumode-0]: k.py:3: a race"
    assert "hint: add a fence" in verdict.feedback


def test_a_win_is_confirmed_by_a_second_call_that_does_the_same(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    incumbent = bench.baseline()
    bench.script.times = [modelled(9.0)]
    found = bench.examine(candidate())
    bench.script.commands.clear()

    def judged() -> Verdict:
        folder = bench.state.candidate(1)
        return bench.judge.decide(
            candidate(), found, against=AGAINST, incumbent=incumbent, folder=folder, purse=bench.purse
        )

    assert (judged().outcome, bench.script.ran) == ("faster", ["cost", "model"])
    bench.script.times = [modelled(9.5)]
    verdict = judged()
    assert (verdict.outcome, verdict.value) == ("rejected", None)
    assert "does not do the same in two calls: modelled 9 and 9.5" in verdict.reason
    bench.script.times = [modelled(9.0)]
    bench.script.counters = {"tma.load.bytes": 101}
    assert "p0/tma.load.bytes: 100 and 101" in judged().reason
    bench.script.counters = {"tma.load.bytes": 100}
    bench.script.cost = {"status": "failed"}
    assert judged().outcome == "rejected"
    bench.script.ends["model"] = bench.script.ends["cost"] = ended(-9)
    with pytest.raises(InfrastructureError, match="the win was not confirmed"):
        judged()


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ({"launch.0.tma": 100}, {"launch.0.tma": 0, "launch.1.tma": 100}, "undecided"),
        ({"launch.0.tma": 100}, {"launch.1.tma": 100}, "undecided"),
        ({"launch.0.tma": 100}, {"launch.0.tma": 40, "launch.1.tma": 50}, "faster"),
        ({"launch.0.tma": 100}, {"launch.0.tma": 40, "launch.1.tma": 70}, "slower"),
    ],
)
def test_a_counter_cannot_move_to_another_launch(
    tmp_path: Path, before: dict[str, int], after: dict[str, int], outcome: str
) -> None:
    bench = Bench(tmp_path, target={"metric": "counter:launch.0.tma"})
    bench.script.counters = before
    incumbent = bench.baseline()
    bench.script.counters = after
    assert decided(bench, incumbent).outcome == outcome


def test_a_counter_of_a_role_cannot_fall_by_another_name_of_the_role(tmp_path: Path) -> None:
    bench = Bench(tmp_path, target={"metric": "counter:launch.0.instructions.by.mma"})
    bench.script.counters = {"launch.0.instructions.by.mma": 100}
    incumbent = bench.baseline()
    bench.script.counters = {"launch.0.instructions.by.load+mma": 101}
    verdict = decided(bench, incumbent)
    assert verdict.outcome == "undecided"
    assert "roles of the warps" in verdict.reason
    bench.script.counters = {"launch.0.instructions.by.mma": 90}
    assert decided(bench, incumbent).outcome == "faster"


def test_a_win_of_another_model_version_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    incumbent = bench.baseline()
    bench.script.times = [modelled(9.0)]
    found = bench.examine(candidate())
    bench.script.times = [modelled(8.0, model="m2")]
    with pytest.raises(InfrastructureError, match=r"not confirmed: it was examined with .* m1, .* m2,"):
        bench.judge.decide(
            candidate(), found, against=AGAINST, incumbent=incumbent, folder=tmp_path / "f", purse=bench.purse
        )


def test_the_evidence_is_named_by_hash(tmp_path: Path) -> None:
    verdict = against_10_us(tmp_path, modelled(9.0))
    assert list(verdict.artifacts) == [f"gates-{name}.json" for name in ("0-compile", "1-tmem", "2-cost", "3-model")]
