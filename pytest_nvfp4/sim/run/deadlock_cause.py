"""The cause of a deadlock: the wait, arrive, count or announcement that is wrong, not the first warp that suffers.

A warp that waits for a phase of an mbarrier depends on the warps that arrive there. The search looks for evidence that
a protocol is broken at one place, strongest first, and only then follows those dependencies:

1. A named barrier that is not complete, and that no further warp can reach.
2. Bytes: a phase whose arrivals are complete has more or fewer bytes than announced.
3. A parity that was accepted too early: a wait for data passed before the mbarrier's first phase was complete. A fresh
   mbarrier counts as if parity 1 were complete (PTX ISA, "mbarrier.test_wait", ``.parity``), which only who fills a
   stage may rely on. Likewise, a wait that passed twice for one phase of a ring.
4. A parity that skips a phase: a warp waits for phase k of an mbarrier, and phase k - 1 is complete and was never
   accepted by this warp, which has accepted earlier ones; or its first wait for data is for phase 1. If no warp has
   waited for the data of several phases, who fills the stage did not wait for it to be free; if none has waited for
   several phases without data, the count of the init is too small, or who arrives did not wait.
5. A phase with some arrivals, of which others are missing: the count of its init, or a warp that has ended.
6. A phase without arrivals: followed to the warps that arrived in earlier phases, or at mbarriers of the same init that
   no other line waits for.
   If that ends at a warp that has left its loop, it left early. If nothing ever arrived there, the arrive is missing;
   or, if its waiter fills stages and has never passed a wait at these mbarriers, its first parity is wrong; or, if
   another warp has passed several phases there and its waiter none, that one comes too late. If it does not end, as
   each warp waits for another, who waits to fill a stage that nobody has used yet has the wrong parity for that stage.

The last two are left out while a warp waits for registers or TMEM, or spins on memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.source import place_of
from pytest_nvfp4.sim.run.warp import Group, Meeting, Warp
from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier, MbarrierFile, actor_name
from pytest_nvfp4.sim.sync.mbarrier_ops import AnyOf
from pytest_nvfp4.sim.sync.named import NamedBarrier

_SYNCHRONISATION = (Mbarrier, AnyOf, NamedBarrier, ClusterBarrier, Meeting)
_BARRIERS = ("bar", "barrier")
_AHEAD = 400
"""Instructions after a wait that are searched for what the warp does next."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: the warp and instruction that are wrong, what is wrong, and what to do."""

    warp: Warp
    at: int
    text: str
    hint: str


def cause_of(blocked: Sequence[tuple[Warp, Group]], ctas: Iterable[Cta]) -> Cause | None:
    """Return the likeliest cause, or None if nothing but the waits themselves is known."""
    waits = [
        (warp, group, barrier)
        for warp, group in blocked
        for barrier in getattr(group.waiting, "barriers", (group.waiting,))
        if isinstance(barrier, Mbarrier)
    ]
    barriers = [
        barrier for cta in ctas if MbarrierFile in cta.units for barrier in cta.units[MbarrierFile].barriers.values()
    ]
    wrong = _unmet(blocked) or _bytes(waits, barriers) or _early(barriers) or _skipped(waits)
    # A warp that waits for registers or TMEM, or spins on memory, keeps others waiting: no arrive of theirs is missing.
    if wrong is not None or any(not isinstance(group.waiting, _SYNCHRONISATION) for _, group in blocked):
        return wrong
    return _partly(waits, barriers) or _missing(waits, barriers)


_Wait = tuple[Warp, Group, Mbarrier]


