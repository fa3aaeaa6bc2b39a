"""A loop as a document: what it says of modelled and measured times, of a dead loop, of untrusted words; its events."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from pytest_nvfp4.loop.schemas import GateResult, ReviewerVerdict
from pytest_nvfp4.loop.state import Control, StateFolder
from pytest_nvfp4.loop.view.standing import standing_of
from pytest_nvfp4.loop.view.view import LoopReader, LoopView, diff_of
from pytest_nvfp4.report.loop_events import events, first_lines
from pytest_nvfp4.report.loops import loop_document, status_text
from pytest_nvfp4.report.render import OutputFormat, render
from tests.loop.samples import BASE, CONFIG, FixedClock, Sample, comparison, night, promoted_commit, promotion

EVIL = "\x1b[2J\x1b]0;owned\x07\u202e<script>alert(1)</script>"


def read(folder: StateFolder) -> LoopView:
    return LoopReader(folder, FixedClock()).read()


def written(folder: StateFolder, output_format: OutputFormat = OutputFormat.TEXT) -> str:
    view = read(folder)
    standing = standing_of(view)
    diffs = {step.promotion.candidate: diff_of(folder, step.promotion.candidate) for step in standing.steps}
    return render(loop_document(view, standing, diffs), output_format)


def test_a_night_is_one_page(tmp_path: Path) -> None:
    text = written(night(tmp_path).folder)
    for expected in (
        "stopped: no progress",
        "100 -> 81 (-19.0 %), candidate 4",
        "a modelled time is no measurement",
        "0.828 (0.810 to 0.846) on NVIDIA H200, product of 2 comparisons; intervals of 95 %",
        "6 in 6 iterations: 2 accepted, 4 not accepted",
        "time 10.0 of 360 min; GPU 12 s; cost 1.25 of 20 USD; tokens 5,000",
        "the gate races failed",
        "git merge nvfp4-loop/night",
        "the worker's own words, which nobody has verified: one stage more",
        "+STAGES = 4",
    ):
        assert expected in text
    assert len(text.splitlines()) < 66
    assert max(map(len, text.splitlines())) <= 120


def test_without_a_measurement_none_is_claimed(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=90.0)
    sample.state("STOPPED", [promotion(1, 90.0)])
    text = written(sample.folder)
    assert "unknown: no accepted step was measured" in text
    assert "# accepted" in text  # the legend; the curve itself has modelled times only
    assert "|#" not in text


def test_times_of_two_allocations_have_no_change(tmp_path: Path) -> None:
    """The card ran twice as fast on the second evening: the times say -60 %, the comparisons -10 % each."""
    sample = Sample.at(tmp_path)
    for number, before, after, against in ((1, 100.0, 90.0, BASE), (2, 44.0, 40.0, promoted_commit(1))):
        sample.candidate(
            number,
            outcome="faster",
            us=after,
            before=before,
            metric="measured",
            against=against,
            comparisons=[comparison(0.9)],
        )
    sample.state("STOPPED", [promotion(1, 90.0), promotion(2, 40.0)], metric="measured")
    text = written(sample.folder)
    (best,) = (line for line in text.splitlines() if line.startswith("best"))
    assert best.endswith("measured geometric mean in us 40, candidate 2")
    assert "0.810 (0.792 to 0.828) on NVIDIA H200" in text
    assert "-9.1 %" in text  # of the step, from its own comparison


def test_a_dry_run_has_nothing_to_take(tmp_path: Path) -> None:
    sample = night(tmp_path)
    sample.folder.config.write_text(f'mode = "dry-run"\n{CONFIG}')
    text = written(sample.folder)
    assert "a dry run makes its candidates up, and there is no branch" in text
    assert "git merge" not in text


def test_without_a_step_there_is_nothing_to_take(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("STOPPED")
    text = written(sample.folder)
    assert "nothing was accepted: the branch nvfp4-loop/night is where it began" in text
    assert "git merge" not in text


def test_a_dead_loop_names_the_command_that_goes_on(tmp_path: Path) -> None:
    sample = night(tmp_path / "with a space")
    sample.state("JUDGE", iteration=7)
    sample.died()
    text = written(sample.folder)
    assert "ended in JUDGE of iteration 7 without stopping it" in text
    folder = f"{tmp_path}/with a space"
    assert f"nvfp4 loop run '{folder}/loop.toml' --state '{folder}'" in text


def test_an_interrupted_loop_names_the_command_that_goes_on(tmp_path: Path) -> None:
    view = read(night(tmp_path).folder)
    assert status_text(view) == "stopped: no progress"
    state = view.state.model_copy(update={"interrupted": "JUDGE", "stop_reason": "interrupted by SIGTERM"})
    text = status_text(replace(view, state=state))
    assert text.startswith("stopped: interrupted by SIGTERM, in JUDGE of iteration 6; go on with `nvfp4 loop run ")


def test_untrusted_words_act_nowhere(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=90.0, reason=EVIL, words=EVIL, diff=f"+{EVIL}\n")
    sample.candidate(2, outcome="rejected", red="verify", reason=EVIL, feedback=EVIL)
    sample.state("STOPPED", [promotion(1, 90.0)], stop_reason=EVIL)
    for each in OutputFormat:
        text = written(sample.folder, each)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\x07" not in text
    assert "<script>" not in written(sample.folder, OutputFormat.HTML)


def test_a_start_that_does_not_pass_is_said_to_be_the_reason(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("INIT", iteration=0)
    before = read(sample.folder)
    sample.red_start("C[0, 0] is wrong\nhint: x")
    now = read(sample.folder)
    assert "the kernel at the start does not pass: the gate verify failed\n  C[0, 0] is wrong\n" in written(
        sample.folder
    )
    assert list(events(before, now)) == [
        "the start: compile passed (0.0 s)",
        "the start: verify failed (0.0 s): C[0, 0] is wrong",
    ]


def test_json_has_stable_keys(tmp_path: Path) -> None:
    data = json.loads(written(night(tmp_path).folder, OutputFormat.JSON))
    assert data["version"] == 1
    assert (data["life"], data["phase"], data["stop_reason"]) == ("stopped", "STOPPED", "no progress")
    assert data["baseline"]["value"] == 100.0
    assert data["incumbent"]["candidate"] == 4
    assert [each["candidate"] for each in data["accepted"]] == [1, 4]
    assert data["rejected"]["the gate races failed"] == [2]
    assert data["measured"]["devices"] == ["NVIDIA H200"]
    assert [each["number"] for each in data["candidates"]] == [1, 2, 3, 4, 5, 6]
    assert data["candidates"][0]["gates"][0] == {"gate": "compile", "outcome": "passed", "wall_s": 1.5}


def test_events_are_those_since_the_earlier_view(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.state("RUN_WORKER", iteration=1)
    sample.runs(1)
    views = [read(sample.folder)]
    sample.gates(1, "compile")
    views.append(read(sample.folder))
    sample.candidate(1, outcome="faster", us=90.0, reason="10 % less")
    sample.candidate(2, end="failed")
    sample.control(Control(stop="now"))
    views.append(read(sample.folder))
    sample.state("STOPPED", [promotion(1, 90.0)], iteration=1, stop_reason="asked")
    sample.folder.lock.unlink()
    views.append(read(sample.folder))
    assert [list(events(old, new)) for old, new in pairwise(views)] == [
        ["candidate 1: compile passed (2.0 s)"],
        [
            "candidate 1: is proposed",
            "candidate 1: verify passed (1.5 s)",
            "candidate 1: races passed (1.5 s)",
            "candidate 1: faster: 10 % less",
            "candidate 2: the worker left no candidate",
            "a stop is requested",
        ],
        ["candidate 1 is the incumbent: 90 (-10.0 %)", "stopped: asked"],
    ]
    assert list(events(views[-1], views[-1])) == []


def test_reverts_reviews_red_gates_and_damage_are_events(tmp_path: Path) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=90.0)
    sample.state("APPLY_VERDICT", [promotion(1, 90.0)])
    sample.died()
    before = read(sample.folder)
    review = ReviewerVerdict(
        iteration=1, verdict="CONTINUE", confidence="low", reason="go on", next_change_hint="x", requires_revert=True
    )
    red = replace(
        before.candidates[0],
        number=2,
        candidate=None,
        examination=None,
        verdict=None,
        gates=(GateResult(gate="verify", outcome="failed", message="wrong\nmore"),),
    )
    state = before.state.model_copy(update={"promotions": (promotion(1, 90.0, reverted=True),)})
    now = replace(
        before, state=state, reviews=((1, review),), problems=("x is damaged",), candidates=(*before.candidates, red)
    )
    assert list(events(before, now)) == [
        "candidate 2: verify failed (0.0 s): wrong",
        "review of iteration 1: CONTINUE: go on",
        "the promotion of candidate 1 is reverted",
        "x is damaged",
    ]


def test_a_first_reader_is_told_where_the_loop_is(tmp_path: Path) -> None:
    (line,) = first_lines(read(StateFolder(tmp_path / "none")))
    assert "no loop has begun here" in line
    sample = night(tmp_path)
    sample.control(Control(stop="now"))  # it has had its effect
    lines = list(first_lines(read(sample.folder)))
    assert len(lines) == 2
    assert lines[0] == "loop night: stopped: no progress"
    assert lines[1].startswith("6 candidates; modelled geometric mean in us 100 -> 81 (-19.0 %), candidate 4; measured")
