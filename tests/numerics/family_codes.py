"""Codes that a family draws."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics.families import FAMILIES
from pytest_nvfp4.numerics.inputs import GroupInput
from pytest_nvfp4.numerics.packing import unpack


def codes_of(inputs: GroupInput) -> set[int]:
    return set(np.unique(unpack(inputs.a)).tolist()) | set(np.unique(unpack(inputs.b)).tolist())


def scales_of(inputs: GroupInput) -> set[int]:
    return set(np.unique(inputs.sfa).tolist()) | set(np.unique(inputs.sfb).tolist())


def probe(name: str) -> GroupInput:
    shapes = FAMILIES[name].shapes
    assert shapes is not None
    return FAMILIES[name].group(shapes, 0)
