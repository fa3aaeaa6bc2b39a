"""The search for a failing problem, with predicates in place of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

from pytest_nvfp4 import strategies
from pytest_nvfp4.contracts.group_gemm import GroupGemm
from pytest_nvfp4.problem import Group, Problem, parse_shape
from pytest_nvfp4.search.group_lists import Bounds, GroupLists, Steps, draw, reductions, size_of
from pytest_nvfp4.search.problem_search import search, stored_problems
from pytest_nvfp4.search.reduce import reduce_problem

STEPS = Steps()
LISTS = GroupLists(STEPS)
Predicate = Callable[[Problem], bool]

FAILURES: list[tuple[str, Predicate, str]] = [
    ("a group without rows", lambda p: any(g.m == 0 for g in p.groups), "0x128x256"),
    ("one row more than a tile", lambda p: any(g.m % 128 == 1 and g.m > 1 for g in p.groups), "129x128x256"),
    ("at least 77 rows", lambda p: any(g.m >= 77 for g in p.groups), "77x128x256"),
    ("two tiles across", lambda p: any(g.n >= 256 and g.m > 0 for g in p.groups), "1x256x256"),
    ("two steps of k", lambda p: any(g.k > 256 for g in p.groups), "0x128x512"),
    ("a group behind an empty one", lambda p: any(a.m == 0 < b.m for a, b in zip(p.groups, p.groups[1:], strict=False)),
     "0x128x256+1x128x256"),
    ("three groups with rows", lambda p: sum(g.m > 0 for g in p.groups) >= 3, "1x128x256+1x128x256+1x128x256"),
]  # fmt: skip


def asked(predicate: Predicate, jobs: list[int]) -> Callable[[Sequence[Problem]], list[bool]]:
    def failing(problems: Sequence[Problem]) -> list[bool]:
        jobs.append(len(problems))
        return [predicate(problem) for problem in problems]

    return failing


@pytest.mark.parametrize(("predicate", "smallest"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES])
def test_the_smallest_failing_group_list_is_found(predicate: Predicate, smallest: str) -> None:
    start = parse_shape("300x384x512,0x256x256,129x384x512,5x128x256,257x256x512,384x128x256")
    assert predicate(start)
    jobs: list[int] = []
    reduced = reduce_problem(start, asked(predicate, jobs), space=LISTS)
    assert reduced.problem.name == smallest
    assert reduced.minimal
    assert reduced.tried == sum(jobs)
    assert len(jobs) == reduced.rounds <= 12, "a round is one job, whatever it tries"


def test_what_never_fails_smaller_stays() -> None:
    start = parse_shape("300x384x512")
    reduced = reduce_problem(start, lambda problems: [False] * len(problems), space=LISTS)
    assert (reduced.problem, reduced.minimal, reduced.rounds) == (start, True, 1)
    cut = reduce_problem(start, lambda problems: [True] * len(problems), space=LISTS, rounds=1)
    assert not cut.minimal


@settings(deadline=None, max_examples=50)
@given(strategies.problems())
def test_every_step_is_smaller_and_legal(problem: Problem) -> None:
    for smaller in reductions(problem, STEPS):
        assert size_of(smaller) < size_of(problem)
        assert GroupGemm().violation(smaller) is None
        assert smaller.seed == problem.seed


@pytest.mark.slow
@pytest.mark.parametrize(("predicate", "smallest"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES])
def test_examples_come_upon_each_failure(predicate: Predicate, smallest: str, tmp_path: Path) -> None:
    fresh = draw(Bounds(), examples=200, repeatable=True)
    database = DirectoryBasedExampleDatabase(tmp_path)
    found = search(fresh, asked(predicate, []), space=LISTS, database=database, key=b"k")
    assert found.reduced is not None
    # A problem that is nothing but empty groups is not drawn, but it may be what is left of one.
    assert found.reduced.problem.name == smallest


def test_examples_are_different_and_repeatable() -> None:
    one, two = (draw(Bounds(), examples=40, repeatable=True) for _ in range(2))
    assert one == two
    assert len({problem.key for problem in one}) == len(one) >= 12
    assert all(GroupGemm().violation(problem) is None for problem in one)
    assert all(any(group.m for group in problem.groups) for problem in one)


@pytest.mark.parametrize("repeatable", [False, True])
def test_one_example_is_one_problem(repeatable: bool) -> None:
    """Hypothesis begins with the simplest one, which is nothing but empty groups: it is none."""
    assert len(draw(Bounds(), examples=1, repeatable=repeatable)) == 1


def test_work_is_bounded() -> None:
    for problem in draw(Bounds(most_work=4), examples=60, repeatable=True):
        work = [-(-g.m // 128) * (g.n // 128) * (g.k // 256) for g in problem.groups]
        assert sum(work[1:]) <= max(0, 4 - work[0])


def test_what_failed_is_tried_first_and_forgotten_when_it_passes() -> None:
    database = InMemoryExampleDatabase()
    fresh = [parse_shape(f"{rows}x128x256") for rows in range(1, 60)]
    jobs: list[int] = []
    first = search(
        fresh, asked(lambda p: p.groups[0].m >= 33, jobs), space=LISTS, database=database, key=b"k", batch=20
    )
    assert first.reduced is not None
    assert first.reduced.problem.name == "33x128x256"
    assert jobs[:2] == [20, 20]
    assert [problem.name for problem in stored_problems(database, b"k", LISTS)] == ["33x128x256"]
    assert stored_problems(database, b"another kernel", LISTS) == []
    jobs.clear()
    again = search(fresh, asked(lambda p: p.groups[0].m >= 33, jobs), space=LISTS, database=database, key=b"k")
    assert (again.replayed, jobs[0]) == (1, 1)
    assert again.first == Problem("33x128x256", (Group(33, 128, 256),))
    mended = search(fresh, asked(lambda _: False, jobs), space=LISTS, database=database, key=b"k")
    assert (mended.first, mended.replayed, mended.tried) == (None, 1, 60)
    assert stored_problems(database, b"k", LISTS) == []


def test_what_a_database_holds_and_cannot_be_read_is_removed() -> None:
    database = InMemoryExampleDatabase()
    database.save(b"k", b"\xff")
    database.save(b"k", b"1x2")
    database.save(b"k", b"1x128x256,0x128x256")
    assert [problem.name for problem in stored_problems(database, b"k", LISTS)] == ["1x128x256+0x128x256"]
    assert len(set(database.fetch(b"k"))) == 1
