"""The protocol of a kernel's rings, fitted to recorded launches.

Streams of one *clock* have equal numbers of uses, up to a constant, in every recording: the clock of the k-tiles, that
of the output tiles where a CTA computes several, and that of what happens once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_nvfp4.proof.pipeline.order import Order, order_of
from pytest_nvfp4.proof.pipeline.recording import Array, Event, Recording, Role, align
from pytest_nvfp4.proof.pipeline.rings import Part, Ring, find_rings
from pytest_nvfp4.proof.pipeline.streams import Action, Stream, barrier_streams, signal_of


@dataclass(frozen=True)
class Protocol:
    """Streams and rings of a kernel.

    Attributes:
        recordings: All recordings.
        fitted: Those that the streams describe: of launches that ran to their end, if there is one.
        streams: Waits and signals of all warps, then the fills and reads of the rings.
        rings: The rings.
        dropped: Waits and signals that are left out, to make the protocol wrong.
    """

    recordings: tuple[Recording, ...]
    fitted: tuple[Recording, ...]
    streams: tuple[Stream, ...]
    rings: tuple[Ring, ...]
    dropped: tuple[Stream, ...] = ()

    def without(self, dropped: Iterable[Stream]) -> Protocol:
        """Return the protocol without some waits or signals."""
        gone = tuple(dropped)
        kept = tuple(stream for stream in self.streams if stream not in gone)
        return replace(self, streams=kept, dropped=gone)

    def leaves_out(self, role: Role, event: Event) -> bool:
        """Return whether an event belongs to a stream that is left out."""
        return any(
            role == stream.role
            and event.array == stream.array
            and signal_of(event) == ("wait" if stream.is_wait else stream.completion)
            for stream in self.dropped
        )

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of all rings."""
        return [part for ring in self.rings for part in ring.parts]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Arrays of barriers."""
        return self.fitted[0].arrays

    @cached_property
    def longest(self) -> Recording:
        """The longest recording."""
        return max(self.fitted, key=lambda recording: recording.length)

    def clock(self, base: Stream) -> list[Stream]:
        """Return the streams whose numbers of uses differ from a stream's by a constant, that stream first."""
        others = [stream for stream in self.streams if stream is not base and _lag(base, stream) is not None]
        return [base, *others]

    def where(self, stream: Stream) -> str:
        """Return the line of a stream and its warp."""
        return f"{self.longest.place(stream.at)} ({self.longest.name(stream.role)})"

    def ring_name(self, ring: Ring) -> str:
        """Return the name of a ring: what it holds and the line that initialises its barriers."""
        array = self.arrays[ring.array]
        where = f" of CTA rank {array.cta}" if self.longest.cluster > 1 else ""
        stages = sorted({part.stages for part in ring.parts})
        return (
            f"the ring of {' and '.join(map(str, stages))} stages{where} whose full barriers line {array.line} "
            "initialises"
        )

    def linked(self, ring: Ring) -> set[int]:
        """Return the arrays that warps wait for before they fill or read a ring, and the ring's own."""
        roles = {part.fill.role for part in ring.parts}
        lengths = {part.fill.counts for part in ring.parts}
        found = {ring.array}
        for stream in self.streams:
            if stream.action is Action.WAIT and stream.role in roles and stream.counts in lengths:
                found.add(stream.array)
        return found


def lag(base: Stream, stream: Stream) -> int:
    """Return how many more uses a stream of the same clock has."""
    found = _lag(base, stream)
    assert found is not None
    return found


def _lag(base: Stream, stream: Stream) -> int | None:
    differences = {
        theirs - own for own, theirs in zip(base.counts, stream.counts, strict=True) if own or theirs
    }  # fmt: skip
    return differences.pop() if len(differences) == 1 else None


def fit(recordings: Sequence[Recording]) -> Protocol:
    """Return the protocol that recordings of one kernel show. What does not fit has a `problem`."""
    recordings = align(recordings)
    fitting = [recording for recording in recordings if recording.complete] or recordings
    arrays = recordings[0].arrays
    barriers = barrier_streams(fitting, arrays)
    rings = find_rings(fitting, arrays, barriers)
    memory = [stream for ring in rings for part in ring.parts for stream in (part.fill, *part.reads)]
    return Protocol(tuple(recordings), tuple(fitting), (*barriers, *memory), tuple(rings))


def unsettled(streams: Sequence[Stream], order: Order) -> str:
    """Return which program order still changes with the longest recording; empty if none does."""
    longest = max(range(len(streams[0].runs)), key=lambda index: len(streams[0].runs[index]))
    lengths = sorted({len(run) for run in streams[0].runs})
    if len(lengths) < 2:
        return "all recordings have equal numbers of iterations"
    shorter = [
        replace(stream, runs=tuple(run for run in stream.runs if len(run) < len(stream.runs[longest])))
        for stream in streams
    ]
    if any(len({len(stream.runs) for stream in shorter}) != 1 for _ in (0,)):
        return "the streams of one clock have different numbers of uses"
    before = order_of(shorter)
    for key, edge in order.edges.items():
        old = before.edges.get(key)
        if old is None or old.weight != edge.weight:
            one, other = streams[edge.source.stream], streams[edge.target.stream]
            return (
                f"the order of what warp {one.role.warp} {one.action} and what warp {other.role.warp} {other.action} "
                f"still changes between {lengths[-2]} and {lengths[-1]} uses"
            )
    return ""


def part_problem(protocol: Protocol, part: Part) -> str:
    """Return why a part of a ring cannot be described for all numbers of uses; empty if it can."""
    if part.problem:
        return part.problem
    for read in part.reads:
        if _lag(part.fill, read) is None:
            return (
                f"{protocol.where(part.fill)} fills {part.fill.counts} stages in the recordings and "
                f"{protocol.where(read)} reads {read.counts}; they are not one for one"
            )
    return ""
