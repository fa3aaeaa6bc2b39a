"""Curves as text: every value in its place, bounded sizes, and values that no axis has room for."""

import math

import pytest

from pytest_nvfp4.report.curve import Series, curve


def test_values_stand_in_their_rows_and_columns() -> None:
    lines = curve([Series("o", [(1, 0.9), (2, 0.8)])], [(0, 1.0), (2, 0.8)], last=2, width=30, height=4)
    assert lines == [
        "100.0 % |---------",
        "        |    o",
        " 80.0 % |        o",
        "         0       2",
    ]


def test_a_value_far_above_the_best_does_not_flatten_the_curve() -> None:
    lines = curve([Series("o", [(1, 50.0), (2, 0.8)])], [(0, 1.0), (2, 0.8)], last=2, width=30, height=6)
    assert "^" in lines[0]
    assert float(lines[0].split()[0]) < 130


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_left_out(value: float) -> None:
    assert curve([Series("o", [(1, value)])], [], last=1, width=30, height=6) == []
    assert "nan" not in "".join(curve([Series("o", [(1, value), (2, 1.0)])], [(0, 1.0)], last=2, width=30, height=6))


@pytest.mark.parametrize("count", [1, 2, 40, 5000])
@pytest.mark.parametrize(("width", "height"), [(20, 3), (76, 12), (198, 40), (0, 0)])
def test_a_curve_keeps_its_size(count: int, width: int, height: int) -> None:
    points = [(at, 1 - 0.5 * at / count) for at in range(count)]
    lines = curve([Series("o", points)], points, last=count, width=width, height=height)
    assert len(lines) == max(height, 3)
    assert max(map(len, lines)) <= max(width, 20)


def test_equal_values_are_a_line_in_the_middle() -> None:
    lines = curve([], [(0, 1.0)], last=4, width=40, height=4)
    assert "-" in lines[1]


def test_what_is_a_little_worse_than_the_only_best_is_no_value_far_above() -> None:
    lines = curve([Series("o", [(1, 1.08)])], [(0, 1.0)], last=1, width=30, height=6)
    assert lines[0] == "108.0 % |    o"