def _unmet(blocked: Sequence[tuple[Warp, Group]]) -> Cause | None:
    """Return a named barrier whose thread count nobody is left to meet.

    One without a thread count is complete when all other warps have ended, so that what keeps those is the cause.
    """
    ahead: dict[int, list[Instruction]] = {}
    for warp, group in blocked:
        barrier = group.waiting
        if not isinstance(barrier, NamedBarrier) or barrier.whole:
            continue
        others = [at for other, at in blocked if other.cta is warp.cta and at.waiting is not barrier]
        for other in others:
            if other.pc not in ahead:
                ahead[other.pc] = _ahead(warp, other.pc)
        if not any(_meets(ins, barrier.number) for other in others for ins in ahead[other.pc]):
            what = warp.cta.launch.kernel.instructions[group.pc]
            return Cause(
                warp, group.pc,
                f"{what.opcode} waits for {barrier.waiting_for()}, and no other warp of the CTA can reach the barrier",
                f"make its count, {barrier.expected} threads, that of all warps that execute it; or let the missing "
                "warps execute it, also where they leave early",
            )  # fmt: skip
    return None


def _ahead(warp: Warp, at: int) -> list[Instruction]:
    """Return the barrier instructions that lanes at a place may still execute."""
    kernel = warp.cta.launch.kernel
    flow, seen, todo, found = Flow(kernel), {at}, [at], []
    while todo:
        index = todo.pop()
        if index == flow.end:
            continue
        if kernel.instructions[index].root in _BARRIERS:
            found.append(kernel.instructions[index])
        new = [each for each in flow.successors(index) if each not in seen]
        seen.update(new)
        todo += new
    return found


def _meets(instruction: Instruction, number: int) -> bool:
    """Return whether a barrier instruction may be one of a named barrier."""
    if not {"warp", "cluster"}.isdisjoint(instruction.parts):
        return False
    operand = instruction.operands[1 if instruction.has("red") else 0]
    return not isinstance(operand, Immediate) or operand.value == number


def _bytes(waits: list[_Wait], barriers: list[Mbarrier]) -> Cause | None:
    """Return a wrong number of bytes, at the instruction that announces them, or at the copy if none does."""
    hint = "the bytes of expect_tx must equal those of all copies to this mbarrier in one phase"
    for _, _, barrier in waits:
        if not barrier.tx or not (barrier.arrived or not barrier.pending):
            continue
        # What one mbarrier lacks, another may have too much of.
        others = [each for each in barriers if each.cta is barrier.cta and each.tx * barrier.tx < 0]
        more = "".join(f"; the {each.name} is in {each.state()}" for each in others[:1])
        elsewhere = others[0].announcer if others and barrier.tx < 0 and not barrier.announced else None
        if (source := elsewhere or barrier.announcer or barrier.brought) is not None:
            text = f"{actor_name(source)} and the copies to the {barrier.name} disagree: {barrier.state()}{more}"
            if barrier.tx > 0 and len(barrier.cta.cluster.ctas) > 1:
                hint += "; or another CTA of the cluster, which waits itself, has not issued its copies yet"
            return Cause(*source, text, hint)
    return None


def _early(barriers: list[Mbarrier]) -> Cause | None:
    """Return a wait that passed although nothing had completed for it: too early, or twice for one phase."""
    for barrier in barriers:
        if barrier.fresh is not None and (barrier.loaded or barrier.announced):
            text = (
                f"{actor_name(barrier.fresh)} passed the {barrier.name} before its phase 0 was complete, by parity 1, "
                "and used a stage that was not yet filled"
            )
            hint = "who waits for data starts with parity 0; only who fills a stage starts with parity 1"
            return Cause(*barrier.fresh, text, hint)
    for barrier in barriers:
        # A barrier that is alone may be waited for in each iteration although it completes once.
        if barrier.repeated is not None and barrier.count == barrier.pending and len(_ring(barrier, barriers)) > 1:
            text = f"{actor_name(barrier.repeated)} passed the {barrier.name} twice for one phase"
            hint = "flip the parity each time that the stage index wraps"
            return Cause(*barrier.repeated, text, hint)
    return None


