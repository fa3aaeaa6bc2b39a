"""Where the time goes: the critical path of a replayed launch, backwards from its last event.

What the last event waited for was released by a signal; the signal came from an operation, whose time is that of the
servers it queued at and of their latency; the operation was issued by a warp, which had waited for something before.
The parts of this path follow each other without gaps, so that they add up to the time of the kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_nvfp4.model.replay_machine import Machine
from pytest_nvfp4.model.replay_state import Cause, WarpRun
from pytest_nvfp4.model.replay_steps import DELAY, LOAD, RUN, STORE, TENSOR, WAIT

__all__ = ["Crossing", "Segment", "critical_path"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the critical path: ``us`` microseconds that the role spent, at a source line, waiting for a cause."""

    role: str
    site: str
    waits_for: str
    us: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """Waits on the critical path: the role waits ``count`` times at a source line, each time for what comes before."""

    role: str
    site: str
    count: int


def critical_path(machine: Machine) -> tuple[tuple[Segment, ...], tuple[Crossing, ...]]:
    """Return the critical path, summed by role, source line and cause, longest first; and the waits on it."""
    spent: dict[tuple[str, int, str], float] = defaultdict(float)
    crossed: Counter[tuple[str, str]] = Counter()
    sites = machine.recording.sites
    for role, site, cause, time in _backwards(machine):
        if cause == _CROSSES:
            crossed[role, sites[site].source] += 1
        else:
            spent[role, site, cause] += time
    by_line: dict[tuple[str, str, str], float] = defaultdict(float)
    for (role, site, cause), time in spent.items():
        by_line[role, sites[site].source if site >= 0 else "", cause] += time
    ranked = sorted(by_line.items(), key=lambda item: (-item[1], item[0]))
    segments = tuple(Segment(role, site, cause, time / 1e3) for (role, site, cause), time in ranked if time > 0)
    waits = sorted(crossed.items(), key=lambda item: (-item[1], item[0]))
    return segments, tuple(Crossing(role, site, count) for (role, site), count in waits if site)


_CROSSES = "wait"
"""Stands for the cause at a wait, which takes no time of its own."""


def _backwards(machine: Machine) -> Iterator[tuple[str, int, str, float]]:
    """Yield (role, site, cause, ns) from the end of a launch to its start, and each wait with ``_CROSSES``."""
    if machine.last is None:
        return
    cause = machine.last
    until = machine.end
    while cause is not None:
        warp, step, issued, parts = cause
        role, site = warp.warp.role, warp.steps[step][2]
        # Parts of an operation's time, from its issue on; what comes first in the list has happened first.
        begin = issued
        for name, finished in parts:
            end = min(finished, until)
            if end > begin:
                yield role, site, name, end - begin
                begin = end
        if until > begin:
            yield role, site, "latency", until - begin
        until = issued
        # The warp itself, back to the wait that delayed it last, or to its start.
        entry = _last_wait(warp, step, issued)
        if entry is None:
            yield from _own(machine, warp, 0, step, until - warp.started)
            until = min(until, warp.started)
            after = warp.cluster.after
            resumed = warp.started - machine.cta_start
            yield role, -1, "CTA start", until - max(resumed, machine.started)
            until = max(resumed, machine.started)
            if after is None:
                if until > machine.started:
                    yield role, -1, "launch before", until - machine.started
                return
            cause = (after, after.pc, until, ())
            continue
        waited, released, why = entry
        yield from _own(machine, warp, waited, step, until - released)
        until = released
        yield role, warp.steps[waited][2], _CROSSES, 0.0
        if why is None:
            yield role, warp.steps[waited][2], "launch before", until - machine.started
            return
        cause = why


def _last_wait(warp: WarpRun, step: int, now: float) -> tuple[int, float, Cause | None] | None:
    log = warp.log
    low, high = 0, len(log)
    while low < high:  # the log is sorted by step
        middle = (low + high) // 2
        if log[middle][0] < step:
            low = middle + 1
        else:
            high = middle
    if low < len(log) and log[low][0] == step and log[low][1] <= now:
        return log[low]
    return log[low - 1] if low else None


def _own(machine: Machine, warp: WarpRun, first: int, last: int, time: float) -> Iterator[tuple[str, int, str, float]]:
    """Yield what a warp did itself in the steps between two points, scaled to the time that passed."""
    if time <= 0:
        return
    costs, role = machine.costs, warp.warp.role
    parts: list[tuple[int, str, float]] = []
    for number in range(first, last + 1):
        step = warp.steps[number]
        if number > first and step[1]:
            parts.append((step[2], "instructions", step[1]))
        if number == last:
            break
        code = step[0]
        if code == WAIT:
            parts.append((step[2], "barrier", step[5]))
        elif code == RUN:
            parts.append((step[2], "instructions", step[4]))
        elif code == DELAY:
            parts.append((step[2], step[6], step[4]))
        elif code in (LOAD, STORE):
            parts.append((step[2], "issue", costs.issue))
        elif code == TENSOR:
            parts.append((step[2], "instructions", step[9]))
    total = sum(part[2] for part in parts)
    scale = min(1.0, time / total) if total else 0.0
    for site, name, spent in parts:
        yield role, site, name, spent * scale
    rest = time - total * scale
    if rest > 0:
        longest = max(parts, key=lambda part: part[2])[0] if parts else -1
        yield role, longest, "issue slots", rest
