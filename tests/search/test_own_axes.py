"""Problems that the axes of a contract of the user's own span."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis.database import InMemoryExampleDatabase

from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.search.own_axes import OwnAxes
from pytest_nvfp4.search.problem_search import search, stored_problems
from pytest_nvfp4.search.reduce import reduce_problem

LIKE = Problem("small", (), 5, "f.py::C#0", (("rows", 1), ("kind", "a")))
AXES = {"rows": range(1, 1000), "kind": ("a", "b", "c")}


def admitted(problems: Sequence[Problem]) -> list[bool]:
    """Leave out multiples of 10."""
    return [dict(problem.axes)["rows"] % 10 != 0 for problem in problems]  # type: ignore[operator]


SPACE = OwnAxes(LIKE, AXES, admitted)


def failing(problems: Sequence[Problem]) -> list[bool]:
    return [int(axes["rows"]) >= 77 and axes["kind"] != "a" for axes in (dict(one.axes) for one in problems)]


def test_what_is_drawn_is_distinct_legal_and_repeatable() -> None:
    one, two = (SPACE.draw(examples=30, repeatable=True) for _ in range(2))
    assert one == two
    assert len({problem.key for problem in one}) == len(one) == 30
    assert all(admitted(one))
    assert {problem.seed for problem in one} == {5}
    assert {dict(problem.axes)["kind"] for problem in one} == {"a", "b", "c"}


def test_a_failure_is_found_reduced_stored_and_tried_first() -> None:
    database = InMemoryExampleDatabase()
    fresh = SPACE.draw(examples=60, repeatable=True)
    found = search(fresh, failing, space=SPACE, database=database, key=b"k")
    assert found.reduced is not None
    assert found.reduced.problem.name == "rows=77,kind=b"
    assert found.reduced.minimal
    assert [problem.name for problem in stored_problems(database, b"k", SPACE)] == ["rows=77,kind=b"]
    again = search([], failing, space=SPACE, database=database, key=b"k")
    assert (again.replayed, again.first) == (1, found.reduced.problem)
    fewer = OwnAxes(LIKE, {"rows": range(1, 50), "kind": ("b",)}, admitted)
    assert stored_problems(database, b"k", fewer) == [], "what the axes no longer span is forgotten"


def test_a_reduction_stops_where_nothing_smaller_is_legal() -> None:
    start = SPACE.read("rows=999,kind=c")
    reduced = reduce_problem(start, lambda problems: [True] * len(problems), space=SPACE)
    assert (reduced.problem.name, reduced.minimal) == ("rows=1,kind=a", True)
    assert all(SPACE.size(smaller) < SPACE.size(start) for smaller in SPACE.smaller(start))
    with pytest.raises(ProblemError, match="does not give each axis"):
        SPACE.read("rows=1000,kind=c")
