"""A timeline of a run in *steps, not time*: what each warp did, and what went on beside it.

One step is one warp-instruction executed by the CTA, whichever of its warps ran it; each CTA counts its own. The
simulator has no clock: how long a step would take, and what would overlap on a device, is not known. What is shown is
one legal order of the program, that of the schedule in use. In the eager schedule asynchronous work is done when it is
issued, so a copy is one step wide there.

``Trace.to_json`` is Chrome's trace event format, which https://ui.perfetto.dev reads. A process is a CTA; its threads
are its warps (``run`` and ``wait`` slices), the asynchronous units (from issue to completion) and its barriers (a slice
a phase). Set ``machine.trace`` and ``machine.asynchronous`` with ``attach`` before a launch, and call ``begin`` and
``end`` around it. Only the CTAs with the lowest numbers are kept, in this process alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.asynchronous import Asynchronous
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.machine import Machine
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["Trace", "TracedAsynchronous"]

_UNITS = (
    ("tcgen05.mma", "tcgen05.mma"),
    ("tcgen05.cp", "tcgen05.cp"),
    ("tcgen05.commit", "tcgen05.commit"),
    ("wgmma", "wgmma"),
    ("cp.reduce", "TMA reductions"),
)
_FIRST_UNIT, _FIRST_BARRIER = 100, 200
"""Numbers of threads: warps come first, then asynchronous units, then barriers."""
_PROCESSES_A_LAUNCH = 10_000


def unit_of(what: str) -> str:
    """The track of asynchronous work, from its opcode: ``TMA loads``, ``tcgen05.mma``, ``cp.async`` ..."""
    for prefix, unit in _UNITS:
        if what.startswith(prefix):
            return unit
    if what.startswith("cp.async.bulk"):
        parts = what.split(".")
        places = [part.split("::")[0] for part in parts if part.split("::")[0] in ("shared", "global")]
        way = "stores" if places[:1] == ["global"] else "loads"
        return f"TMA {way}" if "tensor" in parts else f"bulk {way}"
    return ".".join(what.split(".")[:2]) or "asynchronous"


def _short(what: str, action: Callable[[], None]) -> str:
    """A name that fits a slice; a store reads shared memory and writes the destination in two pieces."""
    parts = what.split(".")
    size = 5 if "tensor" in parts else 4
    step = getattr(action, "__name__", "")
    return ".".join(parts[:size]) + (f" {step}s" if step in ("read", "write") else "")


def _destination(action: Callable[[], None]) -> dict[str, Any]:
    """Where a copy into shared memory goes, how many bytes it is, and whom it signals."""
    targets = getattr(action, "targets", None)
    if not targets:
        return {}
    to = [f"byte {index} of CTA rank {cta.rank}" for cta, index, _ in targets]
    signals = [f"mbarrier at byte {barrier.index} of CTA rank {barrier.cta.rank}" for _, _, barrier in targets]
    return {"to": ", ".join(to), "signals": ", ".join(signals), "bytes": getattr(action, "count", 0)}


class _Operation:
    """Asynchronous work under way."""

    __slots__ = ("began", "cta", "key", "track", "what")

    def __init__(self, cta: Cta, track: tuple[int, int], key: int, began: int, what: str) -> None:
        self.cta = cta
        self.track = track
        self.key = key
        self.began = began
        self.what = what


class Trace:
    """Collects the timeline of launches.

    Args:
        ctas: CTAs of each launch that are kept: those with the lowest numbers.
        limit: Most events; what comes later is counted and left out.
    """

    def __init__(self, *, ctas: int = 4, limit: int = 400_000) -> None:
        self.ctas = ctas
        self.limit = limit
        self.left_out = 0
        self._events: list[dict[str, Any]] = []
        self._names: list[dict[str, Any]] = []
        self._grid: Grid | None = None
        self._launches: list[dict[str, Any]] = []
        self._base = 0
        self._last: dict[Cta, int] = {}
        self._open: dict[tuple[int, int], list[bool]] = {}
        self._turns: dict[Warp, tuple[int, int]] = {}
        self._waiting: set[Warp] = set()
        self._barriers: dict[tuple[Cta, Hashable], tuple[int, int]] = {}
        self._phases: dict[tuple[int, int], int] = {}
        self._units: dict[tuple[Cta, str], tuple[int, int]] = {}
        self._known: set[tuple[int, int]] = set()
        self._keys = 0

    def attach(self, machine: Machine) -> None:
        """Hear of what happens on a machine."""
        machine.trace = self
        machine.asynchronous = cast("Asynchronous", TracedAsynchronous(machine.asynchronous, self))

    def begin(self, grid: Grid) -> None:
        """A launch starts."""
        self._grid = grid
        self._base = 1 + _PROCESSES_A_LAUNCH * len(self._launches)
        self._launches.append({"kernel": grid.kernel.name, "grid": list(grid.shape), "block": list(grid.block)})

    def end(self) -> None:
        """The launch ended, or was stopped: what is open ends here."""
        ctas = {self._pid(cta): cta for cta in self._last}
        for (pid, tid), stack in self._open.items():
            for kept in reversed(stack):
                if kept:
                    self._events.append({"ph": "E", "pid": pid, "tid": tid, "ts": self._last[ctas[pid]]})
        self._open.clear()
        self._last.clear()
        self._turns.clear()
        self._waiting.clear()
        self._barriers.clear()
        self._phases.clear()
        self._units.clear()
        self._grid = None

    def to_json(self) -> dict[str, Any]:
        """The trace as JSON values, in the order of steps."""
        return {
            "traceEvents": [*self._names, *sorted(self._events, key=lambda event: event["ts"])],
            "displayTimeUnit": "ns",
            "otherData": {
                "unit": "steps, not time: 1 step = 1 warp-instruction executed by the CTA; a viewer shows it as 1 us",
                "schedule": "one legal order of the program; the simulator has no clock",
                "launches": self._launches,
                "ctas": f"the first {self.ctas} of each launch",
                "events_left_out": self.left_out,
            },
        }

    # ---- what the simulator tells --------------------------------------------------------------------------------

    def turn_begins(self, warp: Warp) -> None:
        """The scheduler lets a warp run."""
        if not self._keeps(warp.cta):
            return
        now = self._now(warp.cta)
        if warp not in self._turns:
            self._begin(self._warp(warp), "run", now)
        self._turns[warp] = (now, warp.executed)

    def turn_ends(self, warp: Warp) -> None:
        """A warp waits, has ended, or had its turn."""
        if not self._keeps(warp.cta) or self._grid is None:
            return
        track = self._warp(warp)
        began, executed = self._turns[warp]
        waits = bool(warp.groups) and warp.select() is None
        now = self._now(warp.cta)
        if warp in self._waiting:
            if waits and warp.executed == executed:
                return
            self._end(track, began)
            self._begin(track, "run", began)
            self._waiting.discard(warp)
        if not warp.groups:
            self._end(track, now)
        elif waits:
            self._end(track, now)
            group = min(warp.groups, key=lambda one: one.pc)
            what = group.waiting.waiting_for() if group.waiting is not None else ""
            short = what.split(", ")[0].split(" (")[0]
            arguments = {"waits for": what, "at": self._grid.say(group.pc)}
            self._begin(track, f"wait for {short}", now, arguments)
            self._waiting.add(warp)

    def phase(self, cta: Cta, key: Hashable, name: str) -> None:
        """A barrier completed a phase. The first is number 0, and is drawn from the start."""
        if not self._keeps(cta):
            return
        track = self._barriers.get((cta, key))
        if track is None:
            count = sum(1 for other, _ in self._barriers if other is cta)
            track = self._barriers[cta, key] = self._track(cta, _FIRST_BARRIER + count, name)
            self._begin(track, "phase 0", 0)
        now = self._now(cta)
        self._end(track, now)
        number = self._phases[track] = self._phases.get(track, 0) + 1
        self._begin(track, f"phase {number}", now)

    def issued(self, what: str, action: Callable[[], None]) -> _Operation | None:
        """A warp handed work to an asynchronous unit."""
        grid = self._grid
        scheduler = grid._scheduler if grid is not None else None
        warp = scheduler.running if scheduler is not None else None
        if grid is None or warp is None or not self._keeps(warp.cta):
            return None
        if self._full():
            return None
        cta = warp.cta
        unit = unit_of(what)
        track = self._units.get((cta, unit))
        if track is None:
            count = sum(1 for other, _ in self._units if other is cta)
            track = self._units[cta, unit] = self._track(cta, _FIRST_UNIT + count, unit)
        place = grid.program.place_now()
        self._keys += 1
        now = self._now(cta)
        name = _short(what, action)
        arguments = {"warp": warp.index, "at": grid.say(place[0]) if place is not None else "unknown"}
        arguments |= {"opcode": what} | _destination(action)
        event = {"ph": "b", "cat": unit, "id": self._keys, "name": name, "ts": now, "args": arguments}
        self._events.append(event | {"pid": track[0], "tid": track[1]})
        return _Operation(cta, track, self._keys, now, name)

    def completed(self, operation: _Operation) -> None:
        """Asynchronous work was done."""
        now = max(self._now(operation.cta), operation.began + 1)
        pid, tid = operation.track
        unit = next(unit for (cta, unit), track in self._units.items() if track == operation.track)
        event = {"ph": "e", "cat": unit, "id": operation.key, "name": operation.what, "ts": now}
        self._events.append(event | {"pid": pid, "tid": tid})

    # ---- events --------------------------------------------------------------------------------------------------

    def _keeps(self, cta: Cta) -> bool:
        return cta.linear < self.ctas

    def _now(self, cta: Cta) -> int:
        """Instructions that the CTA has executed, those of the block that runs included; never less than before."""
        now = sum(warp.executed for warp in cta.warps)
        scheduler = cta.scheduler
        if scheduler.running is not None and scheduler.running.cta is cta:
            now += scheduler.program.depth_now()
        now = max(now, self._last.get(cta, 0))
        self._last[cta] = now
        return now

    def _pid(self, cta: Cta) -> int:
        return self._base + cta.linear

    def _warp(self, warp: Warp) -> tuple[int, int]:
        track = (self._pid(warp.cta), warp.index)
        if track not in self._known:
            self._track(warp.cta, warp.index, f"warp {warp.index}")
        return track

    def _track(self, cta: Cta, tid: int, name: str) -> tuple[int, int]:
        assert self._grid is not None
        pid = self._pid(cta)
        if (pid, -1) not in self._known:
            self._known.add((pid, -1))
            launch = len(self._launches) - 1
            said = f"launch {launch} {self._grid.kernel.name[:60]}, CTA {cta.index} (steps, not time)"
            self._names.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": said}})
        self._known.add((pid, tid))
        self._names.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        order = {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
        self._names.append(order)
        return pid, tid

    def _full(self) -> bool:
        if len(self._events) < self.limit:
            return False
        self.left_out += 1
        return True

    def _begin(self, track: tuple[int, int], name: str, ts: int, arguments: dict[str, Any] | None = None) -> None:
        kept = not self._full()
        self._open.setdefault(track, []).append(kept)
        if kept:
            event = {"ph": "B", "pid": track[0], "tid": track[1], "ts": ts, "name": name}
            self._events.append(event | ({"args": arguments} if arguments else {}))

    def _end(self, track: tuple[int, int], ts: int) -> None:
        stack = self._open.get(track)
        if stack and stack.pop():
            self._events.append({"ph": "E", "pid": track[0], "tid": track[1], "ts": ts})


class TracedAsynchronous:
    """A schedule whose work is traced from issue to completion; all else is the schedule's own.

    It is no subclass, whose inherited methods would hide the schedule's.
    """

    def __init__(self, inner: Asynchronous, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, queue: Hashable, action: Callable[[], None], *, what: str = "") -> None:
        """Take on work, and note when it is issued and when it is done."""
        operation = self._trace.issued(what, action)
        if operation is not None:
            action = partial(self._run, operation, action)
        self._inner.submit(queue, action, what=what)

    def _run(self, operation: _Operation, action: Callable[[], None]) -> None:
        action()
        self._trace.completed(operation)
