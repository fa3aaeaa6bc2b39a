"""One launch on a device with a clock: one queue of events for the whole GPU.

A warp runs until it must wait, or until it would use a shared unit later than another warp that has not run yet. What
it starts is booked at once: every unit is a server that works in the order of its requests, so that the time of an
operation's completion is known when it is issued. Phases are complete at the latest time of their signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from pytest_nvfp4.model.placement import Slots
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay_steps import (
    COMMIT,
    DELAY,
    DEPENDENTS,
    END,
    GLOBAL_READ,
    GLOBAL_WRITE,
    GRID_WAIT,
    LOAD,
    MARK,
    REMOTE,
    RUN,
    SIGNAL,
    STORE,
    TENSOR,
    TMEM,
    WAIT,
    Costs,
    ProgramSteps,
    WarpSteps,
)
from pytest_nvfp4.model.servers import L2, Atoms, Traffic

__all__ = ["Machine", "ReplayError", "WarpRun"]


class ReplayError(ValueError):
    """A recording cannot be replayed: it is refused, or its waits can never be satisfied."""


class WarpRun:
    """A warp during a replay.

    Attributes:
        time: Its own time, in ns.
        log: Waits that delayed it: (step, time of release, cause), the latter as ``Segment.cause`` says.
    """

    __slots__ = ("cluster", "cta", "key", "log", "pc", "port", "sm", "started", "steps", "time", "warp")

    def __init__(self, warp: WarpSteps, cluster: _ClusterRun, sm: int, time: float) -> None:
        self.warp, self.cluster, self.sm, self.cta = warp, cluster, sm, warp.cta
        self.steps, self.pc, self.time, self.started = warp.steps, 0, time, time
        self.port = sm * 4 + warp.index % 4
        self.log: list[tuple[int, float, Any]] = []


class _ClusterRun:
    """A resident cluster: its phases, what released them, and the warp whose end made room for it."""

    __slots__ = ("after", "at", "footprints", "left", "number", "pipes", "program", "running", "slot", "waiting", "why")

    def __init__(
        self, number: int, program: ProgramSteps, footprints: list[int], slot: int, after: WarpRun | None
    ) -> None:
        self.number, self.program, self.footprints, self.slot, self.after = number, program, footprints, slot, after
        self.left = list(program.phases)
        self.at = [0.0] * len(self.left)
        self.why: list[Any] = [None] * len(self.left)
        self.waiting: dict[int, list[WarpRun]] = {}
        self.pipes = [0.0] * program.pipes
        self.running = len(program.warps)


@dataclass(slots=True)
class Machine:
    """One launch while it runs, and its state afterwards.

    Attributes:
        marks: Marks that warps passed, with their times.
        ends: For each slot, the time at which its last cluster ended.
        runs: All warps that ran, with their logs, in order of their starts.
        dram_busy, l2_busy: Busy ns.
        first_load: Time of the first copy from global memory.
    """

    recording: Recording
    costs: Costs
    programs: tuple[ProgramSteps, ...]
    slots: Slots
    atoms: list[Atoms]
    l2: L2
    cta_start: float
    timeline: list[tuple[str, int, float, float, int]] | None = None
    traffic: Traffic | None = None
    started: float = 0.0
    end: float = 0.0
    last: Any = None
    runs: list[WarpRun] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    marks: list[tuple[WarpRun, float, int]] = field(default_factory=list)
    first_use: dict[int, float] = field(default_factory=dict)
    last_use: dict[int, float] = field(default_factory=dict)
    busy: dict[str, dict[int, float]] = field(default_factory=dict)
    dram_busy: float = 0.0
    l2_busy: float = 0.0
    trigger: float = 0.0
    first_load: float = 0.0

    def run(self, free: Sequence[float] | float = 0.0, before: float = 0.0) -> None:
        """Replay the launch.

        Args:
            free: Time from which each slot can take a cluster.
            before: Time at which the launch before is complete, for griddepcontrol.wait.

        Raises ReplayError if some warp waits for a phase that never completes.
        """
        costs, atoms, l2, timeline = self.costs, self.atoms, self.l2, self.timeline
        sms = 1 + max(max(slot) for slot in self.slots.sms)
        tma, stores, tensor = ([0.0] * sms for _ in range(3))
        loads, ports, schedulers, shared = [0.0] * sms, [0.0] * (4 * sms), [0.0] * (4 * sms), [0.0] * sms
        l2_read = dram = 0.0
        l2_busy = dram_busy = 0.0
        line_ns, written_ns, dram_ns, dram_latency = (
            costs.line,
            costs.line_written,
            costs.dram_line,
            costs.dram_latency,
        )
        issue_ns, arrive_ns, cycle = costs.issue, costs.arrive, costs.cycle
        store_latency = costs.store_latency
        missing_of: Sequence[float] | None = None
        delayed: Sequence[float] = ()
        sizes: Sequence[float]
        if self.traffic is None:
            sizes = [sum(lines for _, lines in parts) for parts in atoms]
            shares = [
                min(1.0, footprint.sectors / (4 * size)) if size and footprint.sectors else 1.0
                for footprint, size in zip(self.recording.footprints, sizes, strict=True)
            ]
        arrives = [0.0] * len(l2.last)
        if self.traffic is not None:
            sizes, scale = self.traffic.lines, self.traffic.scale
            shares = [1.0] * len(sizes)
            line_ns, written_ns, dram_ns = line_ns * scale, written_ns * scale, dram_ns * scale
            missing_of, delayed = self.traffic.missing, self.traffic.delayed
        first_use, last_use = self.first_use, self.last_use
        end = self.end
        last: Any = None
        first_load = float("inf")
        trigger = 0.0
        triggered = 0
        clusters = self.recording.clusters
        upcoming = 0
        queue: list[tuple[float, int, WarpRun]] = []
        order = 0
        runs = self.runs
        self.ends = ends = [free] * len(self.slots.sms) if isinstance(free, float) else list(free)
        self.started = min(ends)
        latest: list[WarpRun | None] = [None] * len(ends)
        tensor_used = any(program.tensor for program in self.programs)

        def start(slot: int, now: float) -> None:
            nonlocal upcoming, order
            cluster = clusters[upcoming]
            program = self.programs[cluster.program]
            run = _ClusterRun(upcoming, program, cluster.footprints.tolist(), slot, latest[slot])
            upcoming += 1
            places = self.slots.sms[slot]
            for name, values in program.busy.items():
                totals = self.busy.setdefault(name, {})
                for rank, value in enumerate(values):
                    totals[places[rank]] = totals.get(places[rank], 0.0) + value
            for warp in program.warps:
                warp_run = WarpRun(warp, run, places[warp.cta], now + self.cta_start)
                runs.append(warp_run)
                order += 1
                queue.append((warp_run.time, order, warp_run))

        for slot in sorted(range(len(ends)), key=lambda slot: (ends[slot], slot)):
            if upcoming < len(clusters):
                start(slot, ends[slot])
        heapify(queue)

        while queue:
            _, _, w = heappop(queue)
            t = w.time
            run = w.cluster
            steps, pc = w.steps, w.pc
            left, at, why = run.left, run.at, run.why
            while True:
                step = steps[pc]
                code = step[0]
                if code == WAIT:
                    phase = step[4]
                    t += step[1]
                    if left[phase] > 0:
                        w.time, w.pc = t - step[1], pc
                        run.waiting.setdefault(phase, []).append(w)
                        break
                    release = at[phase]
                    if release > t:
                        w.log.append((pc, release, why[phase]))
                        if timeline is not None:
                            timeline.append((f"wait {w.warp.role}", w.sm, t, release, step[2]))
                        t = release
                    t += step[5]
                    pc += 1
                    continue
                if code == RUN:
                    t += step[1]
                    done = t + step[4]
                    slot = w.port
                    free_at = schedulers[slot]
                    schedulers[slot] = free_at = (free_at if free_at > t else t) + step[5]
                    done = max(done, free_at)
                    if step[6]:
                        free_at = shared[w.sm]
                        shared[w.sm] = free_at = (free_at if free_at > t else t) + step[6]
                        done = max(done, free_at)
                    if timeline is not None:
                        timeline.append((w.warp.role, w.sm, t, done, step[2]))
                    t = done
                    pc += 1
                    # Other warps of this SM may have to run first from here on.
                    if queue and queue[0][0] < t:
                        w.time, w.pc = t, pc
                        order += 1
                        heappush(queue, (t, order, w))
                        break
                    continue
                now = t + step[1]
                if code == MARK:
                    t = now
                    self.marks.append((w, t, step[4]))
                    pc += 1
                    continue
                if code == SIGNAL:
                    phase = step[4]
                    t = now
                    done = now + arrive_ns
                    if done > at[phase]:
                        at[phase] = done
                        why[phase] = (w, pc, now, (("barrier", done),))
                    left[phase] -= step[5]
                    pc += 1
                    if left[phase] <= 0 and phase in run.waiting:
                        for other in run.waiting.pop(phase):
                            order += 1
                            key = at[phase] if at[phase] > other.time else other.time
                            heappush(queue, (key, order, other))
                    continue
                if queue and queue[0][0] < now:
                    w.time, w.pc = t, pc
                    order += 1
                    heappush(queue, (now, order, w))
                    break
                t = now
                signals: tuple[int, ...]
                if code == LOAD:
                    t += issue_ns
                    done = t
                    for rank in step[6]:
                        sm = self.slots.sms[run.slot][rank]
                        free_at = tma[sm]
                        free_at = (free_at if free_at > t else t) + step[5]
                        tma[sm] = free_at
                        done = max(done, free_at)
                    rows = done
                    print_ = run.footprints[step[4]] if step[4] >= 0 else -1
                    through = memory = done
                    if print_ >= 0:
                        cost = sizes[print_] * step[9] * line_ns
                        l2_read = (l2_read if l2_read > t else t) + cost
                        l2_busy += cost
                        missing = l2.read(atoms[print_]) if missing_of is None else missing_of[print_]
                        if l2_read > through:
                            through = memory = l2_read
                        if missing > 0.01:
                            cost = missing * shares[print_] * dram_ns
                            dram = (dram if dram > t else t) + cost
                            dram_busy += cost
                            # Rows follow each other while the first waits for DRAM, so that its latency adds to them.
                            memory = dram if dram > through else through
                            memory += dram_latency * (
                                (missing if missing < 1 else 1.0) if missing_of is None else delayed[print_]
                            )
                            for atom, _ in atoms[print_] if missing > 1 and missing_of is None else ():
                                arrives[atom] = memory
                        elif missing_of is None:
                            for atom, _ in atoms[print_]:  # a hit may be on lines that are still on their way
                                memory = max(memory, arrives[atom])
                    done = memory + step[7]
                    signals = step[8]
                    causes: Any = (
                        ("TMA rows", rows),
                        ("L2", through),
                        ("DRAM", memory),
                        ("TMA latency", done),
                    )
                    if timeline is not None:
                        timeline.append(("TMA load", w.sm, t, done, step[2]))
                    first_load = min(first_load, t)
                    if not tensor_used and w.sm not in first_use:
                        first_use[w.sm] = t
                elif code == TENSOR:
                    begin = t
                    places = self.slots.sms[run.slot]
                    for rank in step[4]:
                        begin = max(begin, tensor[places[rank]])
                    pipe = step[5]
                    finish = begin + step[6]
                    t += step[9]
                    finish = max(finish, t + step[10])
                    for rank in step[4]:
                        sm = places[rank]
                        tensor[sm] = finish
                        if sm not in first_use:
                            first_use[sm] = begin
                        last_use[sm] = finish
                    done = finish + step[7]
                    if pipe >= 0:
                        run.pipes[pipe] = done
                    if done > end:
                        end, last = done, (w, pc, now, (("MMA", finish), ("MMA latency", done)))
                    signals = step[8]
                    causes = (("MMA", finish), ("MMA latency", done)) if signals else ()
                    if timeline is not None:
                        timeline.append(("tensor core", w.sm, begin, finish, step[2]))
                elif code == COMMIT:
                    done = run.pipes[step[4]] if step[4] >= 0 and run.pipes[step[4]] > t else t
                    for rank in step[7]:  # the pipe takes nothing up meanwhile
                        tensor[self.slots.sms[run.slot][rank]] += step[5]
                    t += cycle
                    signals = step[6]
                    causes = (("MMA", done),)
                elif code == TMEM:
                    slot = w.port
                    free_at = ports[slot]
                    ports[slot] = free_at = (free_at if free_at > t else t) + step[4]
                    done = free_at + step[5]
                    t += cycle
                    signals = step[6]
                    causes = (("tensor memory", free_at), ("tensor memory latency", done))
                    if timeline is not None:
                        timeline.append(("tensor memory", w.sm, t, done, step[2]))
                elif code == STORE:
                    t += issue_ns
                    free_at = stores[w.sm]
                    stores[w.sm] = free_at = (free_at if free_at > t else t) + step[5]
                    read = free_at + store_latency
                    through = read
                    print_ = run.footprints[step[4]] if step[4] >= 0 else -1
                    if print_ >= 0:
                        cost = sizes[print_] * shares[print_] * written_ns
                        l2_read = (l2_read if l2_read > t else t) + cost
                        l2_busy += cost
                        evicted = l2.write(atoms[print_]) if missing_of is None else missing_of[print_]
                        through = max(through, l2_read)
                        if evicted > 0.01:
                            cost = evicted * dram_ns
                            dram = (dram if dram > t else t) + cost
                            dram_busy += cost
                    if through > end:
                        end, last = through, (w, pc, now, (("TMA store", read), ("L2 writes", through)))
                    for phase in step[6]:
                        if read > at[phase]:
                            at[phase] = read
                            why[phase] = (w, pc, now, (("TMA store", read),))
                        left[phase] -= 1
                        if left[phase] <= 0 and phase in run.waiting:
                            for other in run.waiting.pop(phase):
                                order += 1
                                heappush(queue, (max(at[phase], other.time), order, other))
                    done = through
                    signals = step[7]
                    causes = (("TMA store", read), ("L2 writes", through))
                    if timeline is not None:
                        timeline.append(("TMA store", w.sm, t, through, step[2]))
                elif code == DELAY:
                    t += step[4]
                    done = t
                    signals = step[5]
                    causes = ((step[6], done),)
                    if timeline is not None:
                        timeline.append((step[6], w.sm, now, t, step[2]))
                elif code in (GLOBAL_READ, GLOBAL_WRITE):
                    free_at = loads[w.sm]
                    loads[w.sm] = free_at = (free_at if free_at > t else t) + step[5]
                    through = memory = free_at
                    print_ = run.footprints[step[4]] if step[4] >= 0 else -1
                    if print_ >= 0 and code == GLOBAL_READ:
                        cost = sizes[print_] * shares[print_] * line_ns
                        l2_read = (l2_read if l2_read > t else t) + cost
                        l2_busy += cost
                        missing = l2.read(atoms[print_]) if missing_of is None else missing_of[print_]
                        if l2_read > through:
                            through = memory = l2_read
                        if missing > 0.01:
                            cost = missing * shares[print_] * dram_ns
                            dram = (dram if dram > t else t) + cost
                            dram_busy += cost
                            # Rows follow each other while the first waits for DRAM, so that its latency adds to them.
                            memory = dram if dram > through else through
                            memory += dram_latency if missing > 1 else dram_latency * missing
                    elif print_ >= 0:
                        cost = sizes[print_] * shares[print_] * written_ns
                        l2_read = (l2_read if l2_read > t else t) + cost
                        l2_busy += cost
                        evicted = l2.write(atoms[print_]) if missing_of is None else missing_of[print_]
                        if l2_read > through:
                            through = memory = l2_read
                        if evicted > 0.01:
                            cost = evicted * dram_ns
                            dram = (dram if dram > t else t) + cost
                            dram_busy += cost
                    done = memory + step[6]
                    t += cycle
                    signals = step[7]
                    causes = (("load unit", free_at), ("L2", through), ("DRAM", memory), ("load latency", done))
                    if code == GLOBAL_WRITE:
                        done = memory
                        causes = (("load unit", free_at), ("L2 writes", through))
                        if done > end:
                            end, last = done, (w, pc, now, causes)
                    if timeline is not None:
                        timeline.append(("global memory", w.sm, now, done, step[2]))
                elif code == REMOTE:
                    done = t + step[4]
                    t += cycle
                    signals = step[5]
                    causes = (("other CTA's shared memory", done),)
                elif code == DEPENDENTS:
                    triggered += 1
                    trigger = max(trigger, t)
                    done, signals, causes = t, step[4], (("issue", t),)
                elif code == GRID_WAIT:
                    if before > t:
                        w.log.append((pc, before, None))
                        t = before
                    done, signals, causes = t, step[4], (("launch before", t),)
                else:  # END
                    w.time, w.pc = t, pc
                    if t > end:
                        end, last = t, (w, pc, t, ())
                    run.running -= 1
                    slot = run.slot
                    if t >= ends[slot]:
                        ends[slot] = t
                        latest[slot] = w
                    if not run.running and upcoming < len(clusters):
                        first = len(queue)
                        start(slot, ends[slot])
                        fresh = queue[first:]
                        del queue[first:]
                        for entry in fresh:
                            heappush(queue, entry)
                    break
                pc += 1
                for phase in signals:
                    if done > at[phase]:
                        at[phase] = done
                        why[phase] = (w, pc - 1, now, causes)
                    left[phase] -= 1
                    if left[phase] <= 0 and phase in run.waiting:
                        for other in run.waiting.pop(phase):
                            order += 1
                            heappush(queue, (at[phase] if at[phase] > other.time else other.time, order, other))

        stuck = [warp_run for warp_run in runs if warp_run.steps[warp_run.pc][0] != END]
        if stuck or upcoming < len(clusters):
            sites = self.recording.sites
            waits = {f"{warp_run.warp.role} at {sites[warp_run.steps[warp_run.pc][2]].source}" for warp_run in stuck}
            raise ReplayError(
                f"{self.recording.kernel}: {len(stuck)} warps wait for phases that never complete: "
                + ", ".join(sorted(waits)[:6])
            )
        self.end, self.last, self.l2_busy, self.dram_busy = end, last, l2_busy, dram_busy
        self.trigger = trigger if triggered else end
        self.first_load = min(first_load, end)
