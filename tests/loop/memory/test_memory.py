"""Duplicates are those whose earlier verdict could not end otherwise; the records on the disk are the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.loop.memory.memory import CandidateMemory
from pytest_nvfp4.loop.schemas import Outcome
from pytest_nvfp4.loop.state import LoopState, Promotion, StateFolder, write_model
from pytest_nvfp4.loop.work.workers import source_at
from tests.loop.records import START, candidate, commit, digest, examination, keep, measured, result
from tests.loop.workers import Bench

PTX = digest("ptx")


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def again(number: int, earlier: int, **changes: object):
    """A candidate with the source of an earlier one, and another tree."""
    return candidate(number, source_sha256=digest(f"source {earlier}"), **changes)


@pytest.mark.parametrize(
    ("outcome", "final"),
    [
        ("faster", True),
        ("slower", True),
        ("undecided", True),
        ("rejected", True),
        ("infrastructure", False),
        ("duplicate", False),
    ],
)
def test_a_duplicate_is_one_whose_earlier_verdict_is_final(folder: StateFolder, outcome: Outcome, final: bool) -> None:
    keep(folder, candidate(1), outcome, red="verify" if outcome == "rejected" else "", ptx=PTX)
    memory = CandidateMemory(folder)
    expected = 1 if final else None
    assert memory.same_source(again(2, 1)) == expected
    assert memory.same_source(candidate(2, tree=commit("tree 1"))) == expected
    assert memory.known_ptx(2).get(PTX) == expected
    assert memory.same_source(candidate(2)) is None


def test_without_a_source_only_the_tree_counts(folder: StateFolder) -> None:
    keep(folder, candidate(1, source_sha256=None), "slower")
    memory = CandidateMemory(folder)
    assert memory.same_source(candidate(2, source_sha256=None)) is None
    assert memory.same_source(candidate(2, source_sha256=None, tree=commit("tree 1"))) == 1


def test_a_candidate_without_a_commit_is_no_duplicate(folder: StateFolder) -> None:
    nothing = {"commit": None, "tree": None, "source_sha256": None, "end": "unchanged"}
    keep(folder, candidate(1, **nothing), "no-candidate")
    assert CandidateMemory(folder).same_source(candidate(2, **nothing)) is None


def test_the_first_of_several_is_the_original(folder: StateFolder) -> None:
    keep(folder, candidate(1), "infrastructure", ptx=PTX)
    keep(folder, again(2, 1), "slower", ptx=PTX)
    keep(folder, again(3, 1), "duplicate", ptx=PTX, duplicate_of=2)
    memory = CandidateMemory(folder)
    assert memory.same_source(again(4, 1)) == 2
    assert memory.known_ptx(4)[PTX] == 2


def test_the_own_iteration_and_later_ones_do_not_count(folder: StateFolder) -> None:
    keep(folder, candidate(1, iteration=1), "slower", ptx=PTX)
    memory = CandidateMemory(folder)
    assert memory.same_source(again(2, 1, iteration=1)) is None
    assert PTX not in memory.known_ptx(1)


def test_what_noise_left_open_is_measured_three_times(folder: StateFolder) -> None:
    memory = CandidateMemory(folder)
    for number in (1, 2, 3):
        assert memory.same_source(again(number, 1)) is None
        assert PTX not in memory.known_ptx(number)
        keep(folder, again(number, 1), "undecided", ptx=PTX, comparisons=(measured(),))
    assert memory.same_source(again(4, 1)) == 1
    assert memory.known_ptx(4)[PTX] == 1


def test_what_was_not_judged_to_its_end_is_judged_again(folder: StateFolder) -> None:
    keep(folder, candidate(1), "undecided", value=None, incumbent_value=None)
    assert CandidateMemory(folder).same_source(again(2, 1)) is None


@pytest.mark.parametrize(("gate", "later"), [("cost", None), ("model", None), ("layouts", None), ("races", 1)])
def test_a_gate_that_compares_counts_while_the_incumbent_is_the_same(
    folder: StateFolder, gate: str, later: int | None
) -> None:
    keep(folder, candidate(1), "rejected", red=gate, ptx=PTX)
    memory = CandidateMemory(folder)
    assert memory.same_source(again(2, 1)) == 1
    assert memory.same_source(again(2, 1, parent=commit("new"))) == later
    keep(folder, candidate(2))
    assert memory.known_ptx(2).get(PTX) == (None if gate == "layouts" else 1)
    keep(folder, candidate(3, parent=commit("new")))
    assert memory.known_ptx(3).get(PTX) == later


def test_a_comparison_with_a_refused_candidate_is_not_final(folder: StateFolder) -> None:
    """Candidate 1 was faster, and 2 slower than 1. The reviewer refused 1: then 2 may be faster than what is left."""
    keep(folder, candidate(1, iteration=1), "faster")
    keep(folder, candidate(2, iteration=1), "slower", against=commit("commit 1"), ptx=PTX)
    memory = CandidateMemory(folder)
    write_model(folder.state, LoopState(incumbent=START))
    assert memory.same_source(again(3, 2)) is None
    assert PTX not in memory.known_ptx(3)
    promotion = Promotion(candidate=1, iteration=1, commit=commit("promoted"), value=9.0)
    write_model(folder.state, LoopState(promotions=(promotion,)))
    assert memory.same_source(again(3, 2)) == 2
    assert memory.known_ptx(3)[PTX] == 2
    write_model(folder.state, LoopState(promotions=(promotion.model_copy(update={"reverted": True}),)))
    assert memory.same_source(again(3, 2)) is None


def test_a_comparison_with_a_reverted_incumbent_is_not_final(folder: StateFolder) -> None:
    """Candidate 2 was slower than 1, where its worker began. The promotion of 1 was reverted."""
    promotion = Promotion(candidate=1, iteration=1, commit=commit("promoted"), value=9.0)
    keep(folder, candidate(1, iteration=1), "faster")
    keep(folder, candidate(2, iteration=2, parent=promotion.commit), "slower", against=promotion.commit, ptx=PTX)
    write_model(folder.state, LoopState(promotions=(promotion,)))
    memory = CandidateMemory(folder)
    assert memory.same_source(again(4, 2)) == 2
    write_model(folder.state, LoopState(promotions=(promotion.model_copy(update={"reverted": True}),)))
    assert memory.same_source(again(4, 2)) is None
    assert PTX not in memory.known_ptx(4)
    assert memory.same_source(again(4, 1)) == 1, "what was taken back is not tried again"


def test_the_baseline_is_known_by_its_ptx(folder: StateFolder) -> None:
    write_model(folder.baseline / "examination.json", examination(0, ptx_sha256=PTX))
    keep(folder, candidate(1), "slower", ptx=PTX)
    assert CandidateMemory(folder).known_ptx(2)[PTX] == 0


def test_a_way_back_to_the_start_is_known_by_its_source(folder: StateFolder) -> None:
    asked = []

    def source_of(commit: str) -> str:
        asked.append(commit)
        return digest("source of the start")

    memory = CandidateMemory(folder, source_of=source_of)
    back = candidate(2, source_sha256=digest("source of the start"))
    assert memory.same_source(back) is None, "the loop has not begun"
    write_model(folder.state, LoopState(baseline=START))
    assert memory.same_source(back) == 0
    assert memory.same_source(candidate(3)) is None
    assert memory.same_source(candidate(3, source_sha256=None)) is None
    assert asked == [START]
    assert CandidateMemory(folder).same_source(back) is None


def test_a_comment_alone_is_the_source_of_the_start(
    folder: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    bench = Bench(tmp_path / "user")
    start = bench.repository.incumbent()
    policy = bench.places("kernels/oth*.py").policy

    def source_of(commit: str) -> str:
        return source_at(bench.repository, policy, commit)

    write_model(folder.state, LoopState(baseline=start))
    memory = CandidateMemory(folder, source_of=source_of)
    for text, expected in (("STAGES = 1  # one\\n", 0), ("STAGES = 2\\n", None)):
        made = bench.run(f"change('{text}')", may_change=("kernels/oth*.py",))
        assert made.end == "proposed"
        assert memory.same_source(made) == expected


def test_a_record_that_changes_is_read_again(folder: StateFolder) -> None:
    made = candidate(1)
    keep(folder, made)
    memory = CandidateMemory(folder)
    assert [each.outcome for each in memory.records()] == ["pending"]
    keep(folder, made, "rejected", red="verify")
    assert [each.outcome for each in memory.records()] == ["rejected"]
    keep(folder, made, "slower")
    assert [each.outcome for each in memory.records()] == ["slower"]


def test_a_damaged_record_is_named(folder: StateFolder) -> None:
    keep(folder, candidate(1), "slower")
    path = folder.candidate(1) / "verdict.json"
    path.write_text("{}")
    with pytest.raises(DoorError, match=r"verdict\.json"):
        CandidateMemory(folder).records()


def test_candidates_are_found_by_their_words(folder: StateFolder) -> None:
    keep(folder, result(candidate(2), "Use FIVE stages"), "rejected", red="races")
    keep(folder, result(candidate(10), "swap raster"), "slower")
    memory = CandidateMemory(folder)
    assert [each.number for each in memory.records()] == [2, 10]

    def found(text: str) -> list[int]:
        return [each.number for each in memory.records() if each.matches(text)]

    assert found("") == [2, 10]
    assert found("stages five") == [2]
    assert found("races hint") == [2]
    assert found("agent") == [2, 10]
    assert found("five raster") == []


def test_nothing_is_known_before_the_first_candidate(folder: StateFolder) -> None:
    memory = CandidateMemory(folder)
    assert memory.records() == []
    assert memory.record(1) is None
    assert memory.same_source(candidate(1)) is None
    assert memory.known_ptx(1) == {}
