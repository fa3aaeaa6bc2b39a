"""The calls of a verify job: every list of sizes is called again in each way that state kept between calls gets wrong.

The first call is on one small group, and before the first call with some number of groups there is a call with other
sizes and as many groups. These are not judged: they put the state of other sizes, or too little space, into whatever
the kernel keeps. Then, for each list of sizes, among calls with all of its inputs in an order and number that the
kernel cannot predict:

- one call is followed at once by a call in the same memory in which one row of A of each group differs;
- one call is in memory of its own, where the inputs begin at a storage offset, while the memory of an earlier call
  still holds that call's inputs and outputs;
- with ``side_stream``, one call more is between the caller's work on a stream of its own (``worker.side_stream``).

The worker makes the calls. The parent plans them again from the same seed, and so describes the call that it judges.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device.job import JobCase
from pytest_nvfp4.problem import Sizes

FIRST = "the first"
"""Beginning of the description of a first call."""
_REPEATED = 0.25
"""Share of the cases that are called once more, so that the number of calls cannot be predicted."""
_REUSED = 0.5
"""Share of the further calls that fill the memory of an earlier call again."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of the kernel.

    Attributes:
        case: Index of the case.
        reuse: Index of the earlier call of the same sizes whose memory is filled again for this one; None for new
            memory.
        changed: Whether one more row of A of each group differs (see ``rotation.verified_inputs``).
        offset: Whether the inputs begin at a storage offset, in new memory.
        other_sizes: Sizes of a call that is not judged, in place of those of the case; None for the sizes of the case.
        side_stream: Whether another stream than the default one is current, with the caller's work before and after.
    """

    case: int
    reuse: int | None = None
    changed: bool = False
    offset: bool = False
    other_sizes: Sizes | None = None
    side_stream: bool = False


def plan_calls(cases: Sequence[JobCase], seed: int, *, side_stream: bool = False) -> list[PlannedCall]:
    """Plan the calls of a job; ``seed`` determines what the kernel cannot predict."""
    draw = random.Random(seed)
    by_shape: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        by_shape.setdefault(case.problem.shape, []).append(index)
    taken = {case.problem.sizes for case in cases}
    waiting = [_Visits(indices, draw) for indices in by_shape.values()]
    plan: list[PlannedCall] = []
    primed: set[int] = set()
    while waiting:
        visits = draw.choice(waiting)
        problem = cases[visits.cases[0]].problem
        sizes = problem.sizes
        for groups in (len(sizes),) if primed else dict.fromkeys((1, len(sizes))):
            if groups not in primed:
                other = contract_of(problem.problem()).other_sizes(sizes, groups=groups, taken=taken)
                if other is not None:
                    plan.append(PlannedCall(visits.cases[0], other_sizes=other))
            primed.add(groups)
        plan += visits.next_calls(len(plan))
        if not visits.cases:
            waiting.remove(visits)
            if side_stream:
                plan.append(PlannedCall(plan[-1].case, side_stream=True))
    return plan


class _Visits:
    """The calls of one list of sizes, which the caller takes out one or two at a time.

    Attributes:
        cases: The cases that are still to be called, in order.
    """

    def __init__(self, indices: Sequence[int], draw: random.Random) -> None:
        self._draw = draw
        repeated = [index for index in indices if draw.random() < _REPEATED]
        self.cases = [*indices, *repeated]
        draw.shuffle(self.cases)
        if len(self.cases) == 1:
            self.cases *= 2  # the second is in other memory
        self._changed = draw.randrange(len(self.cases))
        self._moved = draw.randrange(1, len(self.cases))
        self._made = 0
        self._owners: list[int] = []

    def next_calls(self, position: int) -> list[PlannedCall]:
        """Return the next call, and the one with a changed row if that follows; ``position`` is the first one's."""
        number, self._made = self._made, self._made + 1
        case = self.cases.pop(0)
        moved = number == self._moved
        reuse = None
        if self._owners and not moved and self._draw.random() < _REUSED:
            reuse = self._draw.choice(self._owners)
        calls = [PlannedCall(case, reuse, offset=moved)]
        owner = position if reuse is None else reuse
        if reuse is None:
            self._owners.append(position)
        if number == self._changed:
            calls.append(PlannedCall(case, owner, changed=True))
        return calls


def last_use(plan: Sequence[PlannedCall], position: int) -> int | None:
    """Return the last call before ``position`` in the same memory; None if the call has new memory."""
    owner = plan[position].reuse
    if owner is None:
        return None
    return max(index for index in range(owner, position) if owner in (index, plan[index].reuse))


def describe(plan: Sequence[PlannedCall], position: int, cases: Sequence[JobCase]) -> str:
    """Return in what a call differs from the calls before it, for messages."""
    call = plan[position]
    shape = cases[call.case].problem.shape
    same = [
        index
        for index in range(position)
        if plan[index].other_sizes is None and cases[plan[index].case].problem.shape == shape
    ]
    if call.side_stream:
        return (
            "while a stream of the caller's is torch's current stream, which fills the inputs late and takes the "
            "outputs as soon as it may: launch on cuda.CUstream(torch.cuda.current_stream().cuda_stream)"
        )
    if not same:
        return f"{FIRST} of these sizes, after calls of other sizes: {position}" if position else f"{FIRST} call"
    if call.reuse is not None:
        contents = "one row of A of each group changed" if call.changed else "other contents"
        return f"same addresses as call {last_use(plan, position)}, {contents}"
    where = "inputs at a storage offset" if call.offset else "no storage offset"
    return f"same sizes as call {same[-1]}, other addresses, {where}"
