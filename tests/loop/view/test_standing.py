"""What a loop has achieved: steps, products of measured ratios, reasons, spending."""

from pathlib import Path

import pytest

from pytest_nvfp4.loop.schemas import Examination, GateResult
from pytest_nvfp4.loop.state import StateFolder, write_model
from pytest_nvfp4.loop.view.standing import Measured, Standing, standing_of
from pytest_nvfp4.loop.view.view import LoopReader
from tests.loop.samples import FixedClock, Sample, commit, comparison, night, promoted_commit, promotion


def standing(folder: StateFolder) -> Standing:
    return standing_of(LoopReader(folder, FixedClock()).read())


def test_an_empty_loop_stands_nowhere(tmp_path: Path) -> None:
    found = standing(StateFolder(tmp_path / "none"))
    assert (found.steps, found.rejected, found.measured, found.modelled) == ((), {}, None, (None, None))


def test_steps_and_reasons_of_a_night(tmp_path: Path) -> None:
    found = standing(night(tmp_path).folder)
    assert [(step.promotion.candidate, step.before, step.promotion.value) for step in found.steps] == [
        (1, 100.0, 90.0),
        (4, 90.0, 81.0),
    ]
    assert found.modelled == pytest.approx((100.0, 81.0))
    assert {why: [each.number for each in some] for why, some in found.rejected.items()} == {
        "the gate races failed": [2],
        "it changed what the policy forbids": [3],
        "the same as an earlier candidate": [5],
        "the gate verify failed": [6],
    }


def test_the_measured_ratio_is_the_product_of_the_confirming_comparisons(tmp_path: Path) -> None:
    found = standing(night(tmp_path).folder)
    assert found.measured is not None
    assert found.measured.ratio == pytest.approx(0.9 * 0.92)
    assert found.measured.low == pytest.approx(0.89 * 0.91)
    assert found.measured.high == pytest.approx(0.91 * 0.93)
    assert found.measured.comparisons == 2
    assert [(point.number, point.measured) for point in found.history] == [
        (0, 1.0),
        (1, pytest.approx(0.9)),
        (4, pytest.approx(0.9 * 0.92)),
    ]


def test_a_step_that_was_not_measured_leaves_the_whole_unmeasured(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=90.0)
    sample.candidate(2, outcome="faster", us=80.0, against=promoted_commit(1), comparisons=[comparison(0.5)])
    sample.state("STOPPED", [promotion(1, 90.0), promotion(2, 80.0)])
    found = standing(sample.folder)
    assert found.measured is None
    assert found.steps[1].measured == Measured(0.5, 0.49, 0.51, ("NVIDIA H200",))
    assert [point.measured for point in found.history] == [1.0, None, None]


def test_a_candidate_is_compared_with_the_one_of_its_iteration_that_will_be_promoted(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=90.0, comparisons=[comparison(0.9)])
    sample.candidate(2, outcome="undecided", us=90.0, against=commit(1), comparisons=[comparison(1.0)])
    sample.state("STOPPED", [promotion(1, 90.0)])
    assert standing(sample.folder).history[2].measured == pytest.approx(0.9)


def test_a_reverted_promotion_is_no_step(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=50.0, comparisons=[comparison(0.5)])
    sample.candidate(2, outcome="faster", us=90.0, comparisons=[comparison(0.9)])
    sample.state("STOPPED", [promotion(1, 50.0, reverted=True), promotion(2, 90.0)])
    found = standing(sample.folder)
    assert [step.promotion.candidate for step in found.steps] == [2]
    assert found.steps[0].before == 100.0
    assert [each.candidate for each in found.reverted] == [1]
    assert found.measured is not None
    assert found.measured.ratio == pytest.approx(0.9)
    assert [point.promoted for point in found.history] == [True, False, True]
    assert list(found.rejected) == ["faster, and not promoted (a reviewer's veto, or an end of the loop)"]


def test_budgets_have_their_limits(tmp_path: Path) -> None:
    found = {each.name: (each.spent, each.limit) for each in standing(night(tmp_path).folder).budgets}
    assert found == {
        "iterations": (6, 40),
        "time": (10.0, 360.0),
        "GPU": (12.0, None),
        "cost": (1.25, 20.0),
        "tokens": (5000, None),
    }


def test_a_gate_that_does_not_apply_is_no_reason(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="rejected")
    skipped, passed, missing = (
        GateResult(gate="tmem", outcome="skipped"),
        GateResult(gate="verify", outcome="passed"),
        GateResult(gate="races", outcome="unavailable"),
    )
    for gates, expected in (
        ((skipped, passed), "rejected"),
        ((passed, skipped), "the gate tmem did not run"),
        ((skipped, passed, missing), "the gate races was not available"),
    ):
        write_model(sample.folder.candidate(1) / "examination.json", Examination(candidate=1, gates=gates))
        assert list(standing(sample.folder).rejected) == [expected]