def _skipped(waits: list[_Wait]) -> Cause | None:
    """Return a wait whose parity skips a phase that is complete."""
    for warp, group, barrier in waits:
        passed = barrier.accepted.get(warp)
        if barrier.phase > 1 and barrier.loaded and not barrier.accepted:
            text = (
                f"{barrier.phase} phases of the {barrier.name} are complete before warp {warp.index} first waits: "
                f"{actor_name(next(iter(barrier.arrivers)))} has filled the stage again before it was read"
            )
            hint = "who fills a stage first waits for the mbarrier at which its readers free it"
            return Cause(warp, group.pc, text, hint)
        # What loads come to, and what a warp arrives at alone, no other warp can have left to it in a phase before.
        own = barrier.loaded or _warps(barrier.arrivers) | barrier.committers.keys() == {warp}
        first = passed is None and barrier.phase == 1 and own
        if first or (passed is not None and passed.phase < barrier.phase):
            text = (
                f"warp {warp.index} waits for phase {barrier.phase} (parity {barrier.phase & 1}) of the {barrier.name} "
                f"and has not waited for phase {barrier.phase - 1}, which is complete"
            )
            hint = (
                "who waits for data starts with parity 0, and flips the parity each time that the stage index wraps; "
                "or the mbarrier counts fewer arrivals than come, and completes too early"
            )
            return Cause(warp, group.pc, text, hint)
    for warp, group, barrier in waits:
        if barrier.phase > 1 and not barrier.accepted:
            text = (
                f"{barrier.phase} phases of the {barrier.name} are complete before warp {warp.index} first waits, the "
                f"last one by {actor_name(barrier.recent[-1].who)}, and no warp has waited for any of them"
            )
            hint = (
                "make the count of its init the number of arrivals of one phase; or let who arrives first wait until "
                "the phase before has been waited for"
            )
            return Cause(warp, group.pc, text, hint)
    return None


def _partly(waits: list[_Wait], barriers: list[Mbarrier]) -> Cause | None:
    """Return a phase of which some arrivals are missing and nothing that waits could add them."""
    waiting = {warp for warp, _, _ in waits}
    for warp, group, barrier in waits:
        if not 0 < barrier.pending < barrier.count:
            continue
        now = _come(barrier)
        come = _warps(now)
        # A stage that is visited for the first time lacks warps that have arrived at other stages only.
        ring = [who for each in _ring(barrier, barriers) if each is not barrier for who in each.arrivers]
        absent = [who for who in barrier.arrivers if who not in now and not isinstance(who, str)]
        absent += [who for who in ring if not isinstance(who, str) and who[0] not in come]
        if any(who[0] in waiting for who in absent):
            continue
        came = "; ".join(actor_name(who) for who in now)
        got = f"{barrier.count - barrier.pending} of {barrier.count} arrivals of phase {barrier.phase} came, by {came}"
        if absent:
            left, at = absent[0]
            text = f"{actor_name(absent[0])} does not arrive in phase {barrier.phase} of the {barrier.name}; {got}"
            return Cause(left, at, text, "all warps that arrive must execute equally many iterations")
        return Cause(
            warp, group.pc, f"the {barrier.name} never completes: {got}",
            "make the count of its init the number of arrivals of one phase, or add the missing arrive",
        )  # fmt: skip
    return None


