"""Exact results made by hand, and verdicts on one value."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics import judge
from pytest_nvfp4.numerics.families import FAMILIES
from pytest_nvfp4.numerics.oracle import Exact
from pytest_nvfp4.problem import Group, Problem

PROBLEM = Problem("p", (Group(40, 128, 256),))


def made(units: object, *, magnitude: object = None, step: int = 1, k: int = 64, nan: bool = False) -> Exact:
    """An exact result given by hand, in units of 2^-20; by default with a sum of magnitudes of its own size."""
    c = np.atleast_2d(np.array(units, dtype=np.int64))
    sums = np.abs(c) if magnitude is None else np.broadcast_to(np.array(magnitude, np.int64), c.shape)
    return Exact(
        units=c,
        magnitudes=lambda: sums,
        step_a=np.full(c.shape[0], step),
        step_b=np.full(c.shape[1], step),
        nan_rows=np.full(c.shape[0], nan),
        nan_columns=np.full(c.shape[1], False),
        k=k,
    )


def family_case(name: str) -> tuple[Exact, np.ndarray]:
    exact = FAMILIES[name].group(PROBLEM, 0).exact()
    return exact, exact.rounded().view(np.uint16).copy()


def bits_for(exact: Exact, value: float) -> judge.GroupVerdict:
    return judge.judge(np.full(exact.shape, value, np.float16), exact)
