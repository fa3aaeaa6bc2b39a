"""The strategies that the package gives to its users, and their registration."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import hypothesis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import depth, rank, size
from pytest_nvfp4.layout.grammar import ComposedLayout, Dynamic, Layout, ScaledBasis, Swizzle
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.tree import leaves

UNHURRIED = settings(deadline=None)


def found(strategy, condition):
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
