"""The units of the SMs during a replay: what each operation of a warp books, and when it completes.

A handler gets the warp, its step and its time. It returns the warp's time afterwards, when the operation completes, the
phases that this signals, and the parts of its time for the critical path. Comparisons stand for ``max`` and ``min``,
whose calls would take a tenth of a replay.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_nvfp4.model.replay_memory import Memory
from pytest_nvfp4.model.replay_state import Cause, WarpRun
from pytest_nvfp4.model.replay_steps import (
    COMMIT,
    DELAY,
    DEPENDENTS,
    FLAG_WAIT,
    FLAG_WRITE,
    GLOBAL_READ,
    GLOBAL_WRITE,
    GRID_WAIT,
    LOAD,
    REMOTE,
    STORE,
    TENSOR,
    TMEM,
    Costs,
    Step,
)

__all__ = ["Handler", "Interval", "Units"]

Booked = tuple[float, float, tuple[int, ...], tuple[tuple[str, float], ...]]
Handler = Callable[[WarpRun, Step, float], Booked]
Interval = tuple[str, int, float, float, int]
"""Unit or role, SM, begin, end, site."""
Signal = Callable[[WarpRun, tuple[int, ...], float, Cause], None]


class Units:
    """The servers of all SMs.

    Args:
        signal: Signals phases at a time.
        tensor_used: Whether there are matrix instructions.
        before: Time at which the launch before is complete.

    Attributes:
        shared: By SM, the time until which the port of its shared memory is taken.
        end: Time at which the last operation that nothing waits for completes; ``last`` is what it follows.
        first_use, last_use: By SM, begin of the first matrix instruction (else of the first copy), end of the last.
        first_load: Time of the first copy from global memory.
        trigger: Time at which the last CTA allowed dependent launches; ``triggered`` counts them.
    """

    def __init__(
        self,
        costs: Costs,
        memory: Memory,
        sms: int,
        *,
        signal: Signal,
        tensor_used: bool,
        before: float,
        timeline: list[Interval] | None,
    ) -> None:
        self._issue, self._cycle, self._store_latency = costs.issue, costs.cycle, costs.store_latency
        self._memory, self._timeline = memory, timeline
        self._tensor_used, self._before = tensor_used, before
        self._tma, self._stores, self._tensor, self._loads = ([0.0] * sms for _ in range(4))
        self._ports = [0.0] * (4 * sms)
        self._signal = signal
        self.shared = [0.0] * sms
        self.end = 0.0
        self.last: Cause | None = None
        self.first_use: dict[int, float] = {}
        self.last_use: dict[int, float] = {}
        self.first_load = float("inf")
        self.trigger = 0.0
        self.triggered = 0

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by code of a step."""
        return {
            LOAD: self._load,
            TENSOR: self._multiply,
            COMMIT: self._commit,
            TMEM: self._tmem,
            STORE: self._store,
            DELAY: self._delay,
            GLOBAL_READ: self._read,
            GLOBAL_WRITE: self._write,
            REMOTE: self._remote,
            DEPENDENTS: self._dependents,
            GRID_WAIT: self._grid_wait,
            FLAG_WAIT: self._read,
            FLAG_WRITE: self._flag,
        }

    def _load(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, slot, rows_ns, ctas, latency, signals, delivered, port_ns = step
        t += self._issue
        rows = t
        tma, run = self._tma, w.cluster
        for rank in ctas:
            sm = run.places[rank]
            free = tma[sm]
            tma[sm] = free = (free if free > t else t) + rows_ns
            rows = free if free > rows else rows
            if port_ns:
                free = self.shared[sm]
                self.shared[sm] = (free if free > t else t) + port_ns
        through = there = rows
        print_ = run.footprints[slot] if slot >= 0 else -1
        if print_ >= 0:
            memory = self._memory
            through, there = memory.read(print_, memory.sizes[print_] * delivered, t, rows)
        done = there + latency
        if self._timeline is not None:
            self._timeline.append(("TMA load", w.sm, t, done, step[2]))
        self.first_load = t if t < self.first_load else self.first_load
        if not self._tensor_used and w.sm not in self.first_use:
            self.first_use[w.sm] = t
        return t, done, signals, (("TMA rows", rows), ("L2", through), ("DRAM", there), ("TMA latency", done))

    def _multiply(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, ctas, pipe, interval, tail, signals, issue, one, port_ns = step
        now = begin = t
        tensor, places = self._tensor, w.cluster.places
        for rank in ctas:
            free = tensor[places[rank]]
            begin = free if free > begin else begin
        finish = begin + interval
        t += issue
        finish = t + one if t + one > finish else finish
        if port_ns:
            free = self.shared[w.sm]
            self.shared[w.sm] = free = (free if free > begin else begin) + port_ns
            finish = free if free > finish else finish
        first_use = self.first_use
        for rank in ctas:
            sm = places[rank]
            tensor[sm] = finish
            if sm not in first_use:
                first_use[sm] = begin
            self.last_use[sm] = finish
        done = finish + tail
        if pipe >= 0:
            w.cluster.pipes[pipe] = done
        causes = (("MMA", finish), ("MMA latency", done))
        if done > self.end:
            self.end, self.last = done, (w, w.pc, now, causes)
        if self._timeline is not None:
            self._timeline.append(("tensor core", w.sm, begin, finish, step[2]))
        return t, done, signals, causes

    def _commit(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, pipe, pause, signals, ctas = step
        pipes, tensor = w.cluster.pipes, self._tensor
        done = pipes[pipe] if pipe >= 0 and pipes[pipe] > t else t
        for rank in ctas:  # the pipe takes nothing up meanwhile
            tensor[w.cluster.places[rank]] += pause
        return t + self._cycle, done, signals, (("MMA", done),)

    def _tmem(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, port_ns, latency, signals = step
        free = self._ports[w.port]
        self._ports[w.port] = free = (free if free > t else t) + port_ns
        done = free + latency
        t += self._cycle
        if self._timeline is not None:
            self._timeline.append(("tensor memory", w.sm, t, done, step[2]))
        return t, done, signals, (("tensor memory", free), ("tensor memory latency", done))

    def _store(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, slot, rows_ns, read_signals, signals = step
        now = t
        t += self._issue
        free = self._stores[w.sm]
        self._stores[w.sm] = free = (free if free > t else t) + rows_ns
        read = through = free + self._store_latency
        print_ = w.cluster.footprints[slot] if slot >= 0 else -1
        if print_ >= 0:
            through = self._memory.write(print_, t, read)
        causes = (("TMA store", read), ("L2 writes", through))
        if through > self.end:
            self.end, self.last = through, (w, w.pc, now, causes)
        if read_signals:
            self._signal(w, read_signals, read, (w, w.pc, now, causes[:1]))
        if self._timeline is not None:
            self._timeline.append(("TMA store", w.sm, t, through, step[2]))
        return t, through, signals, causes

    def _delay(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, pause, signals, name = step
        done = t + pause
        if self._timeline is not None:
            self._timeline.append((name, w.sm, t, done, step[2]))
        return done, done, signals, ((name, done),)

    def _read(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, slot, lanes_ns, latency, signals = step[:8]
        free = self._loads[w.sm]
        self._loads[w.sm] = through = there = free = (free if free > t else t) + lanes_ns
        print_ = w.cluster.footprints[slot] if slot >= 0 else -1
        if print_ >= 0:
            memory = self._memory
            through, there = memory.read(print_, memory.sizes[print_] * memory.shares[print_], t, free)
        done = there + latency
        if self._timeline is not None:
            self._timeline.append(("global memory", w.sm, t, done, step[2]))
        causes = (("load unit", free), ("L2", through), ("DRAM", there), ("load latency", done))
        return t + self._cycle, done, signals, causes

    def _write(self, w: WarpRun, step: Step, t: float) -> Booked:
        _, _, _, _, slot, lanes_ns, _, signals = step[:8]
        free = self._loads[w.sm]
        self._loads[w.sm] = done = free = (free if free > t else t) + lanes_ns
        print_ = w.cluster.footprints[slot] if slot >= 0 else -1
        if print_ >= 0:
            done = self._memory.write(print_, t, free)
        causes = (("load unit", free), ("L2 writes", done))
        if done > self.end:
            self.end, self.last = done, (w, w.pc, t, causes)
        if self._timeline is not None:
            self._timeline.append(("global memory", w.sm, t, done, step[2]))
        return t + self._cycle, done, signals, causes

    def _flag(self, w: WarpRun, step: Step, t: float) -> Booked:
        """Book the write of a flag: an addition is one of L2, whose latency passes before others see it."""
        if step[9].startswith("st"):
            return self._write(w, step, t)
        booked = self._read(w, step, t)
        if booked[1] > self.end:
            self.end, self.last = booked[1], (w, w.pc, t, booked[3])
        return booked

    def _remote(self, w: WarpRun, step: Step, t: float) -> Booked:  # noqa: ARG002
        done = t + step[4]
        return t + self._cycle, done, step[5], (("other CTA's shared memory", done),)

    def _dependents(self, w: WarpRun, step: Step, t: float) -> Booked:  # noqa: ARG002
        self.triggered += 1
        self.trigger = max(self.trigger, t)
        return t, t, step[4], (("issue", t),)

    def _grid_wait(self, w: WarpRun, step: Step, t: float) -> Booked:
        if self._before > t:
            t = self._before
            w.log.append((w.pc, t, None))
        return t, t, step[4], (("launch before", t),)
