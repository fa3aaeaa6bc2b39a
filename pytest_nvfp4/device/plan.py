"""The order in which a worker calls a kernel: not the order it was asked in, and not once each.

A kernel that remembers answers by shape, by pointer or by the number of calls meets the same shapes with other
inputs, in the same memory and in other memory, in an order and a number it cannot know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pytest_nvfp4.device.job import JobCase


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of the kernel.

    Attributes:
        case: Index of the case.
        reuse: Index of an earlier call whose memory is filled anew for this one; None for new memory.
        visit: None for the case's own inputs; else one row of A of each group is changed, see ``rotation.inputs_at``.
    """

    case: int
    reuse: int | None
    visit: int | None = None


def plan_calls(cases: tuple[JobCase, ...], seed: int) -> list[PlannedCall]:
    """Every case once or twice, shuffled, and for each list of sizes one more with a single row changed.

    Half of the calls reuse the memory of an earlier call of equal sizes. The calls with a changed row come last: what
    they differ from has been seen.
    """
    draw = random.Random(seed)
    order = list(range(len(cases))) + [index for index in range(len(cases)) if draw.random() < 0.5]
    draw.shuffle(order)
    by_sizes: dict[tuple[tuple[int, int, int, int], ...], list[int]] = {}
    for index, case in enumerate(cases):
        by_sizes.setdefault(case.problem.sizes, []).append(index)
    varied = [draw.choice(indices) for indices in by_sizes.values()]
    plan: list[PlannedCall] = []
    owners: dict[tuple[tuple[int, int, int, int], ...], list[int]] = {}
    for position, case_index in enumerate([*order, *varied]):
        same = owners.setdefault(cases[case_index].problem.sizes, [])
        reuse = draw.choice(same) if same and draw.random() < 0.5 else None
        if reuse is None:
            same.append(position)
        plan.append(PlannedCall(case_index, reuse, None if position < len(order) else 0))
    return plan
