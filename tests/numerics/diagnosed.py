"""Right and wrong results of a problem."""

from __future__ import annotations

from functools import cache

import numpy as np

from pytest_nvfp4.numerics import kernel_model
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.problem import Group, Problem

PROBLEM = Problem("diagnose", (Group(256, 256, 512, 1), Group(72, 384, 256, 1)), 7)


@cache
def inputs() -> ProblemInput:
    return family("gpumode").generate(PROBLEM)


def right(index: int = 0) -> np.ndarray:
    return inputs().groups[index].split_c(kernel_model.RIGHT(inputs(), index))[1].copy()


def scaled(sfa_rows: list[int], sfb_rows: list[int]) -> np.ndarray:
    """The result with the scale rows of A and B taken from other rows."""
    steps = kernel_model.RIGHT
    a, b = steps.elements_a(inputs().groups[0].a), steps.elements_b(inputs().groups[0].b)
    sfa, sfb = (steps.scales(inputs(), 0, operand) for operand in ("a", "b"))  # type: ignore[arg-type]
    a = (a.reshape(256, -1, 16) * sfa[sfa_rows][:, :, None]).reshape(256, -1)
    b = (b.reshape(256, -1, 16) * sfb[sfb_rows][:, :, None]).reshape(256, -1)
    return kernel_model.convert((a @ b.T).astype(np.float32))
