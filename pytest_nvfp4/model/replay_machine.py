"""One launch on a device with a clock: one queue of events for the whole GPU.

A warp runs until it must wait, or until it would use a shared unit later than another warp that has not run yet. What
it starts is booked at once: every unit is a server that works in the order of its requests (``replay_units``,
``replay_memory``), so that the time of an operation's completion is known when it is issued. Phases are complete at the
latest time of their signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from pytest_nvfp4.model.placement import Slots
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay_flags import Flags
from pytest_nvfp4.model.replay_memory import Memory
from pytest_nvfp4.model.replay_state import Cause, ClusterRun, ReplayError, WarpRun
from pytest_nvfp4.model.replay_steps import END, FLAG_WAIT, FLAG_WRITE, MARK, RUN, SIGNAL, WAIT, Costs, ProgramSteps
from pytest_nvfp4.model.replay_units import Interval, Units
from pytest_nvfp4.model.servers import L2, Atoms, Traffic

__all__ = ["Machine"]

_SAME = 1e-6
"""Difference in ns below which two times are the same but for their rounding."""


@dataclass(slots=True)
class Machine:
    """One launch while it runs, and its state afterwards.

    Attributes:
        marks: Marks that warps passed, with their times.
        ends: For each slot, the time at which its last cluster ended.
        runs: All warps that ran, with their logs, in order of their starts.
        timeline: Intervals of units and roles, if they are asked for; ``waits`` are then those of warps for phases, as
            (warp, phase, begin, end, site).
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
    timeline: list[Interval] | None = None
    traffic: Traffic | None = None
    started: float = 0.0
    end: float = 0.0
    last: Cause | None = None
    runs: list[WarpRun] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    marks: list[tuple[WarpRun, float, int]] = field(default_factory=list)
    waits: list[tuple[WarpRun, int, float, float, int]] = field(default_factory=list)
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
        timeline, waits = self.timeline, self.waits
        sms = 1 + max(max(slot) for slot in self.slots.sms)
        schedulers = [0.0] * (4 * sms)
        memory = Memory(self.costs, self.l2, self.atoms, self.recording, self.traffic)
        arrive_ns = self.costs.arrive
        flags = Flags(self.recording.cells, self.recording.clusters)
        clusters = self.recording.clusters
        upcoming = 0
        queue: list[tuple[float, int, WarpRun]] = []
        order = 0
        runs = self.runs
        self.ends = ends = [free] * len(self.slots.sms) if isinstance(free, float) else list(free)
        self.started = min(ends)
        latest: list[WarpRun | None] = [None] * len(ends)

        def start(slot: int, now: float) -> None:
            nonlocal upcoming, order
            cluster = clusters[upcoming]
            program = self.programs[cluster.program]
            places = self.slots.sms[slot]
            run = ClusterRun(
                upcoming, program, cluster.footprints.tolist(), slot=slot, places=places, after=latest[slot]
            )
            upcoming += 1
            for name, values in program.busy.items():
                totals = self.busy.setdefault(name, {})
                for rank, value in enumerate(values):
                    totals[places[rank]] = totals.get(places[rank], 0.0) + value
            for warp in program.warps:
                warp_run = WarpRun(warp, run, places[warp.cta], now + self.cta_start)
                runs.append(warp_run)
                order += 1
                queue.append((warp_run.time, order, warp_run))

        def release(run: ClusterRun, phase: int) -> None:
            nonlocal order
            time = run.at[phase]
            for other in run.waiting.pop(phase):
                order += 1
                heappush(queue, (time if time > other.time else other.time, order, other))

        def signal(w: WarpRun, phases: tuple[int, ...], time: float, cause: Cause) -> None:
            run = w.cluster
            left, at = run.left, run.at
            for phase in phases:
                if time > at[phase]:
                    at[phase] = time
                    run.why[phase] = cause
                left[phase] -= 1
                if left[phase] <= 0 and phase in run.waiting:
                    release(run, phase)
                if timeline is not None and cause[2] < run.opened.get(phase, time):
                    run.opened[phase] = cause[2]

        used = any(program.tensor for program in self.programs)
        units = Units(self.costs, memory, sms, signal=signal, tensor_used=used, before=before, timeline=timeline)
        units.end, units.first_use, units.last_use = self.end, self.first_use, self.last_use
        handlers, shared = units.handlers(), units.shared
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
                    released = at[phase]
                    if timeline is not None:
                        waits.append((w, phase, t, max(t, released), step[2]))
                    if released > t:
                        w.log.append((pc, released, why[phase]))
                        if timeline is not None:
                            timeline.append((f"wait {w.warp.role}", w.sm, t, released, step[2]))
                        t = released
                    t += step[5]
                    pc += 1
                    continue
                if code == RUN:
                    t += step[1]
                    done = t + step[4]
                    slot = w.port
                    free_at = schedulers[slot]
                    schedulers[slot] = free_at = (free_at if free_at > t else t) + step[5]
                    done = free_at if free_at > done else done
                    if step[6]:
                        free_at = shared[w.sm]
                        shared[w.sm] = free_at = (free_at if free_at > t else t) + step[6]
                        done = free_at if free_at > done else done
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
                    left[phase] -= step[5]
                    if done > at[phase]:
                        at[phase] = done
                        why[phase] = (w, pc, now, (("barrier", done),))
                    if timeline is not None and now < run.opened.get(phase, done):
                        run.opened[phase] = now
                    pc += 1
                    if left[phase] <= 0 and phase in run.waiting:
                        release(run, phase)
                    continue
                if queue and queue[0][0] < now:
                    w.time, w.pc = t, pc
                    order += 1
                    heappush(queue, (now, order, w))
                    break
                if code == FLAG_WAIT:
                    polled = flags.poll(w, step, now)
                    if polled is None:
                        w.time, w.pc = t, pc
                        break
                    if polled[0] > now + _SAME:
                        w.log.append((pc, *polled))
                        if timeline is not None:
                            timeline.append((f"wait {w.warp.role}", w.sm, now, polled[0], step[2]))
                        w.time, w.pc = polled[0] - step[1], pc
                        order += 1
                        heappush(queue, (polled[0], order, w))
                        break
                if code != END:
                    w.pc = pc
                    t, done, signals, causes = handlers[code](w, step, now)
                    if code == FLAG_WRITE:
                        for other in flags.write(w, step, done, (w, pc, now, causes)):
                            order += 1
                            heappush(queue, (other.time, order, other))
                    if signals:
                        signal(w, signals, done, (w, pc, now, causes))
                    pc += 1
                    continue
                t = w.time = now
                w.pc = pc
                if t > units.end:
                    units.end, units.last = t, (w, pc, t, ())
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

        stuck = [warp_run for warp_run in runs if warp_run.steps[warp_run.pc][0] != END]
        if stuck or upcoming < len(clusters):
            sites = self.recording.sites
            places = {f"{warp_run.warp.role} at {sites[warp_run.steps[warp_run.pc][2]].source}" for warp_run in stuck}
            raise ReplayError(
                f"{self.recording.kernel}: {len(stuck)} warps wait for phases that never complete: "
                + ", ".join(sorted(places)[:6])
                + f"; {len(clusters) - upcoming} clusters find no place before they end" * (upcoming < len(clusters))
            )
        self.end, self.last = units.end, units.last
        self.l2_busy, self.dram_busy = memory.l2_busy, memory.dram_busy
        self.trigger = units.trigger if units.triggered else self.end
        self.first_load = min(units.first_load, self.end)
