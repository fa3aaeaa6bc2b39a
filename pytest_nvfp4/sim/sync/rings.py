"""Rings of mbarriers: which barriers one statement uses in turn, as one recorded launch shows it.

A pipeline with S stages has a ring of S mbarriers for each direction (filled, released). A statement in its loop waits
for, arrives at, copies to or commits to another barrier of the ring in each iteration. So two barriers of a CTA are in
one ring if one instruction of one warp operates on both. A barrier that no operation reached joins the ring that
precedes it in memory, if the same statement initialised both with equal arrival counts: the launch had fewer
iterations than stages. A barrier with no ring is a ring of one stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.sync.barrier_log import BarrierEvent, BarrierLog

_LINKS = frozenset({"wait", "arrive", "expect", "copy", "commit"})
"""Operations whose instruction goes round a ring."""


@dataclass(frozen=True, slots=True)
class RingUser:
    """An instruction that operates on a ring.

    Attributes:
        kind: ``wait``, ``arrive``, ``expect``, ``copy`` or ``commit``.
        cta, warp, at: Linear index of the CTA, number of the warp, index of the instruction in the kernel.
        line: The user's line of the instruction, if known.
        times: Number of operations; successful ones for a wait.
        first: Amount of its first operation: of a wait the parity (-1 for a wait on a state), otherwise arrivals or
            bytes.
    """

    kind: str
    cta: int
    warp: int
    at: int
    line: Location | None
    times: int
    first: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Mbarriers of one CTA that serve the stages of one pipeline in turn.

    Attributes:
        cta: Linear index of the CTA whose shared memory holds them.
        barriers: Byte indices in that shared memory, in stage order: the order of first use.
        made: The instruction that initialised the first; None if the log has no initialisation.
        count: Arrivals that complete a phase.
        phases: Completed phases of each stage.
        arrivals: Most arrivals in a completed phase.
        bytes: Most bytes that copies delivered in a completed phase.
        users: The instructions that operate on it, in order of first use.
    """

    cta: int
    barriers: tuple[int, ...]
    made: Instruction | None
    count: int
    phases: tuple[int, ...]
    arrivals: int
    bytes: int
    users: tuple[RingUser, ...]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.barriers)

    @property
    def refills(self) -> int:
        """Number of times that every stage completed a phase after its first one; -1 if a stage completed none."""
        return min(self.phases) - 1

    @property
    def iterations(self) -> int:
        """Number of completed phases of all stages."""
        return sum(self.phases)

    @property
    def waiters(self) -> tuple[RingUser, ...]:
        """The instructions that wait for it."""
        return tuple(user for user in self.users if user.kind == "wait")


def rings(log: BarrierLog) -> list[Ring]:
    """Return the rings of each CTA of a recorded launch, by CTA and first use."""
    instructions = log.grid.kernel.instructions
    found: list[Ring] = []
    by_cta: dict[int, list[BarrierEvent]] = {}
    for event in log.events:
        by_cta.setdefault(event.cta, []).append(event)
    for cta in sorted(by_cta):
        events = by_cta[cta]
        found += [_ring(cta, members, events, instructions) for members in _groups(events, instructions)]
    return found


def _groups(events: Iterable[BarrierEvent], instructions: Sequence[Instruction]) -> list[list[int]]:
    """Return the barriers of each ring in stage order, the rings in order of first use, then of address."""
    root: dict[int, int] = {}
    first_of: dict[tuple[str, int, int, int], int] = {}
    used: dict[int, None] = {}  # an ordered set
    made: dict[int, BarrierEvent] = {}

    def find(barrier: int) -> int:
        while root[barrier] != barrier:
            barrier = root[barrier]
        return barrier

    for event in events:
        root.setdefault(event.barrier, event.barrier)
        if event.kind == "init":
            made[event.barrier] = event
        elif event.kind in _LINKS and event.warp >= 0:
            used.setdefault(event.barrier)
            key = event.kind, event.by, event.warp, event.at
            root[find(event.barrier)] = find(first_of.setdefault(key, event.barrier))
        else:
            used.setdefault(event.barrier)
    addresses = sorted(root)
    for before, barrier in pairwise(addresses):
        if barrier not in used and _same_array(made.get(before), made.get(barrier), instructions):
            root[find(barrier)] = find(before)
    members: dict[int, list[int]] = {}
    for barrier in [*used, *(address for address in addresses if address not in used)]:
        members.setdefault(find(barrier), []).append(barrier)
    return list(members.values())


def _same_array(
    before: BarrierEvent | None, event: BarrierEvent | None, instructions: Sequence[Instruction]
) -> bool:  # fmt: skip
    """Return whether one statement initialised both barriers, for equal numbers of arrivals."""
    if before is None or event is None or before.amount != event.amount or before.warp != event.warp:
        return False
    if before.at == event.at:
        return True
    one, two = (_location(instructions, made.at) for made in (before, event))
    return one is not None and two is not None and (one.file, one.line) == (two.file, two.line)


def _ring(cta: int, barriers: list[int], events: Iterable[BarrierEvent], instructions: Sequence[Instruction]) -> Ring:
    members = set(barriers)
    made: BarrierEvent | None = None
    phases = dict.fromkeys(barriers, 0)
    current: dict[int, int] = dict.fromkeys(barriers, 0)
    arrivals = most_bytes = 0
    users: dict[tuple[str, int, int, int], list[int]] = {}
    for event in events:
        if event.barrier not in members:
            continue
        if event.kind == "init":
            if made is None or event.barrier == barriers[0]:
                made = event
        elif event.kind == "complete":
            phases[event.barrier] += 1
            arrivals = max(arrivals, current[event.barrier])
            most_bytes = max(most_bytes, event.amount)
            current[event.barrier] = 0
        elif event.kind == "arrive":
            current[event.barrier] += event.amount
        if event.kind in _LINKS and event.warp >= 0:
            users.setdefault((event.kind, event.by, event.warp, event.at), []).append(event.amount)
    return Ring(
        cta=cta,
        barriers=tuple(barriers),
        made=None if made is None or made.at < 0 else instructions[made.at],
        count=0 if made is None else made.amount,
        phases=tuple(phases.values()),
        arrivals=arrivals,
        bytes=most_bytes,
        users=tuple(
            RingUser(kind, by, warp, at, _location(instructions, at), len(amounts), amounts[0])
            for (kind, by, warp, at), amounts in users.items()
        ),
    )


def _location(instructions: Sequence[Instruction], at: int) -> Location | None:
    return instructions[at].location if 0 <= at < len(instructions) else None
