"""Which operand is blamed, and for what, by the agreement of the other three."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.provenance.expected import Content, agrees, blames
from pytest_nvfp4.sim.provenance.tags import Tags

from .read import content, right, tags


@pytest.fixture(scope="module")
def made() -> Tags:
    return tags()


@pytest.mark.parametrize("row", [0, 128])
def test_right_operands_agree(made: Tags, row: int) -> None:
    """At row 128 only 72 rows are inside: A has zeros beyond, and SFA padding."""
    assert agrees(right(made, group=1, row=row, k=64))
    outside = right(made, row=128) | {"A": content(made, "A", row=256), "SFA": content(made, "SFA", row=256)}
    assert agrees(outside), "half of a pair of CTAs may lie outside C"


def test_a_transposed_tile_agrees(made: Tags) -> None:
    read = right(made)
    assert agrees({"A": read["B"], "SFA": read["SFB"], "B": read["A"], "SFB": read["SFA"]})


@pytest.mark.parametrize(
    ("wrong", "blamed", "needs", "row", "k"),
    [
        ({"SFA": {"tensor": "SFB"}}, ["SFA"], "SFA of group 0", 0, 64),
        ({"A": {"tensor": "B"}}, ["A"], "A of group 0", 0, 64),
        ({"B": {"k": 128}}, ["B"], "B of group 0", 0, 64),
        ({"SFB": {"k": 0}}, ["SFB"], "SFB of group 0", 0, 64),
        ({"B": {"group": 1}}, ["B"], "B of group 0", 0, 64),
        ({"SFA": {"tensor": "SFB"}, "SFB": {"tensor": "SFA"}}, ["SFA", "SFB"], "SFA of group 0", 0, 64),
        ({"B": {"zeros": True}}, ["B"], "B of group 0", 0, 64),
        ({"SFA": {"tensor": "A"}}, ["SFA"], "SFA of group 0", 0, 64),
    ],
    ids=str,
)
def test_the_one_that_contradicts_the_others_is_blamed(
    made: Tags, wrong: dict[str, dict[str, object]], blamed: list[str], needs: str, row: int, k: int
) -> None:
    read = right(made, k=64)
    for name, change in wrong.items():
        read[name] = content(made, name, **({"k": 64} | change))  # type: ignore[arg-type]
    assert not agrees(read)
    found = blames(read, {}, made)
    assert [blame.name for blame in found] == blamed
    assert not any(blame.doubtful for blame in found)
    first = found[0]
    assert (str(made.tensors[first.tensor]), int(first.rows[0]), first.k) == (needs, row, k)
    assert first.mask.all()


def test_other_rows_alone_may_be_either_ones_fault(made: Tags) -> None:
    read = right(made, row=128) | {"SFA": content(made, "SFA", row=0)}
    assert not agrees(read)
    found = blames(read, {}, made)
    assert {(blame.name, int(blame.rows[0])) for blame in found} == {("SFA", 128), ("A", 0)}
    assert all(blame.doubtful for blame in found)


@pytest.mark.parametrize("name", ["B", "SFB"])
def test_one_that_reads_a_row_twice_is_blamed(made: Tags, name: str) -> None:
    """A wrong stride in a descriptor, or the same rows for both CTAs of a pair."""
    read = right(made)
    operand = read[name].operand
    cells = operand.cells.copy()
    cells[64:] = operand.cells[32:96]
    read[name] = Content.of(type(operand)(name, cells, operand.loads, None, None, None), made)
    (blame,) = blames(read, {}, made)
    assert (blame.name, int(np.flatnonzero(blame.mask)[0]), int(blame.rows[0])) == (name, 64, 64)
    assert not blame.doubtful


def test_the_rows_that_something_lies_over(made: Tags) -> None:
    read = right(made)
    over = read["SFA"].operand.cells.copy()
    over[64:] = read["SFB"].operand.cells[:64]
    operand = read["SFA"].operand
    changed = type(operand)("SFA", over, operand.loads, None, None, None)
    found = blames(read | {"SFA": Content.of(changed, made)}, {}, made)
    (blame,) = found
    assert (blame.name, int(np.flatnonzero(blame.mask)[0]), int(blame.rows[0])) == ("SFA", 64, 64)


def test_of_two_against_two_those_that_repeat_a_k_are_wrong(made: Tags) -> None:
    read = right(made, k=64) | {"A": content(made, "A", k=0), "SFA": content(made, "SFA", k=0)}
    seen = {name: {0} for name in read}
    assert {blame.name for blame in blames(read, seen, made)} == {"A", "SFA"}
    swapped = right(made, k=0) | {"A": content(made, "A", k=64), "SFA": content(made, "SFA", k=64)}
    assert {blame.name for blame in blames(swapped, seen, made)} == {"B", "SFB"}


def test_what_is_not_followed_is_not_judged(made: Tags) -> None:
    read = right(made)
    converted = read["A"].operand
    unknown = type(converted)("A", np.full(128, -1, np.int64), converted.loads, None, None, None)
    assert agrees(read | {"A": Content.of(unknown, made)})
    assert not Content.of(unknown, made).known
