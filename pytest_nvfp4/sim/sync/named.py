"""The sixteen named barriers of a CTA: ``bar`` and ``barrier{.cta}``, ``.sync``, ``.arrive`` and ``.red``.

Rules (PTX ISA, "bar, bar.cta, barrier, barrier.cta" and "exit"):

- A barrier counts warps, 32 threads each. A warp has arrived when all its live lanes have. Lanes may arrive at an
  unaligned barrier one after the other and at different instructions; at an aligned one (every ``bar``) they arrive
  together.
- The thread count is a multiple of 32 and not 0; ``.arrive`` requires one; the default is the whole CTA. A count above
  the CTA's threads cannot be met. Warps that use one barrier at one time must give the same count.
- ``.red`` must not be combined with ``.sync``, ``.arrive`` or another reduction at one active barrier.
- A barrier without a thread count does not wait for warps that have ended ("exit": exiting threads release a barrier
  that waits for all threads). A barrier with a count waits for that many threads, and ended warps do not count.

Violations are faults; too few arrivals are a deadlock that names the warps. A warp may arrive more than once before a
barrier completes; the ISA only warns of it.

Counters: ``barrier.cta.completions``, ``barrier.cta.arrivals`` (of warps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, Predicate, guard_mask, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp

_COUNT = 16
_WARP = 32


@dataclass(frozen=True, slots=True)
class NamedBarrierForm:
    """Parsed barrier instruction. ``operation`` is None for ``.sync`` and ``.arrive``."""

    what: str
    aligned: bool
    waits: bool
    operation: str | None
    at: int


class NamedBarrier:
    """One barrier: its arrivals and its waiting lanes.

    Attributes:
        expected: Threads that complete it, None before the first arrival.
        whole: Whether an arrival gave no thread count.
        arrivals: Warps that have arrived, one entry per arrival.
        partial: Lanes that have arrived, by warp of which other lanes are missing.
        inside: Lanes that wait in the current round, by warp.
        released: Lanes that may leave an earlier round, by warp.
        results: Result of the reduction, by warp.
        holding, threads: Arrived threads whose predicate is true, and all arrived threads.
    """

    def __init__(self, cta: Cta, number: int) -> None:
        self.cta = cta
        self.number = number
        self.waiters: list[Group] = []
        self.expected: int | None = None
        self.whole = False
        self.operation: str | None = None
        self.arrivals: list[int] = []
        self.partial: dict[int, int] = {}
        self.inside: dict[int, int] = {}
        self.released: dict[int, int] = {}
        self.results: dict[int, int] = {}
        self.holding = 0
        self.threads = 0

    def waiting_for(self) -> str:
        """Describe the arrived and the missing warps, for the report of a deadlock."""
        text = f"barrier {self.number}, {_WARP * len(self.arrivals)} of {self.expected} threads arrived"
        if self.arrivals:
            text += f" (warps {', '.join(map(str, self.arrivals))})"
        if self.partial:
            lanes = "; ".join(f"warp {warp} lanes {mask:#010x}" for warp, mask in self.partial.items())
            text += f", and of other warps only {lanes}"
        ended = [warp.index for warp in self.cta.warps if not warp.live and warp.index not in self.arrivals]
        if ended:
            text += f"; warps {', '.join(map(str, ended))} have ended without arriving"
        return text

    def enter(self, w: Warp, new: int, predicate: Predicate, count: int | None, form: NamedBarrierForm) -> None:
        """Record the arrival of lanes. Raises Fault if the count or the operation differs from that of other warps."""
        whole = _WARP * len(self.cta.warps)
        expected = whole if count is None else count
        if count is not None and (count % _WARP or count == 0):
            raise Fault(
                "barrier",
                f"{form.what}: {count} threads at barrier {self.number}, which must be a multiple of {_WARP} and not 0",
            )
        if expected > whole:
            raise Fault(
                "barrier",
                f"{form.what}: barrier {self.number} waits for {expected} threads, and the CTA has {whole}",
                hint="give a thread count that the CTA can meet",
            )
        active = bool(self.arrivals or self.partial)
        if active and expected != self.expected:
            raise Fault(
                "barrier",
                f"{form.what}: warp {w.index} gives a count of {expected} threads at barrier {self.number}, and warps "
                f"{self._others(w)} give {self.expected}",
                hint="use another barrier number if two uses overlap, or give equal thread counts",
            )
        if active and form.operation != self.operation:
            raise Fault(
                "barrier",
                f"{form.what}: barrier {self.number} is in use for "
                f"{'.red.' + self.operation if self.operation else '.sync and .arrive'} by warps {self._others(w)}",
                hint="use another barrier number: a reduction excludes other instructions at its barrier",
            )
        if (monitor := self.cta.launch.machine.monitor) is not None:
            monitor.barrier_arrived(w, new, self, form.at)
        self.expected, self.operation = expected, form.operation
        self.whole |= count is None
        self.holding += guard_mask(predicate, new).bit_count()
        self.threads += new.bit_count()
        if form.waits:
            self.inside[w.index] = self.inside.get(w.index, 0) | new
        self.partial[w.index] = self.partial.get(w.index, 0) | new
        self.check(w)

    def check(self, w: Warp) -> None:
        """Count a warp whose live lanes have all arrived, and complete the barrier if none is missing."""
        lanes = self.partial.get(w.index)
        if lanes is not None and not w.live & ~lanes:
            del self.partial[w.index]
            self.arrivals.append(w.index)
            self.cta.launch.counters["barrier.cta.arrivals"] += 1
            self.cta.launch.machine.changes += 1
        if self.expected is None or not self.arrivals:
            return
        missing = self.expected - _WARP * len(self.arrivals)
        if missing > 0 and self.whole and self.cta.exited:
            arrived = set(self.arrivals)
            missing -= _WARP * sum(not warp.live and warp.index not in arrived for warp in self.cta.warps)
        if missing <= 0:
            self._complete()

    def _complete(self) -> None:
        result = {None: 0, "popc": self.holding, "and": self.holding == self.threads, "or": self.holding > 0}
        for warp, lanes in self.inside.items():
            self.released[warp] = self.released.get(warp, 0) | lanes
            self.results[warp] = result[self.operation]
        self.expected = self.operation = None
        self.whole = False
        self.arrivals, self.inside, self.partial = [], {}, {}
        self.holding = self.threads = 0
        launch = self.cta.launch
        if launch.machine.monitor is not None:
            launch.machine.monitor.barrier_completed(self)
        if launch.machine.trace is not None:
            launch.machine.trace.phase(self.cta, self, f"barrier {self.number}")
        launch.counters["barrier.cta.completions"] += 1
        launch.machine.changes += 1
        wake_all(self)

    def _others(self, w: Warp) -> str:
        return ", ".join(str(i) for i in sorted({*self.arrivals, *self.partial} - {w.index})) or f"{w.index} earlier"


class NamedBarriers:
    """The named barriers of one CTA."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.barriers: list[NamedBarrier] = []

    def at(self, number: int) -> NamedBarrier:
        """Return a barrier by its checked number; barriers with lower numbers are created too."""
        while number >= len(self.barriers):
            self.barriers.append(NamedBarrier(self.cta, len(self.barriers)))
        return self.barriers[number]

    def state(self) -> list[tuple[Any, ...]]:
        """Return a copy of all that determines what later arrivals and waits do."""
        return [
            (
                *(each.expected, each.whole, each.operation, each.holding, each.threads, [*each.arrivals]),
                *map(dict, (each.partial, each.inside, each.released, each.results)),
            )
            for each in self.barriers
        ]

    def lanes_exited(self, w: Warp) -> None:
        """Check the barriers that only lanes which have now exited held up."""
        for barrier in self.barriers:
            if barrier.arrivals or barrier.partial:
                barrier.check(w)

    warp_exited = lanes_exited


