"""Layouts drawn at random."""

from __future__ import annotations

import random

from pytest_nvfp4.layout.grammar import Layout


def random_layout(rng: random.Random) -> Layout:
    sizes = [rng.choice([1, 2, 2, 3, 4, 4, 8]) for _ in range(rng.randint(1, 4))]
    strides, reach = [0] * len(sizes), 1
    for place in rng.sample(range(len(sizes)), len(sizes)):
        strides[place] = rng.choice([reach, reach, reach, 0, 2 * reach])
        reach = max(reach, strides[place] * sizes[place])
    if len(sizes) > 2:
        return Layout((tuple(sizes[:2]), *sizes[2:]), (tuple(strides[:2]), *strides[2:]))
    return Layout(tuple(sizes), tuple(strides))