def _missing(waits: list[_Wait], barriers: list[Mbarrier]) -> Cause | None:
    """Return a phase that nothing arrives at, where the dependencies of the waits end."""
    by_warp = {warp: (group, barrier) for warp, group, barrier in waits}
    waiting: dict[Mbarrier, set[Warp]] = {}
    for warp, _, barrier in waits:
        waiting.setdefault(barrier, set()).add(warp)
    stages = _Stages(waits, barriers)
    needs = {warp: _arrivers(barrier, stages, waiting[barrier]) for warp, _, barrier in waits}
    depending = {warp: _reached(warp, needs) for warp in needs}
    ends = []
    for warp, (group, barrier) in by_warp.items():
        left = any(other not in by_warp for other in needs[warp])
        if left or not needs[warp]:
            # The end of the chain that most warps depend on; then one whose arriver has left; then who fills stages for
            # the first time, and who does not. Who has filled stages already waits for those that read them.
            depends = sum(warp in others for others in depending.values())
            fills = _loads(warp, group.pc)
            again = any(warp in each.accepted for each in _ring(barrier, barriers))
            ends.append(((-depends, not left, 2 * again - 1 if fills else 0), warp))
    if not ends:
        unused = [
            wait for wait in waits if not wait[2].phase and not wait[2].arrivers and wait[0] not in wait[2].accepted
        ]
        return next((_unfilled(*wait) for wait in unused if _loads(wait[0], wait[1].pc)), None)
    for _, warp in ends:
        if (cause := _beside(warp, by_warp, barriers)) is not None:
            return cause
    warp = min(ends, key=lambda end: end[0])[1]
    group, barrier = by_warp[warp]
    ahead = [other for other, passed in barrier.accepted.items() if passed.phase == barrier.phase]
    if ahead and barrier.phase > 1 and warp not in barrier.accepted:
        return Cause(
            warp, group.pc,
            f"warp {warp.index} comes to the {barrier.name} when warp {ahead[0].index} has passed {barrier.phase} of "
            f"its phases: its wait for phase {barrier.phase & 1} is one for phase {barrier.phase}, of the same parity, "
            "at which nothing arrives",
            "a warp may come late by one phase only: let the warps meet, by <bar.sync>, once a phase, or let one of "
            "them wait and the others meet it",
        )  # fmt: skip
    have = by_warp.keys() | _warps(_come(barrier))
    gone = [who for each in stages.of(barrier) for who in each.arrivers if _has_left(who, have)]
    if gone:
        text = (
            f"{actor_name(gone[0])} has left its loop and does not arrive in phase {barrier.phase} of the "
            f"{barrier.name}, for which warp {warp.index} waits"
        )
        return Cause(warp, group.pc, text, "give both warps equally many iterations, and both the same order of stages")
    ring = _ring(barrier, barriers)
    if not any(warp in each.accepted for each in ring) and _loads(warp, group.pc):
        return _unfilled(warp, group, barrier)
    return Cause(
        warp, group.pc, f"no warp ever arrives at {_waited_for(warp, barrier)}",
        "an arrive or tcgen05.commit to it is missing, or goes to another mbarrier",
    )  # fmt: skip


def _unfilled(warp: Warp, group: Group, barrier: Mbarrier) -> Cause:
    """Return the wait of who fills a stage for the first time."""
    return Cause(
        warp, group.pc,
        f"nothing has arrived at {_waited_for(warp, barrier)} before it fills the stage for the first time",
        "who fills a stage starts with parity 1, which a fresh mbarrier passes",
    )  # fmt: skip


def _waited_for(warp: Warp, barrier: Mbarrier) -> str:
    return f"the {barrier.name}, where warp {warp.index} waits for phase {barrier.phase} (parity {barrier.phase & 1})"


def _beside(warp: Warp, waiting: Mapping[Warp, tuple[Group, Mbarrier]], barriers: list[Mbarrier]) -> Cause | None:
    """Return the wait of a reader for the mbarrier for which a warp waits that fills stages."""
    group, barrier = waiting[warp]
    beside = [
        other
        for other, (at, same) in waiting.items()
        if same is barrier and other is not warp and not _loads(other, at.pc)
    ]
    unclaimed = [each for each in barriers if each.cta is barrier.cta and each.loaded > each.seen]
    if not beside or not unclaimed or not _loads(warp, group.pc):
        return None
    other = beside[0]
    text = (
        f"warp {other.index} waits for the {barrier.name}, as warp {warp.index} does, which fills stages; and "
        f"nothing waits for the data at the {unclaimed[0].name}"
    )
    return Cause(other, waiting[other][0].pc, text, "wait for the mbarrier at which the copies complete")