Operands = tuple[Bits, Bits | None, Predicate]


def barrier(w: Warp, mask: int, operands: Operands, form: NamedBarrierForm, group: int) -> int | None:
    """Arrive, and wait unless the instruction is ``.arrive``.

    Returns the result of the reduction (0 without one), or None after the group was suspended.
    """
    numbers, count, predicate = operands
    number = numbers if isinstance(numbers, int) else uniform(numbers, mask)
    threads = count if count is None or isinstance(count, int) else uniform(count, mask)
    if number is None or (threads is None and count is not None):
        raise Unsupported(f"{form.what}: lanes of one warp give different barriers or thread counts")
    if number >= _COUNT:
        raise Fault("barrier", f"{form.what}: barrier {number}, which must be 0 to {_COUNT - 1}")
    target = w.cta.unit(NamedBarriers).at(number)
    free = target.released.get(w.index, 0) if form.waits else 0
    if mask & ~free:
        new = mask & ~(free | target.inside.get(w.index, 0)) if form.waits else mask
        if new:
            if form.aligned and w.live & ~mask:
                if w.live & ~mask & ~group:
                    w.wait_for(w.meeting)
                    return None
                raise Fault(
                    "divergence",
                    f"{form.what}: lanes {mask:#010x} execute it and lanes {w.live & ~mask:#010x} of the warp do not",
                    hint="execute an aligned barrier in all threads of the warp: use barrier.sync, or move it out of "
                    "the condition",
                )
            target.enter(w, new, predicate, threads, form)
        if not form.waits:
            return 0
        free = target.released.get(w.index, 0)
        if mask & ~free:
            w.wait_for(target)
            return None
    target.released[w.index] = free & ~mask
    if (monitor := w.cta.launch.machine.monitor) is not None:
        monitor.barrier_passed(w, mask, target, form.at)
    return target.results[w.index]


def _lowering(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.maybe("cta")
    kind = m.one("sync", "arrive", "red")
    operation = m.one("popc", "and", "or") if kind == "red" else None
    aligned = ins.root == "bar" or m.has("aligned")
    if operation is not None:
        m.one("u32" if operation == "popc" else "pred")
    m.done()
    form = NamedBarrierForm(ins.opcode, aligned, kind != "arrive", operation, e.at)
    operands = m.operands(*{"sync": (1, 2), "arrive": (2,), "red": (3, 4)}[kind])
    predicate = "True"
    if operation is not None:
        predicate = e.predicate(operands[-1])
        result, *operands = operands[:-1]  # type: ignore[assignment]
    count = e.value(operands[1], 32) if len(operands) == 2 else "None"
    number = e.value(operands[0], 32)
    call = e.call(barrier, "w", e.mask, f"({number}, {count}, {predicate})", e.constant(form, "form"), "m")
    name = e.temporary(call)
    e.park_if_none(name)
    if operation == "popc":
        e.assign(result, name, 32)
    elif operation is not None:
        e.assign_predicate(result, name)


LOWERINGS: Mapping[str, Lowering] = {"bar": _lowering, "barrier": _lowering}
BLOCKING = frozenset(f"{root}.{kind}" for root in ("bar", "barrier") for kind in ("cta", "sync", "arrive", "red"))
