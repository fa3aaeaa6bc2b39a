"""Times of records in nanoseconds: cycles of an SM's clock, placed by the timer that all SMs share.

Within an SM, times follow from ``%clock``. The clock's rate is that of the whole call, from all warps; the offset of an
SM is the largest of timer minus clock over its records, because the timer lags by up to one of its steps, never leads.
The simulator's registers count steps, and its ``%globaltimer`` has no high half: there, a step is the unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pytest_nvfp4.profiler.records import KernelRecord, WarpRecord

_WORD = 1 << 32
_LEAST_NS = 2_000
"""Time that the records must cover for the timer to give the clock's rate."""
_ASSUMED_GHZ = 1.755


class Clocks:
    """The clocks of a call.

    Attributes:
        unit: ``ns``, or ``steps`` for the simulator.
        ghz: Rate of the SMs' clocks; 0 for steps.
        problems: What a reader must know about the times.
    """

    def __init__(self, records: Sequence[KernelRecord]) -> None:
        warps = [warp for record in records for warp in record.warps]
        self.unit: Literal["ns", "steps"] = "ns" if any(warp.timer_ns >= _WORD for warp in warps) else "steps"
        self.problems: list[str] = []
        self.ghz = 0.0
        self._origin = min((warp.clock if self.unit == "steps" else warp.timer_ns for warp in warps), default=0)
        self._offsets: dict[int, float] = {}
        if self.unit == "ns":
            self.ghz = self._rate(warps)
            self._place(warps)

    def times(self, warp: WarpRecord) -> list[float]:
        """Return the times of a warp's events since the first warp's start."""
        cycles = self._cycles(warp)
        if self.unit == "steps":
            return [float(each - self._origin) for each in cycles]
        offset = self._offsets[warp.sm]
        base = self._based(warp)
        return [base + (each - warp.clock) / self.ghz + offset for each in cycles]

    @staticmethod
    def _cycles(warp: WarpRecord) -> list[int]:
        """Return the clock at each event without its wraps; 2^32 cycles are 2 s, and events are closer."""
        found, now = [], warp.clock
        for event in warp.events:
            now += (event.clock - now) % _WORD
            found.append(now)
        return found

    def _timers(self, warp: WarpRecord) -> list[int]:
        found, now = [], warp.timer_ns
        for event in warp.events:
            now += (event.timer_ns - now) % _WORD
            found.append(now - self._origin)
        return found

    def _rate(self, warps: Sequence[WarpRecord]) -> float:
        cycles = ns = 0
        for warp in warps:
            if warp.events:
                cycles += self._cycles(warp)[-1] - warp.clock
                ns += self._timers(warp)[-1] - (warp.timer_ns - self._origin)
        longest = max(
            (self._timers(warp)[-1] - warp.timer_ns + self._origin for warp in warps if warp.events), default=0
        )
        if longest < _LEAST_NS or not cycles:
            self.problems.append(
                f"no warp recorded for {_LEAST_NS / 1000:g} us, so the clock's rate is assumed to be {_ASSUMED_GHZ} GHz"
            )
            return _ASSUMED_GHZ
        return cycles / ns

    def _based(self, warp: WarpRecord) -> float:
        """Return the time of a warp's start by its SM's clock, up to the SM's offset."""
        return self._starts[warp.sm][0] + self._since(warp) / self.ghz

    def _since(self, warp: WarpRecord) -> int:
        """Return the cycles from the start of its SM's first warp, which wrap every 2 s, to its own start."""
        first_ns, first_clock = self._starts[warp.sm]
        near = (warp.timer_ns - self._origin - first_ns) * self.ghz
        cycles = (warp.clock - first_clock) % _WORD
        return cycles + round((near - cycles) / _WORD) * _WORD

    def _place(self, warps: Sequence[WarpRecord]) -> None:
        self._starts: dict[int, tuple[int, int]] = {}
        for warp in sorted(warps, key=lambda warp: warp.timer_ns):
            self._starts.setdefault(warp.sm, (warp.timer_ns - self._origin, warp.clock))
        for warp in warps:
            base = self._based(warp)
            lag = max(
                timer - (base + (cycles - warp.clock) / self.ghz)
                for timer, cycles in zip(
                    [warp.timer_ns - self._origin, *self._timers(warp)],
                    [warp.clock, *self._cycles(warp)],
                    strict=True,
                )
            )
            self._offsets[warp.sm] = max(lag, self._offsets.get(warp.sm, lag))
