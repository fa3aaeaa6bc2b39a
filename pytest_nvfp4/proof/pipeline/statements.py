"""The obligations of a ring: its stages are not overwritten before they are read, nor read before they are filled.

Both rest on the phases of the barriers on the way: a wait tests a parity, so it waits for the phase that it means only
if its barrier is in that phase or in the next one (PTX ISA, "mbarrier.test_wait"); and an arrival counts for the phase
that is current when it happens. The first wait that passes wrongly would need one of these obligations to fail before
it, so they may use the order that the waits give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from pytest_nvfp4.proof.pipeline.chains import DONE, FIRST, Question, Uses
from pytest_nvfp4.proof.pipeline.order import Order, Point, order_of
from pytest_nvfp4.proof.pipeline.protocol import Protocol, part_problem, unsettled
from pytest_nvfp4.proof.pipeline.rings import Ring
from pytest_nvfp4.proof.pipeline.streams import Action, Completion, Stream
from pytest_nvfp4.proof.solver import Z3, Obligation, Term


@dataclass(slots=True)
class RingModel:
    """A ring's streams in order, for the obligations of one statement.

    Attributes:
        problem: Why there is no model; empty if there is one.
    """

    protocol: Protocol
    ring: Ring
    streams: list[Stream]
    order: Order
    problem: str

    def place(self, stream: Stream) -> int:
        """Return the number of a stream."""
        return next(number for number, each in enumerate(self.streams) if each is stream)

    def title(self, stream: Stream) -> str:
        """Return the line of a stream."""
        return self.protocol.where(stream)


def model_of(protocol: Protocol, ring: Ring) -> RingModel:
    """Return the model of a ring."""
    base = ring.parts[0].fill
    streams = protocol.clock(base)
    order = order_of(streams)
    problem = next((text for part in ring.parts if (text := part_problem(protocol, part))), "")
    outside = [part.fill for part in ring.parts if not any(part.fill is stream for stream in streams)]
    if not problem and outside:
        problem = f"{protocol.where(outside[0])} does not fill as often as {protocol.where(base)}"
    problem = (
        problem or next((text for stream in streams if (text := stream.problem)), "") or _outsider(protocol, streams)
    )
    return RingModel(protocol, ring, streams, order, problem or unsettled(streams, order))


def _outsider(protocol: Protocol, streams: list[Stream]) -> str:
    """Return which warp uses the barriers of a clock's streams out of step with them; empty if none does."""
    barriers = (Action.WAIT, Action.SIGNAL)
    arrays = {stream.array for stream in streams if stream.action in barriers}
    for stream in protocol.streams:
        if stream.action in barriers and stream.array in arrays and not any(stream is each for each in streams):
            return (
                f"{protocol.where(stream)} {stream.action} a barrier of the ring {stream.counts} times in the "
                f"recordings, out of step with {protocol.where(streams[0])}: {streams[0].counts} times"
            )
    return ""


def overwritten(z3: Z3, model: RingModel) -> Iterator[Question]:
    """Return the obligations that every fill of a stage comes after the reads of what was there."""
    uses = Uses(z3, model.order)
    u, v = z3.Ints("u v")
    for part in model.ring.parts:
        fill = model.place(part.fill)
        for read in part.reads:
            reader = model.place(read)
            seen = _fill_of(read, u)
            given = {
                "the read exists": uses.exists(reader, u),
                "the fill exists": uses.exists(fill, v),
                "a later fill of the stage": z3.And(v > seen, (v - seen) % part.stages == 0),
            }
            name = f"{model.title(part.fill)} overwrites a stage after {model.title(read)} has read it"
            source, target = (Point(reader, DONE), u), (Point(fill, FIRST), v)
            yield _of("overwritten", uses.before(name, source, target, given, {"read": u, "fill": v}))
    yield from phases(uses, model)


def unfilled(z3: Z3, model: RingModel) -> Iterator[Question]:
    """Return the obligations that every read of a stage comes after the fill that it must see."""
    uses = Uses(z3, model.order)
    u = z3.Int("u")
    for part in model.ring.parts:
        fill = model.place(part.fill)
        for read in part.reads:
            reader = model.place(read)
            seen = _fill_of(read, u)
            given = {"the read exists": uses.exists(reader, u)}
            shown = {"read": u}
            name = f"{model.title(read)} reads a stage that {model.title(part.fill)} has filled"
            at_all = Obligation(f"{name} at all", given | {"N >= 0": uses.n >= 0}, uses.exists(fill, seen), shown)
            yield Question(("at all", reader, fill), partial(_same, at_all))
            source, target = (Point(fill, DONE), seen), (Point(reader, FIRST), u)
            yield _of("filled", uses.before(name, source, target, given, shown))
    yield from phases(uses, model)


