"""No deadlock: every wait gets its phase, and no warp waits for itself around a circle.

The waits and signals of a clock need an order in which each comes after what it needs: those before it in its warp, and
for a wait the signals of its phase. Such an order exists if every circle of needs gains at least one use; potentials of
the streams show that (use n of stream s is at K * n + potential of s). What happens once, before or after the loop, is
ordered by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter

from pytest_nvfp4.proof.pipeline.chains import FIRST, Question, Uses
from pytest_nvfp4.proof.pipeline.order import Point, signalled
from pytest_nvfp4.proof.pipeline.protocol import Protocol
from pytest_nvfp4.proof.pipeline.statements import RingModel, phases
from pytest_nvfp4.proof.pipeline.streams import Action, Stream
from pytest_nvfp4.proof.solver import Z3, Obligation


def _barriers(streams: Sequence[Stream]) -> list[int]:
    return [number for number, stream in enumerate(streams) if stream.action in (Action.WAIT, Action.SIGNAL)]


def other_clocks(protocol: Protocol, model: RingModel) -> str:
    """Return why the waits outside the ring's clock are not followed; empty if their number is constant."""
    for stream in protocol.streams:
        if stream.action not in (Action.WAIT, Action.SIGNAL) or any(stream is each for each in model.streams):
            continue
        if stream.problem or len(set(stream.counts)) > 1:
            why = stream.problem or f"it is executed {stream.counts} times in the recordings"
            return (
                f"{protocol.where(stream)} {stream.action} a barrier that is not in step with the ring, and deadlocks "
                f"across rings are not decided: {why}"
            )
    return _once(protocol, model)


def _once(protocol: Protocol, model: RingModel) -> str:
    """Return why what happens a constant number of times may wait in a circle; empty if it cannot."""
    run = max(range(len(protocol.fitted)), key=lambda index: protocol.fitted[index].length)
    graph: TopologicalSorter[object] = TopologicalSorter()
    loops = {number: stream for number, stream in enumerate(model.streams) if stream.runs[run]}
    others = [
        stream
        for stream in protocol.streams
        if stream.action in (Action.WAIT, Action.SIGNAL) and not any(stream is each for each in model.streams)
    ]
    for role in {stream.role for stream in others}:
        mine = [stream.runs[run] for stream in loops.values() if stream.role == role]
        begin = min((uses[0].first for uses in mine), default=None)
        end = max((uses[-1].last for uses in mine), default=None)
        events = _events(others, role, run)
        before: object = None
        looped = begin is None
        for position, node in events:
            if begin is not None and end is not None and begin < position < end:
                return f"{protocol.longest.name(role)} passes a barrier once, within the loop"
            if not looped and begin is not None and position > begin:
                graph.add("loop", *([before] if before is not None else []))
                before, looped = "loop", True
            graph.add(node, *([before] if before is not None else []))
            before = node
        if not looped:
            graph.add("loop", *([before] if before is not None else []))
    for wait in others:
        if wait.action is not Action.WAIT:
            continue
        for signal in others:
            if signal.action is not Action.SIGNAL or signal.array != wait.array:
                continue
            if signal.problem:
                return signal.problem
            for number in range(len(wait.runs[run])):
                needed = signalled(wait, signal, number)
                if needed >= len(signal.runs[run]):
                    return f"{protocol.where(wait)} waits for a phase that {protocol.where(signal)} does not signal"
                if needed >= 0:
                    graph.add((id(wait), number), (id(signal), needed))
    try:
        graph.prepare()
    except CycleError:
        return "what the warps wait for once is circular"
    return ""


def _events(streams: Sequence[Stream], role: object, run: int) -> list[tuple[int, object]]:
    """Return the uses of a warp's streams as nodes, in program order."""
    found: list[tuple[int, object]] = [
        (use.first, (id(stream), number))
        for stream in streams
        if stream.role == role
        for number, use in enumerate(stream.runs[run])
    ]
    return sorted(found, key=lambda each: each[0])


def progress(z3: Z3, model: RingModel) -> Iterator[Question]:
    """Yield the obligations that every wait of the ring's clock gets its phase, and that the needs are not circular."""
    uses = Uses(z3, model.order)
    streams = model.streams
    j = z3.Int("j")
    yield from phases(uses, model)
    numbers = _barriers(streams)
    for wait in numbers:
        if streams[wait].action is not Action.WAIT:
            continue
        for signal in numbers:
            if streams[signal].action is not Action.SIGNAL or streams[signal].array != streams[wait].array:
                continue
            given = {"the wait exists": uses.exists(wait, j), "N >= 0": uses.n >= 0}
            given["it waits for a phase"] = uses.round_of(wait, j) >= 0
            text = f"{model.title(streams[wait])} waits for arrivals that {model.title(streams[signal])} makes"
            shown = {"N": uses.n, "wait": j}
            made = Obligation(text, given, uses.exists(signal, uses.signal_for(wait, signal, j)), shown)
            shape = ("made", uses.shape(Point(wait, FIRST)), uses.shape(Point(signal, FIRST)))
            yield Question(shape, partial(_same, made))
    yield from _potentials(uses, model, numbers)


def _same(obligation: Obligation) -> Obligation:
    return obligation


def _potentials(uses: Uses, model: RingModel, numbers: Sequence[int]) -> Iterator[Question]:
    """Yield that each need has a lower place than what needs it, at potentials that are found here."""
    z3 = uses.z3
    needs = dict(_needs(model.streams, numbers))
    scale = len(numbers) + 1
    potential = dict.fromkeys(numbers, 0)
    for _ in numbers:
        for (earlier, later), gain in needs.items():
            potential[later] = max(potential[later], potential[earlier] + 1 - scale * gain)
    n, d = z3.Ints("n d")
    for (earlier, later), gain in needs.items():
        one, other = model.streams[earlier], model.streams[later]
        lower = scale * n + potential[earlier] < scale * (n + d) + potential[later]
        text = f"{model.title(one)} does not wait, around a circle, for {model.title(other)}"
        held = Obligation(text, {"gain": d >= gain}, lower, {"use": n, "distance": d})
        yield Question(("potential", gain, potential[later] - potential[earlier]), partial(_same, held))


def _needs(streams: Sequence[Stream], numbers: Sequence[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield pairs of streams (earlier, later) with the least distance from a use of the first to one that needs it."""
    found: dict[tuple[int, int], int] = {}
    for later in numbers:
        for earlier in numbers:
            one, other = streams[earlier], streams[later]
            gains: list[int] = []
            if one.role == other.role:
                for mine, theirs in zip(one.runs, other.runs, strict=True):
                    following = 0
                    for number, use in enumerate(mine):
                        while following < len(theirs) and theirs[following].first <= use.first:
                            following += 1
                        if following < len(theirs):
                            gains.append(following - number)
            signals = one.action is Action.SIGNAL and other.action is Action.WAIT and one.array == other.array
            if signals and one.stages == other.stages:
                gains += [use - signalled(other, one, use) for use in range(other.stages)]
            if gains:
                found[earlier, later] = min(gains)
    yield from found.items()
