"""Made-up rounds and their verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.bench.regression import Policy, ShapeRounds, ShapeVerdict, compare
from pytest_nvfp4.bench.stats import Floats


def rounds(seed: int, *, factor: float = 1.0, sigma: float = 0.005, count: int = 60) -> tuple[float, ...]:
    """Return log-normal rounds around 20 us times a factor."""
    return tuple(20 * factor * np.random.default_rng(seed).lognormal(0, sigma, count))


def shape(
    name: str = "a", *, factor: float = 1.0, sigma: float = 0.005, count: int = 60, seed: int = 1, **more: Any
) -> ShapeRounds:
    """Return a shape whose current rounds are slower by a factor, without noise between sessions."""
    more = {"noise": 0.0, **more}
    return ShapeRounds(
        name,
        rounds(seed, sigma=sigma, count=count),
        rounds(seed + 1000, factor=factor, sigma=sigma, count=count),
        **more,
    )


def only(*shapes: ShapeRounds, **policy: Any) -> ShapeVerdict:
    """Return the verdict on a single shape."""
    verdict = compare(shapes, Policy(**policy))
    assert len(verdict.shapes) == 1
    return verdict.shapes[0]


def alternating(median: float, *, rounds: int, seed: int, step: float = 1.0) -> Floats:
    """Return rounds of which every second takes longer, as those of short kernels on an H200."""
    draw = np.random.default_rng(seed)
    return np.asarray(median + step * (np.arange(rounds) % 2) + draw.normal(0, 0.1, rounds))
