"""Timelines as native Perfetto traces (``.pftrace``), for https://ui.perfetto.dev.

A process of the trace is an SM or a CTA, its threads are tracks: a warp, a unit, a ring of phases. Slices of one track
that overlap without one containing the other, such as copies in flight, are put on as many rows of that track as they
need, because a row of Perfetto holds a stack. ``perfetto`` (package, with protobuf) writes the format; it is an
optional dependency, and `TimelineUnavailableError` says how to get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

_SEQUENCE = 1
"""All packets are of one writer."""


class TimelineUnavailableError(RuntimeError):
    """The package ``perfetto`` is not installed."""

    def __init__(self) -> None:
        super().__init__("a timeline needs the package perfetto: pip install 'pytest-nvfp4[timeline]'")


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time on a track.

    Attributes:
        process: Name of the process, such as ``SM 3``.
        track: Name of the track, such as ``warp 4 mma``.
        name: What happens.
        begin_ns, end_ns: Time since the start, in ns.
        details: Values that the viewer shows for the slice.
        flows: Numbers of arrows; slices with one number are joined in the order of their begins.
    """

    process: str
    track: str
    name: str
    begin_ns: float
    end_ns: float
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    flows: tuple[int, ...] = ()


def perfetto_trace(slices: Iterable[Slice], *, title: str) -> bytes:
    """Return slices as a Perfetto trace.

    Processes and tracks appear in the order of their first slice.

    Args:
        slices: The slices, in any order of time.
        title: Name of the whole, which says what its times are; it is the name of an outer track.

    Raises:
        TimelineUnavailableError: The package is not installed.
        ValueError: A slice ends before it begins.
    """
    try:
        format_of = import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ImportError as error:
        raise TimelineUnavailableError from error
    writer = _Writer(format_of)
    root = writer.track(title)
    tracks: dict[str, dict[str, list[Slice]]] = {}
    for piece in slices:
        if piece.end_ns < piece.begin_ns:
            raise ValueError(f"the slice {piece.name!r} of {piece.track!r} ends before it begins")
        tracks.setdefault(piece.process, {}).setdefault(piece.track, []).append(piece)
    for process, own in tracks.items():
        parent = writer.track(process, root)
        for name, pieces in own.items():
            for number, row in enumerate(rows(pieces)):
                writer.row(writer.track(name if not number else f"{name} ({number + 1})", parent), row)
    data: bytes = writer.trace.SerializeToString()
    return data


def rows(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Return slices by rows, such that two slices of a row either do not overlap or one contains the other."""
    found: list[list[Slice]] = []
    open_until: list[list[float]] = []
    for piece in sorted(slices, key=lambda piece: (piece.begin_ns, -piece.end_ns)):
        for row, ends in zip(found, open_until, strict=True):
            while ends and ends[-1] <= piece.begin_ns:
                ends.pop()
            if not ends or piece.end_ns <= ends[-1]:
                row.append(piece)
                ends.append(piece.end_ns)
                break
        else:
            found.append([piece])
            open_until.append([piece.end_ns])
    return found


class _Writer:
    """Packets of a trace; the module of ``perfetto`` with the format is generated and has no types."""

    def __init__(self, format_of: Any) -> None:
        self.trace = format_of.Trace()
        self._event = format_of.TrackEvent
        self._tracks = 0

    def track(self, name: str, parent: int | None = None) -> int:
        """Add a track, and return its identity; tracks of one parent are shown in the order they are added."""
        self._tracks += 1
        packet = self._packet()
        packet.track_descriptor.uuid = self._tracks
        packet.track_descriptor.name = name
        packet.track_descriptor.sibling_order_rank = self._tracks
        packet.track_descriptor.child_ordering = packet.track_descriptor.EXPLICIT
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        return self._tracks

    def row(self, track: int, slices: Sequence[Slice]) -> None:
        """Add the slices of one row, which are ordered by their begin, an outer one before those that it contains."""
        stack: list[int] = []
        for piece in slices:
            begin, end = round(piece.begin_ns), round(piece.end_ns)
            while stack and stack[-1] <= begin:
                self._mark(track, stack.pop(), self._event.TYPE_SLICE_END)
            event = self._mark(track, begin, self._event.TYPE_SLICE_BEGIN)
            event.name = piece.name
            event.flow_ids.extend(piece.flows)
            for name, value in piece.details.items():
                note = event.debug_annotations.add()
                note.name = name
                if isinstance(value, str):
                    note.string_value = value
                elif isinstance(value, float):
                    note.double_value = value
                else:
                    note.int_value = value
            stack.append(end if not stack else min(end, stack[-1]))
        while stack:
            self._mark(track, stack.pop(), self._event.TYPE_SLICE_END)

    def _mark(self, track: int, at_ns: int, kind: int) -> Any:
        packet = self._packet()
        packet.timestamp = at_ns
        packet.track_event.track_uuid = track
        packet.track_event.type = kind
        return packet.track_event

    def _packet(self) -> Any:
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet
