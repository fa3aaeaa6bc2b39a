"""The order in which a worker calls a kernel: not the order it was asked in, and not once each.

A kernel that remembers answers by shape, by pointer or by the number of calls meets the same shapes with other
inputs, in the same memory and in other memory, in an order and a number it cannot know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pytest_nvfp4.device.job import Case


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the kernel.

    Attributes:
        case: Index of the case.
        reuse: Index of an earlier call whose memory is filled anew for this one; None for new memory.
        reported: The case's own call, whose output is the case's; the others are judged too.
    """

    case: int
    reuse: int | None
    reported: bool


def make_plan(cases: tuple[Case, ...], seed: int) -> list[Call]:
    """Every case once or twice, shuffled; half of the calls reuse the memory of an earlier call of equal sizes."""
    draw = random.Random(seed)
    order = list(range(len(cases))) + [index for index in range(len(cases)) if draw.random() < 0.5]
    draw.shuffle(order)
    plan: list[Call] = []
    owners: dict[tuple[tuple[int, int, int, int], ...], list[int]] = {}
    seen: set[int] = set()
    for position, case in enumerate(order):
        same = owners.setdefault(cases[case].problem.sizes, [])
        reuse = draw.choice(same) if same and draw.random() < 0.5 else None
        if reuse is None:
            same.append(position)
        plan.append(Call(case, reuse, case not in seen))
        seen.add(case)
    return plan
