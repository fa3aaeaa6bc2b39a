"""Hypothesis strategies for tests of kernels: layouts, grouped problems, tiles and TMEM segments.

``register`` is the entry point ``nvfp4`` of the group ``hypothesis``: with it ``st.from_type(Layout)``,
``st.from_type(Problem)`` and the like work in every test suite that has this package installed.

A Hypothesis run is a *search* for a counterexample, never a proof that there is none.
"""

from __future__ import annotations

from pytest_nvfp4.strategies.layouts import (
    basis_layouts,
    compact_layouts,
    composed_layouts,
    dynamic_layouts,
    layouts,
    renested,
    shapes,
    swizzles,
)
from pytest_nvfp4.strategies.problems import groups, imbalance, problems, target_imbalance
from pytest_nvfp4.strategies.profiles import PROFILES
from pytest_nvfp4.strategies.tmem import segment_lists, segments, target_slack, tiles, tmem_requests

__all__ = [
    "basis_layouts",
    "compact_layouts",
    "composed_layouts",
    "dynamic_layouts",
    "groups",
    "imbalance",
    "layouts",
    "problems",
    "register",
    "renested",
    "segment_lists",
    "segments",
    "shapes",
    "swizzles",
    "target_imbalance",
    "target_slack",
    "tiles",
    "tmem_requests",
]


def register() -> None:
    """Register strategies and profiles; Hypothesis calls this when it is imported.

    The types are `Layout`, `Swizzle`, `ComposedLayout`, `Group`, `Problem`, and `MmaTile`, `Segment` and
    `PackingRequest` of tensor memory. The profiles are ``nvfp4-dev``, ``nvfp4-ci`` and ``nvfp4-thorough``; the prefix
    keeps them apart from the profiles of the suite that has this package installed.
    """
    import hypothesis
    from hypothesis import strategies as st

    from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
    from pytest_nvfp4.problem import Group, Problem
    from pytest_nvfp4.tmem.columns import MmaTile
    from pytest_nvfp4.tmem.packing import PackingRequest, Segment

    st.register_type_strategy(Layout, layouts())
    st.register_type_strategy(Swizzle, swizzles())
    st.register_type_strategy(ComposedLayout, composed_layouts())
    st.register_type_strategy(Group, groups())
    st.register_type_strategy(Problem, problems())
    st.register_type_strategy(MmaTile, tiles())
    st.register_type_strategy(Segment, segments())
    st.register_type_strategy(PackingRequest, tmem_requests())
    for profile in PROFILES.values():
        hypothesis.settings.register_profile(profile.hypothesis_name, profile.settings())