def _has_left(who: Actor, others: Set[Warp]) -> bool:
    return not isinstance(who, str) and who[0] not in others


class _Stages:
    """The mbarriers of one ring that play one role: full stages, empty ones, or the end of a loop.

    A loop may initialise all mbarriers of a kernel. Those of a role are waited for by the same lines of the source.
    """

    def __init__(self, waits: Sequence[_Wait], barriers: list[Mbarrier]) -> None:
        self._barriers = barriers
        self._places: dict[Mbarrier, set[str]] = {}
        """By mbarrier, the lines that wait for it, or have waited."""
        for warp, group, barrier in waits:
            self._add(barrier, warp, group.pc)
        for barrier in barriers:
            for warp, passed in barrier.accepted.items():
                self._add(barrier, warp, passed.at)

    def _add(self, barrier: Mbarrier, warp: Warp, at: int) -> None:
        instruction = warp.cta.launch.kernel.instructions[at]
        self._places.setdefault(barrier, set()).add(place_of(instruction))

    def of(self, barrier: Mbarrier) -> list[Mbarrier]:
        """Return the mbarriers of the ring of one that is waited for, without those that only other lines wait for."""
        places = self._places
        return [
            each
            for each in _ring(barrier, self._barriers)
            if each not in places or barrier not in places or places[each] & places[barrier]
        ]


def _arrivers(barrier: Mbarrier, stages: _Stages, waiting: Set[Warp]) -> set[Warp]:
    """Return the warps that arrived at an mbarrier in earlier phases and not in this one, or at those of the same init.

    CuTe DSL's pipelines initialise the mbarriers of full and of empty stages in one statement. Warps that wait for this
    one, where nothing has arrived, do not arrive there first: they arrived at the others.
    """
    come = _warps(_come(barrier))
    if own := (_warps(barrier.arrivers) | barrier.committers.keys()) - come:
        return own
    return _warps(who for each in stages.of(barrier) for who in each.arrivers) - waiting - come


def _come(barrier: Mbarrier) -> list[Actor]:
    """Return what has arrived in the current phase of an mbarrier."""
    return [record.who for record in barrier.recent if record.phase == barrier.phase]


def _warps(actors: Iterable[Actor]) -> set[Warp]:
    return {who[0] for who in actors if not isinstance(who, str)}


def _ring(barrier: Mbarrier, barriers: list[Mbarrier]) -> list[Mbarrier]:
    """Return the mbarriers of a CTA that one source line initialises with one count: the stages of one ring.

    A helper that makes all pipelines of a kernel is one line, too.
    """
    line = _line(barrier.made)
    alike = [each for each in barriers if each.cta is barrier.cta and each.count == barrier.count]
    return [each for each in alike if each is barrier or (line and _line(each.made) == line)]


def _line(made: Instruction | None) -> str:
    return place_of(made) if made is not None and made.location is not None else ""


def _reached(warp: Warp, needs: dict[Warp, set[Warp]]) -> set[Warp]:
    """Return all warps that a warp waits for, directly or not, and itself."""
    seen: set[Warp] = set()
    todo = [warp]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += needs.get(one, ())
    return seen


def _loads(warp: Warp, at: int) -> bool:
    """Return whether a warp announces data, or copies some to shared memory, between a wait and its next one."""
    for instruction in warp.cta.launch.kernel.instructions[at + 1 : at + 1 + _AHEAD]:
        if instruction.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
            return False
        if instruction.root in _BARRIERS and "warp" not in instruction.parts:
            return False
        if instruction.opcode.startswith(("mbarrier.arrive.expect_tx", "mbarrier.expect_tx")):
            return True
        spaces = [part for part in instruction.parts if part.startswith(("shared", "global"))]
        if instruction.root == "cp" and spaces and spaces[0].startswith("shared"):
            return True
    return False
