"""The verdict by measured times, on a device with a made-up clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.measured import Measurer
from pytest_nvfp4.loop.protocols import BudgetError, InfrastructureError
from pytest_nvfp4.loop.schemas import Examination, ProblemTime, Verdict
from pytest_nvfp4.loop.state import StateFolder
from tests.loop.judge.clocks import ClockedPlace, kernel
from tests.loop.judge.products import Purse, Trees, candidate

OLD, NEW = "0" * 40, "a" * 40
SETTINGS = '[tool.pytest_nvfp4]\n[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\n'


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_CLOCKED_LOG", str(tmp_path / "log"))


def modelled(us: float) -> Examination:
    return Examination(candidate=0, modelled=(ProblemTime(problem="p", us=us),), table="t", kind="k", band=0.1)


def judged(
    tmp_path: Path,
    place: ClockedPlace,
    new: str,
    *,
    models: tuple[float, float] = (10.0, 10.0),
    purse: Purse | None = None,
    **sections: Any,
) -> Verdict:
    device = {"name": "local", "rounds": 60, "confirm_rounds": 60}
    target = {"metric": "measured"}
    config = LoopConfig.model_validate(
        {
            "kernel": {"file": "k.py", "problems": ["8x128x256"]},
            "mode": "manual", "target": target, "device": device, **sections,
        }
    )  # fmt: skip
    files = {"pyproject.toml": SETTINGS}
    trees = Trees({OLD: {"k.py": kernel(20.0), **files}, NEW: {"k.py": new, **files}})
    measurer = Measurer(config, worktrees=trees, state=StateFolder(tmp_path / "state"), open_place=place.opened)
    old, mine = models
    return measurer.verdict(
        candidate(1, NEW), modelled(mine), modelled(old), against=OLD, folder=tmp_path / "c", purse=purse or Purse()
    )


def test_two_per_cent_faster_is_confirmed_in_a_fresh_comparison(tmp_path: Path) -> None:
    place = ClockedPlace()
    verdict = judged(tmp_path, place, kernel(19.6))
    assert verdict.outcome == "faster"
    assert [comparison.outcome for comparison in verdict.comparisons] == ["undecided", "faster", "faster"]
    assert (verdict.value, verdict.incumbent_value) == (pytest.approx(19.6, rel=0.01), pytest.approx(20.0, rel=0.01))
    assert verdict.comparisons[-1].low < 0.98 < verdict.comparisons[-1].high < 0.995
    _, first, second = place.batches
    assert len({job.row_key for batch in place.batches for job in batch.jobs}) == 6, "no inputs are drawn twice"
    assert [job.kernel for job in second.jobs] == [job.kernel for job in reversed(first.jobs)]
    assert place.closed
    evidence = json.loads((tmp_path / "c" / "measured-final.json").read_text())
    assert len(evidence["device_us"]["8x128x256"]["candidate"]) == 60


def test_the_kernels_take_turns(tmp_path: Path) -> None:
    place = ClockedPlace(noise=0.0)
    judged(tmp_path, place, kernel(19.0))
    assert place.order[:2] == [20.0, 19.0]
    assert place.order[2:10] == [20.0, 19.0, 19.0, 20.0, 20.0, 19.0, 19.0, 20.0]
    assert place.order[10:18] == [19.0, 20.0, 20.0, 19.0, 19.0, 20.0, 20.0, 19.0]


@pytest.mark.parametrize(("us", "outcome"), [(20.4, "slower"), (20.0, "undecided"), (19.96, "undecided")])
def test_what_is_not_faster_is_compared_once(tmp_path: Path, us: float, outcome: str) -> None:
    verdict = judged(tmp_path, ClockedPlace(), kernel(us))
    assert verdict.outcome == outcome
    assert len(verdict.comparisons) == 2


def test_a_far_slower_one_ends_at_the_first_look(tmp_path: Path) -> None:
    verdict = judged(tmp_path, ClockedPlace(), kernel(40.0))
    assert (verdict.outcome, len(verdict.comparisons)) == ("slower", 1)
    assert "in a first look of 12 rounds" in verdict.reason


def test_noise_decides_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, ClockedPlace(noise=0.2), kernel(19.6)).outcome == "undecided"


def test_a_drift_that_both_share_changes_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path / "a", ClockedPlace(drift=1.01), kernel(19.0)).outcome == "faster"
    assert judged(tmp_path / "b", ClockedPlace(drift=1.01), kernel(20.0)).outcome == "undecided"


def test_a_win_that_a_fresh_comparison_does_not_confirm_is_none(tmp_path: Path) -> None:
    verdict = judged(tmp_path, ClockedPlace(quiet=2), kernel(19.0))
    assert verdict.outcome == "undecided"
    assert "a fresh one did not confirm it" in verdict.reason
    assert [comparison.outcome for comparison in verdict.comparisons] == ["undecided", "faster", "undecided"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("WRONG = True", "failed while it was measured"),
        ("ODD_US = 60.0", "cheated while it was measured"),
    ],
)
def test_a_wrong_or_cheating_candidate_is_rejected(tmp_path: Path, more: str, said: str) -> None:
    verdict = judged(tmp_path, ClockedPlace(), kernel(19.0, more=more))
    assert verdict.outcome == "rejected"
    assert said in verdict.reason


def test_a_time_that_no_device_reaches_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_CLOCKED_NAME", "NVIDIA B200")
    verdict = judged(tmp_path, ClockedPlace(), kernel(0.0001))
    assert (verdict.outcome, "cheated" in verdict.reason) == ("rejected", True)


@pytest.mark.parametrize("status", ["unavailable", "crashed", "timeout"])
def test_an_incumbent_that_fails_on_the_device_says_nothing_about_the_candidate(tmp_path: Path, status: str) -> None:
    with pytest.raises(InfrastructureError, match=f"the incumbent is {status}"):
        judged(tmp_path, ClockedPlace(status=status), kernel(19.0))


def test_what_the_model_finds_slower_by_more_than_its_band_is_not_measured(tmp_path: Path) -> None:
    place = ClockedPlace()
    verdict = judged(tmp_path, place, kernel(19.0), models=(10.0, 11.2))
    assert (verdict.outcome, place.batches) == ("slower", [])
    assert "not measured" in verdict.reason
    assert judged(tmp_path, place, kernel(19.0), models=(10.0, 10.9)).outcome == "faster"
    off = {"judge": {"skip_modelled_slower": False}}
    assert judged(tmp_path, place, kernel(19.0), models=(10.0, 11.2), **off).outcome == "faster"


def test_each_stage_is_reserved_before_and_settled_after_with_the_idle_time_at_the_end(tmp_path: Path) -> None:
    place, purse = ClockedPlace(hourly_usd=36.0, idle_s=50.0), Purse()
    verdict = judged(tmp_path, place, kernel(19.6), purse=purse)
    assert purse.calls == [
        ("reserve", 180.0, 2.3), ("settle", 100.0, 1.0),
        ("reserve", 420.0, 4.7), ("settle", 100.0, 1.0),
        ("reserve", 900.0, 9.5), ("settle", 100.0, 1.0),
        ("settle", 0.0, 0.5),
    ]  # fmt: skip
    assert (verdict.gpu_s, verdict.usd) == (300.0, pytest.approx(3.5))


def test_a_stage_that_exceeds_the_budget_does_not_begin(tmp_path: Path) -> None:
    place = ClockedPlace(hourly_usd=36.0)
    with pytest.raises(BudgetError):
        judged(tmp_path, place, kernel(19.6), purse=Purse(ceiling=5.0))
    assert len(place.batches) == 2
    assert place.closed
