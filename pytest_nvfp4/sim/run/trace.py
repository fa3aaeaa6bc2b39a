"""Timeline of a run in *steps, not time*: the warps, the asynchronous units and the barriers.

One step is one warp-instruction executed by any warp of a CTA; each CTA counts its own. The simulator has no clock, so
the duration of a step and the overlap on a device are unknown. The timeline shows one legal order of the program, that
of the schedule in use. The eager schedule completes asynchronous work at issue, so a copy is one step wide.

``Trace.to_json`` returns Chrome's trace event format, which https://ui.perfetto.dev reads. A process is a CTA; its
threads are its warps (``run`` and ``wait`` slices), the regions that the author named in them (``sim.ptx.marks``), the
asynchronous units (slices from issue to completion) and its barriers (one slice per phase). Call ``attach`` before a
launch, and ``begin`` and ``end`` around it. Only the CTAs with the lowest numbers are recorded, in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from pytest_nvfp4.sim.ptx.marks import Mark
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.warp import Warp

_UNITS = (
    ("tcgen05.mma", "tcgen05.mma"),
    ("tcgen05.cp", "tcgen05.cp"),
    ("tcgen05.commit", "tcgen05.commit"),
    ("wgmma", "wgmma"),
    ("cp.reduce", "TMA reductions"),
)
_FIRST_UNIT, _FIRST_BARRIER = 100, 200
_REGIONS = 40
"""Thread numbers: warps first, then their regions, asynchronous units, and barriers."""
_PROCESSES_A_LAUNCH = 10_000


def unit_of(what: str) -> str:
    """Return the name of the track for an opcode: ``TMA loads``, ``tcgen05.mma``, ``cp.async`` ..."""
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
    """Return a short slice name. A store has two actions: it reads shared memory and writes the destination."""
    parts = what.split(".")
    size = 5 if "tensor" in parts else 4
    step = getattr(action, "__name__", "")
    return ".".join(parts[:size]) + (f" {step}s" if step in ("read", "write") else "")


def _destination(action: Callable[[], None]) -> dict[str, Any]:
    """Return the destination, the mbarriers and the bytes of a copy into shared memory."""
    targets = getattr(action, "targets", None)
    if not targets:
        return {}
    to = [f"byte {index} of CTA rank {cta.rank}" for cta, index, _ in targets]
    signals = [f"mbarrier at byte {barrier.index} of CTA rank {barrier.cta.rank}" for _, _, barrier in targets]
    return {"to": ", ".join(to), "signals": ", ".join(signals), "bytes": getattr(action, "count", 0)}


class Track(NamedTuple):
    """Process and thread number of a track in the trace."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class _TracedOperation:
    """Asynchronous work in flight."""

    cta: Cta
    unit: str
    track: Track
    key: int
    began: int
    name: str


class OpenRegions:
    """The regions of a warp that are open. Slices of a track must nest: what a region's end crosses begins anew."""

    def __init__(self) -> None:
        self._open: list[str] = []

    def after(self, mark: Mark) -> list[tuple[bool, str]]:
        """Return the slices that a mark begins (True) and ends, in their order."""
        known = mark.name in self._open or not mark.name
        if mark.what == "begin" or (mark.what == "toggle" and not known):
            self._open.append(mark.name)
            return [(True, mark.name)]
        if mark.what == "mark" or not known or not self._open:
            return []
        place = len(self._open) - 1 - self._open[::-1].index(mark.name) if mark.name else len(self._open) - 1
        crossed = self._open[place + 1 :]
        del self._open[place]
        return [(False, name) for name in reversed([mark.name, *crossed])] + [(True, name) for name in crossed]


