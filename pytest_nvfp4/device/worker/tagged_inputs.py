"""Inputs of a problem whose contents are tags (``sim.provenance.tags``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.numerics.arrays import ceil_div
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.numerics.quantise import BLOCK
from pytest_nvfp4.sim.provenance.tags import Tags

_CELL = 64
"""Elements of k that the four scale factors of a tag cover; k must be a multiple of it."""


def tagged(inputs: Any) -> tuple[ProblemInput, Tags] | None:
    """Return inputs of the same sizes with tags as contents; None if they are no operands, or k no multiple of 64."""
    inputs = contract_of(inputs.problem).tagged(inputs)
    if inputs is None or any(group.group.k % _CELL for group in inputs.groups):
        return None
    # Batches are groups here, and have one C.
    tags = Tags(unit="group" if len(inputs.groups) == len(inputs.problem.groups) else "batch")
    groups = tuple(_group(tags, index, group) for index, group in enumerate(inputs.groups))
    return replace(inputs, groups=groups), tags


def _group(tags: Tags, index: int, group: GroupInput) -> GroupInput:
    sizes = group.group
    a = tags.add("A", index, rows=sizes.m, k=sizes.k)
    b = tags.add("B", index, rows=sizes.n, k=sizes.k)
    sfa = _scales(tags, "SFA", index, rows=sizes.m, k=sizes.k)
    sfb = _scales(tags, "SFB", index, rows=sizes.n, k=sizes.k)
    return replace(
        group,
        a=a,
        b=b,
        sfa=np.ascontiguousarray(sfa[: sizes.m, : sizes.k // BLOCK]),
        sfb=np.ascontiguousarray(sfb[: sizes.n, : sizes.k // BLOCK]),
        sfa_reordered=scale_layout.reorder(sfa),
        sfb_reordered=scale_layout.reorder(sfb),
    )


def _scales(tags: Tags, name: str, index: int, *, rows: int, k: int) -> NDArray[np.uint8]:
    """Return tagged scale factors with their padding, plain."""
    padded = ceil_div(rows, scale_layout.ROWS) * scale_layout.ROWS
    return tags.add(name, index, rows=rows, k=k, padded_rows=padded)
