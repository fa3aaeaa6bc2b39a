"""Modelled timelines: what warps and units do in the first SMs of each launch, as slices of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay import Replay
from pytest_nvfp4.profiler.perfetto_trace import Slice

_WAIT, _WARPS = "wait ", "warps: "


def slices_of(recordings: Sequence[Recording], replays: Sequence[Replay], *, sms: int) -> Iterator[Slice]:
    """Yield what warps and units do in the first SMs of each launch, for replays that kept their intervals.

    A track of warps is that of a role, ``warps: mma``; it holds their waits, too.
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
        for sm in sorted(shown):
            yield from sorted(shown[sm], key=lambda piece: (not piece.track.startswith(_WARPS), piece.track))
