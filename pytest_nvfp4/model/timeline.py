"""Modelled timelines: warps, units and barriers in the first SMs of each launch, as slices of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_nvfp4.model.barriers import PhaseSpan, Waiter
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay import Replay
from pytest_nvfp4.profiler.perfetto_trace import Slice

_WAIT, _WARPS, _BARRIER = "wait ", "warps: ", "barrier: "
_MOST_WAITERS = 16
"""Waits that a slice names."""


def slices_of(recordings: Sequence[Recording], replays: Sequence[Replay], *, sms: int) -> Iterator[Slice]:
    """Yield what warps, units and barriers do in the first SMs of each launch, for replays that kept their intervals.

    A track of warps is that of a role, ``warps: mma``; it holds their waits, too. A track of a barrier is named by who
    waits for it, ``barrier: mma at k.py:7 [0]``; a slice is a phase, from its first arrival to its completion.
    """
    for launch, (recording, done) in enumerate(zip(recordings, replays, strict=True)):
        roles = {warp.role for program in recording.programs for warp in program.warps}
        shown: dict[int, list[Slice]] = {}
        for what, sm, begin, end, site in done.intervals:
            if sm >= sms or end <= begin:
                continue
            track, name = what, what
            if what in roles:
                track, name = f"{_WARPS}{what}", "run"
            elif what.startswith(_WAIT):
                track, name = f"{_WARPS}{what.removeprefix(_WAIT)}", "wait"
            details: dict[str, str | int | float] = {"line": site} if site else {}
            if len(replays) > 1:
                details["launch"] = launch
            shown.setdefault(sm, []).append(Slice(f"SM {sm}", track, name, begin, end, details))
        for span in done.phases:
            if span.sm < sms:
                shown.setdefault(span.sm, []).append(_phase(span, launch if len(replays) > 1 else None))
        for sm in sorted(shown):
            yield from sorted(shown[sm], key=lambda piece: (_rank(piece), piece.track))


def _rank(piece: Slice) -> int:
    """Return the place of a track: warps, then units, then barriers."""
    return 0 if piece.track.startswith(_WARPS) else 2 if piece.track.startswith(_BARRIER) else 1


def _phase(span: PhaseSpan, launch: int | None) -> Slice:
    waiting = sum(each.end_ns > each.begin_ns for each in span.waiters)
    details: dict[str, str | int | float] = {
        "completed by": span.completed_by,
        "waiters": "; ".join(map(_waiter, span.waiters[:_MOST_WAITERS])),
        "warps that wait": waiting,
        "warps that pass at once": len(span.waiters) - waiting,
    }
    if launch is not None:
        details["launch"] = launch
    number = "" if span.barrier is None else f" [{span.barrier}]"
    track = f"{_BARRIER}{span.ring}{number}"
    return Slice(f"SM {span.sm}", track, f"phase {span.number}", span.begin_ns, span.end_ns, details)


def _waiter(each: Waiter) -> str:
    place = f"{each.role} at {each.source}" if each.source else each.role
    spent = each.end_ns - each.begin_ns
    return f"{place} for {spent:.0f} ns" if spent > 0 else f"{place}, complete before"