def _same(obligation: Obligation) -> Obligation:
    return obligation


def _of(kind: str, question: Question) -> Question:
    """Return the question with a shape that includes its kind."""
    return Question((kind, question.shape), question.build)


def _fill_of(read: Stream, use: Term) -> Term:
    """Return the fill that a use of a read must see: of its stage, in the round of its use."""
    return use / read.stages * read.stages + (use + read.shift) % read.stages


def phases(uses: Uses, model: RingModel) -> Iterator[Question]:
    """Yield the obligations on the phases of the barriers that the streams of the clock wait for."""
    z3 = uses.z3
    j = z3.Int("j")
    streams = model.streams
    for wait, stream in enumerate(streams):
        if stream.action is not Action.WAIT:
            continue
        signals = [
            number for number, each in enumerate(streams) if each.action is Action.SIGNAL and each.array == stream.array
        ]
        exists, shown = uses.exists(wait, j), {"N": uses.n, "wait": j}
        start = {"the wait exists": exists, "N >= 0": uses.n >= 0}
        name = f"{model.title(stream)}: its barrier is"
        first = Obligation(
            f"{name} in phase 0 when it is waited for first",
            start | {"first round": j < stream.stages},
            z3.Or(uses.round_of(wait, j) == 0, uses.round_of(wait, j) == -1),
            shown,
        )
        yield Question(("first", uses.shape(Point(wait, FIRST))), partial(_same, first))
        if model.protocol.arrays[stream.array].named:
            continue
        arrivals = sum(max((run[0].number for run in streams[signal].runs if run), default=0) for signal in signals)
        count = model.protocol.arrays[stream.array].count
        text = f"{model.title(stream)}: {arrivals} arrivals are made for a phase that expects {count}"
        enough = Obligation(text, {"N >= 0": uses.n >= 0}, z3.IntVal(arrivals) == count)
        yield Question(("enough", arrivals == count), partial(_same, enough))
        yield _not_ahead(uses, model, wait, signals, name)
    for number, stream in enumerate(streams):
        if stream.action is Action.SIGNAL:
            yield from _not_early(uses, model, number)


def _not_ahead(uses: Uses, model: RingModel, wait: int, signals: Iterable[int], name: str) -> Question:
    """Return that the phase after the one waited for completes only behind the wait."""
    z3 = uses.z3
    j = z3.Int("j")
    stream = model.streams[wait]
    reached = [
        (weight, signal)
        for signal in signals
        if (weight := model.order.weight(Point(wait, FIRST), Point(signal, DONE))) is not None
    ]
    shown = {"wait": j}
    if not reached:
        given = {"the wait exists": uses.exists(wait, j), "N >= 0": uses.n >= 0}
        never = Obligation(f"{name} not a phase ahead of it", given, z3.BoolVal(val=False), shown)
        return Question(("ahead", wait), partial(_same, never))
    signal = min(reached)[1]
    after = uses.signal_for(wait, signal, j) + stream.stages
    given = {"the wait exists": uses.exists(wait, j), "the next phase completes": uses.exists(signal, after)}
    source, target = (Point(wait, FIRST), j), (Point(signal, DONE), after)
    return _of("ahead", uses.before(f"{name} not a phase ahead of it", source, target, given, shown))


def _not_early(uses: Uses, model: RingModel, signal: int) -> Iterator[Question]:
    """Yield that an arrival counts for its phase: the others of the phase before came earlier."""
    z3 = uses.z3
    k = z3.Int("k")
    stream = model.streams[signal]
    for other, each in enumerate(model.streams):
        if (
            other == signal
            or each.array != stream.array
            or each.action is not Action.SIGNAL
            or each.stages != stream.stages
        ):
            continue
        earlier = k - stream.stages
        # The use of the other stream at the same barrier, one round before.
        same = earlier / stream.stages * stream.stages + (earlier + stream.shift - each.shift) % stream.stages
        given = {
            "the arrival exists": z3.And(uses.exists(signal, k), k >= stream.stages),
            "the other exists": uses.exists(other, same),
        }
        name = f"{model.title(stream)} arrives in the phase behind that of {model.title(each)}"
        effect = FIRST if stream.completion is Completion.COPY else DONE
        shown = {"arrival": k}
        yield _of("early", uses.before(name, (Point(other, DONE), same), (Point(signal, effect), k), given, shown))
