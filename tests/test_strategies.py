"""The strategies that the package gives to its users, and their registration."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import depth, rank, size
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.tree import Dynamic, ScaledBasis, leaves
from pytest_nvfp4.problem import Group, Problem, parse_shape
from pytest_nvfp4.strategies.profiles import PROFILES
from pytest_nvfp4.tmem.columns import MmaTile, columns
from pytest_nvfp4.tmem.packing import PackingRequest, Segment

UNHURRIED = settings(deadline=None)

T = TypeVar("T")


def found(strategy: st.SearchStrategy[T], condition: Callable[[T], Any]) -> T:
    """Any example, whether or not a smaller one exists."""
    return hypothesis.find(strategy, condition, settings=settings(phases=[Phase.generate], max_examples=2000))


@UNHURRIED
@given(strategies.shapes(max_size=100, max_rank=3))
def test_shapes_keep_their_bounds(shape) -> None:
    flat = leaves(shape)
    assert 1 <= len(flat) <= 3
    assert all(count >= 1 for count in flat)
    assert size(Layout(shape, shape)) <= 100


@UNHURRIED
@given(strategies.layouts(max_size=64, nested=False))
def test_flat_layouts_are_flat(layout: Layout) -> None:
    assert depth(layout) == 1
    assert size(layout) <= 64


@UNHURRIED
@given(strategies.compact_layouts())
def test_compact_layouts_are_bijections(layout: Layout) -> None:
    assert sorted(values(layout)) == list(range(size(layout)))


@UNHURRIED
@given(strategies.layouts(max_size=64), st.data())
def test_renested_layouts_are_the_same_function(layout: Layout, data: st.DataObject) -> None:
    assert values(data.draw(strategies.renested(layout))) == values(layout)


def test_the_kinds_that_matter_are_found() -> None:
    """Negative controls: each search must find an example, else the strategy never makes one."""
    assert found(strategies.layouts(), lambda layout: 0 in leaves(layout.stride) and size(layout) > 4)
    assert found(strategies.layouts(), lambda layout: depth(layout) > 1)
    assert found(strategies.layouts(), lambda layout: depth(layout) == 0 and rank(layout) == 1)
    assert found(strategies.layouts(), lambda layout: size(layout) > 8 and len(set(values(layout))) == size(layout))
    assert found(strategies.layouts(), lambda layout: size(layout) > len(set(values(layout))) > 8)
    assert found(strategies.basis_layouts(), lambda layout: "1/2@" in str(layout))
    assert found(strategies.basis_layouts(), lambda layout: {(0,), (1,)} <= {s.modes for s in leaves(layout.stride)
                                                                           if isinstance(s, ScaledBasis)})  # fmt: skip
    assert found(strategies.dynamic_layouts(), lambda layout: "?{i64 div=8}" in str(layout))
    assert found(strategies.swizzles(), lambda swizzle: swizzle == Swizzle(3, 4, 3))
    assert found(strategies.composed_layouts(), lambda layout: layout.offset and layout.inner.bits)


def test_registered_types_need_no_strategy() -> None:
    strategies.register()
    assert found(st.from_type(Layout), lambda layout: not any(isinstance(s, Dynamic) for s in leaves(layout.stride)))
    assert found(st.from_type(Swizzle), lambda swizzle: swizzle.bits == 3)
    assert found(st.from_type(ComposedLayout), lambda layout: isinstance(layout.inner, Swizzle))


def test_the_entry_point_names_register() -> None:
    points = [point for point in importlib.metadata.entry_points(group="hypothesis") if point.name == "nvfp4"]
    assert all(point.load() is strategies.register for point in points)


def test_importing_the_layouts_is_cheap() -> None:
    """Neither hypothesis nor numpy, torch or the DSL comes with the import: Hypothesis itself imports this module."""
    code = (
        "import sys, pytest_nvfp4.strategies, pytest_nvfp4.layout.listing, pytest_nvfp4.layout.sameness, "
        "pytest_nvfp4.layout.signals, pytest_nvfp4.layout.warp, pytest_nvfp4.layout.divide\n"
        "print({'numpy', 'torch', 'cutlass', 'hypothesis'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def smallest(strategy: st.SearchStrategy[T], condition: Callable[[T], Any]) -> T:
    """What Hypothesis shrinks a failure to."""
    # Fixed choices: this is about what shrinking comes to, and not about luck.
    return hypothesis.find(strategy, condition, settings=settings(max_examples=3000, derandomize=True, database=None))


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        (lambda p: any(g.m == 0 for g in p.groups), "0x128x256"),
        (lambda p: any(g.m > 128 for g in p.groups), "129x128x256"),
        (lambda p: any(g.m % 128 == 127 for g in p.groups), "127x128x256"),
        (lambda p: any(g.m % 128 == 1 and g.m > 1 for g in p.groups), "129x128x256"),
        (lambda p: any(g.n > 256 for g in p.groups), "0x384x256"),
        (lambda p: sum(g.m > 0 for g in p.groups) >= 3, "1x128x256+1x128x256+1x128x256"),
        (lambda p: [g.m for g in p.groups].count(0) >= 2 and p.groups[-1].m > 0, "0x128x256+0x128x256+1x128x256"),
    ],
)
def test_problems_shrink_to_the_smallest_failing_group_list(condition, groups: str) -> None:
    assert smallest(strategies.problems(), condition).name == groups


@UNHURRIED
@given(strategies.problems(tile_m=64, n_step=64, k_step=128, most_groups=3, most_m=200, least_m=1, most_work=8))
def test_problems_are_legal_for_the_tile(problem: Problem) -> None:
    assert 1 <= len(problem.groups) <= 6
    for group in problem.groups:
        assert 1 <= group.m <= 200
        assert group.n % 64 == group.k % 128 == 0
        assert group.l == 1
    assert parse_shape(problem.name.replace("+", ",")).groups == problem.groups


@pytest.mark.slow
def test_problems_are_awkward() -> None:
    """One group that is all of the work, many that are nearly nothing, equal prefix sums, rows around a tile."""
    drawn = strategies.problems()
    assert found(drawn, lambda p: len(p.groups) > 7 and max(g.m for g in p.groups) <= 2)
    assert found(drawn, lambda p: strategies.imbalance(p) >= 3 and sum(g.m > 0 for g in p.groups) >= 2)
    assert found(drawn, lambda p: [g.m for g in p.groups].count(0) >= 2)
    for rows in (0, 1, 127, 128, 129, 255, 256, 257, 383, 384):
        assert found(drawn, lambda p, rows=rows: any(g.m == rows for g in p.groups)), rows


def test_imbalance_is_counted_in_tiles() -> None:
    assert strategies.imbalance(parse_shape("128x128x256,100x128x256")) == 1
    assert strategies.imbalance(parse_shape("128x512x256,1x128x256,1x128x256,0x128x256")) == 4 * 4 / 6
    assert strategies.imbalance(parse_shape("0x128x256")) == 1


@settings(deadline=None, max_examples=20)
@given(strategies.problems())
def test_a_search_can_climb_to_imbalance(problem: Problem) -> None:
    strategies.target_imbalance(problem)


@UNHURRIED
@given(strategies.tiles(), strategies.tmem_requests(), strategies.segment_lists())
def test_tmem_is_drawn_legal(tile: MmaTile, request: PackingRequest, segments: tuple[Segment, ...]) -> None:
    assert columns(tile).total > 0
    assert request.orders >= 1
    assert len({segment.name for segment in segments}) == len(segments)


@pytest.mark.slow
def test_tiles_fit_and_do_not_fit() -> None:
    assert found(strategies.tiles(), lambda tile: columns(tile).allocation is None)
    assert found(strategies.tiles(), lambda tile: columns(tile).allocation == 256 and tile.ctas == 2)
    assert smallest(strategies.segment_lists(), lambda drawn: sum(s.columns for s in drawn) > 200)[0].align == 1


def test_profiles_have_names_of_their_own() -> None:
    before = settings.get_profile("ci")
    strategies.register()
    assert settings.get_profile("ci") is before
    for name, examples in (("dev", 20), ("ci", 50), ("thorough", 400)):
        profile = settings.get_profile(f"nvfp4-{name}")
        assert profile.max_examples == examples
        assert profile.derandomize is (name == "ci")


def test_no_property_of_these_tests_is_judged_by_its_time() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_what_hypothesis_takes_for_a_ci_server_makes_no_other_profile_repeatable() -> None:
    before = settings.get_current_profile_name()
    settings.load_profile("ci")
    try:
        assert settings().derandomize
        assert {name: profile.settings().derandomize for name, profile in PROFILES.items()} == {
            "dev": False,
            "ci": True,
            "thorough": False,
        }
    finally:
        settings.load_profile(before)


def test_more_registered_types_need_no_strategy() -> None:
    strategies.register()
    for drawn in (Problem, Group, MmaTile, Segment, PackingRequest):
        assert isinstance(found(st.from_type(drawn), lambda _: True), drawn)