class Trace:
    """Recorder of the timeline of launches.

    Args:
        ctas: Number of CTAs recorded in each launch: those with the lowest numbers.
        limit: Largest number of events; later ones are counted and omitted.
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
        self._open: dict[Track, list[bool]] = {}
        """Stack of open slices by track; False for one that was omitted."""
        self._turns: dict[Warp, tuple[int, int]] = {}
        """Step and executed instructions at the start of each warp's turn."""
        self._waiting: set[Warp] = set()
        self._barriers: dict[tuple[Cta, Hashable], Track] = {}
        self._phases: dict[Track, int] = {}
        self._units: dict[tuple[Cta, str], Track] = {}
        self._known: set[Track] = set()
        self._keys = 0
        self._regions: dict[Track, OpenRegions] = {}

    def attach(self, machine: Machine) -> None:
        """Record the launches of a machine."""
        machine.trace = self
        machine.asynchronous = cast("Asynchronous", TracedAsynchronous(machine.asynchronous, self))

    def begin(self, grid: Grid) -> None:
        """Start the record of a launch."""
        self._grid = grid
        self._base = 1 + _PROCESSES_A_LAUNCH * len(self._launches)
        self._launches.append({"kernel": grid.kernel.name, "grid": list(grid.shape), "block": list(grid.block)})

    def end(self) -> None:
        """Close all open slices: the launch ended or was stopped."""
        ctas = {self._pid(cta): cta for cta in self._last}
        for (pid, tid), stack in self._open.items():
            for recorded in reversed(stack):
                if recorded:
                    self._events.append({"ph": "E", "pid": pid, "tid": tid, "ts": self._last[ctas[pid]]})
        self._open.clear()
        self._last.clear()
        self._turns.clear()
        self._waiting.clear()
        self._barriers.clear()
        self._phases.clear()
        self._units.clear()
        self._regions.clear()
        self._grid = None

    def to_json(self) -> dict[str, Any]:
        """Return the trace as JSON values, ordered by step."""
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

    # ---- events of the simulator -----------------------------------------------------------------------------------

    def turn_begins(self, warp: Warp) -> None:
        """Record the start of a warp's turn."""
        if not self._records(warp.cta):
            return
        now = self._now(warp.cta)
        if warp not in self._turns:
            self._begin(self._warp(warp), "run", now)
        self._turns[warp] = (now, warp.executed)

    def turn_ends(self, warp: Warp) -> None:
        """Record the end of a warp's turn: it waits, has ended, or another warp is next."""
        if not self._records(warp.cta) or self._grid is None:
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
            group = min(warp.groups, key=lambda group: group.pc)
            what = group.waiting.waiting_for() if group.waiting is not None else ""
            short = what.split(", ")[0].split(" (")[0]
            arguments = {"waits for": what, "at": self._grid.place(group.pc)}
            self._begin(track, f"wait for {short}", now, arguments)
            self._waiting.add(warp)

    def phase(self, cta: Cta, key: Hashable, name: str) -> None:
        """Record that a barrier completed a phase. Phase 0 starts at step 0."""
        if not self._records(cta):
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

    def marked(self, warp: Warp, mark: Mark) -> None:
        """Record the begin or end of a region, or a moment, that the author named."""
        if not self._records(warp.cta):
            return
        track = Track(self._pid(warp.cta), _REGIONS + warp.index)
        if track not in self._known:
            self._track(warp.cta, track.tid, f"warp {warp.index} regions")
        now = self._now(warp.cta)
        for begins, name in self._regions.setdefault(track, OpenRegions()).after(mark):
            if begins:
                self._begin(track, name, now)
            else:
                self._end(track, now)
        if mark.what == "mark" and not self._full():
            self._events.append({"ph": "i", "s": "t", "name": mark.name, "ts": now} | track._asdict())

    def issued(self, what: str, action: Callable[[], None]) -> _TracedOperation | None:
        """Record that a warp issued asynchronous work."""
        grid = self._grid
        scheduler = grid._scheduler if grid is not None else None
        warp = scheduler.running if scheduler is not None else None
        if grid is None or warp is None or not self._records(warp.cta) or self._full():
            return None
        cta = warp.cta
        unit = unit_of(what)
        track = self._units.get((cta, unit))
        if track is None:
            count = sum(1 for other, _ in self._units if other is cta)
            track = self._units[cta, unit] = self._track(cta, _FIRST_UNIT + count, unit)
        place = grid.program.frames.place_now()
        self._keys += 1
        now = self._now(cta)
        name = _short(what, action)
        arguments = {"warp": warp.index, "at": grid.place(place[0]) if place is not None else "unknown"}
        arguments |= {"opcode": what} | _destination(action)
        event = {"ph": "b", "cat": unit, "id": self._keys, "name": name, "ts": now, "args": arguments}
        self._events.append(event | track._asdict())
        return _TracedOperation(cta, unit, track, self._keys, now, name)

    def completed(self, operation: _TracedOperation) -> None:
        """Record the completion of asynchronous work."""
        now = max(self._now(operation.cta), operation.began + 1)
        event = {"ph": "e", "cat": operation.unit, "id": operation.key, "name": operation.name, "ts": now}
        self._events.append(event | operation.track._asdict())

    # ---- events --------------------------------------------------------------------------------------------------

    def _records(self, cta: Cta) -> bool:
        return cta.linear < self.ctas

    def _now(self, cta: Cta) -> int:
        """Return the number of instructions that the CTA has executed, including the running block; monotonic."""
        now = sum(warp.executed for warp in cta.warps)
        scheduler = cta.scheduler
        if scheduler.running is not None and scheduler.running.cta is cta:
            now += scheduler.program.frames.depth_now()
        now = max(now, self._last.get(cta, 0))
        self._last[cta] = now
        return now

    def _pid(self, cta: Cta) -> int:
        return self._base + cta.linear

    def _warp(self, warp: Warp) -> Track:
        track = Track(self._pid(warp.cta), warp.index)
        if track not in self._known:
            self._track(warp.cta, warp.index, f"warp {warp.index}")
        return track

    def _track(self, cta: Cta, tid: int, name: str) -> Track:
        assert self._grid is not None
        track = Track(self._pid(cta), tid)
        process = Track(track.pid, -1)
        if process not in self._known:
            self._known.add(process)
            launch = len(self._launches) - 1
            title = f"launch {launch} {self._grid.kernel.name[:60]}, CTA {cta.index} (steps, not time)"
            self._names.append({"ph": "M", "name": "process_name", "pid": track.pid, "args": {"name": title}})
        self._known.add(track)
        self._names.append({"ph": "M", "name": "thread_name", "args": {"name": name}} | track._asdict())
        self._names.append({"ph": "M", "name": "thread_sort_index", "args": {"sort_index": tid}} | track._asdict())
        return track

    def _full(self) -> bool:
        if len(self._events) < self.limit:
            return False
        self.left_out += 1
        return True

    def _begin(self, track: Track, name: str, ts: int, arguments: dict[str, Any] | None = None) -> None:
        recorded = not self._full()
        self._open.setdefault(track, []).append(recorded)
        if recorded:
            event = {"ph": "B", "ts": ts, "name": name} | track._asdict()
            self._events.append(event | ({"args": arguments} if arguments else {}))

    def _end(self, track: Track, ts: int) -> None:
        stack = self._open.get(track)
        if stack and stack.pop():
            self._events.append({"ph": "E", "ts": ts} | track._asdict())


class TracedAsynchronous:
    """Wrapper of a schedule that traces its work from issue to completion.

    It is not a subclass of ``Asynchronous``, because inherited methods would hide those of the wrapped schedule.
    """

    def __init__(self, inner: Asynchronous, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, queue: Hashable, action: Callable[[], None], *, what: str = "") -> None:
        """Submit work, and record its issue and its completion."""
        operation = self._trace.issued(what, action)
        if operation is not None:
            action = partial(self._run, operation, action)
        self._inner.submit(queue, action, what=what)

    def _run(self, operation: _TracedOperation, action: Callable[[], None]) -> None:
        action()
        self._trace.completed(operation)
