"""The sixteen named barriers of a CTA: ``bar`` and ``barrier{.cta}``, ``.sync``, ``.arrive`` and ``.red``.

Rules (PTX ISA, "bar, bar.cta, barrier, barrier.cta" and "exit"):

- A barrier counts warps, 32 threads each. A warp has arrived when all its living lanes have: lanes of the unaligned
  form may come one after the other and from different places; lanes of an aligned one (every ``bar``) come together.
- The thread count is a multiple of 32 and not 0, and ``.arrive`` must have one; without one it is the whole CTA. Counts
  of more threads than the CTA has can never be met. Warps that use one barrier at one time must name the same count.
- ``.red`` must not meet ``.sync`` or ``.arrive``, or another reduction, at one active barrier.
- A barrier without a thread count does not wait for warps that have ended ("exit": a barrier that waits for all threads
  is released when only exiting ones hold it up). One with a count waits for that count, even if it is the whole CTA's:
  ended warps are not counted and not forgiven.

All of these are faults, and too few arrivals are a deadlock that names the warps. A warp may arrive more than once
before a barrier completes; the ISA only warns of it.

Counters: ``barrier.cta.completions``, ``barrier.cta.arrivals`` (of warps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, Predicate, guard_mask, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Group, Warp

__all__ = ["BLOCKING", "LOWERINGS", "NamedBarrier", "NamedBarriers"]

_COUNT = 16
_WARP = 32


@dataclass(frozen=True, slots=True)
class NamedBarrierForm:
    """What a barrier instruction does. ``operation`` is None for ``.sync`` and ``.arrive``."""

    what: str
    aligned: bool
    waits: bool
    operation: str | None
    at: int


class NamedBarrier:
    """One barrier: who has arrived at it, and who waits.

    Attributes:
        expected: Threads that complete it, None while nobody has arrived.
        arrivals: Warps that have arrived, one entry an arrival.
        inside: By warp, the lanes that wait in the present round.
        released: By warp, the lanes that may leave an earlier round.
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
        """Who has arrived and who is missing."""
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
        """Lanes arrive. Raises Fault for a count or an operation that does not fit the others'."""
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
                f"{form.what}: barrier {self.number} waits for {expected} threads and the CTA has {whole}",
                hint="the thread count can never be met",
            )
        active = bool(self.arrivals or self.partial)
        if active and expected != self.expected:
            raise Fault(
                "barrier",
                f"{form.what}: warp {w.index} names {expected} threads at barrier {self.number}, and warps "
                f"{self._others(w)} name {self.expected}",
                hint="two uses of one barrier number overlap, or the thread counts differ",
            )
        if active and form.operation != self.operation:
            raise Fault(
                "barrier",
                f"{form.what}: barrier {self.number} is in use for "
                f"{'.red.' + self.operation if self.operation else '.sync and .arrive'} by warps {self._others(w)}",
                hint="a reduction must not meet other barrier instructions at one barrier",
            )
        monitor = self.cta.launch.machine.monitor
        if monitor is not None:
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
        """Count a warp whose living lanes have all arrived, and complete the barrier if it was the last."""
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
        waiters, self.waiters = self.waiters, []
        for group in waiters:
            group.wake()

    def _others(self, w: Warp) -> str:
        return ", ".join(str(i) for i in sorted({*self.arrivals, *self.partial} - {w.index})) or f"{w.index} earlier"


class NamedBarriers:
    """The named barriers of one CTA."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.barriers: list[NamedBarrier] = []

    def at(self, number: int) -> NamedBarrier:
        """A barrier by its number, which was checked; those before it are made with it."""
        while number >= len(self.barriers):
            self.barriers.append(NamedBarrier(self.cta, len(self.barriers)))
        return self.barriers[number]

    def lanes_exited(self, w: Warp) -> None:
        """Lanes of a warp have ended: they hold up no barrier any longer."""
        for barrier in self.barriers:
            if barrier.arrivals or barrier.partial:
                barrier.check(w)

    warp_exited = lanes_exited


Operands = tuple[Bits, Bits | None, Predicate]


def barrier(w: Warp, mask: int, operands: Operands, form: NamedBarrierForm, group: int) -> int | None:
    """Arrive, and for all but ``.arrive`` wait. The result of the reduction (0 without), or None while waiting."""
    number, count, predicate = operands
    one = number if isinstance(number, int) else uniform(number, mask)
    threads = count if count is None or isinstance(count, int) else uniform(count, mask)
    if one is None or (threads is None and count is not None):
        raise Unsupported(f"{form.what}: lanes of one warp name different barriers or thread counts")
    if one >= _COUNT:
        raise Fault("barrier", f"{form.what}: barrier {one}, and there are 0 to {_COUNT - 1}")
    found = w.cta.unit(NamedBarriers).at(one)
    free = found.released.get(w.index, 0) if form.waits else 0
    if mask & ~free:
        new = mask & ~(free | found.inside.get(w.index, 0)) if form.waits else mask
        if new:
            if form.aligned and w.live & ~mask:
                if w.live & ~mask & ~group:
                    w.await_lanes()
                    return None
                raise Fault(
                    "divergence",
                    f"{form.what}: lanes {mask:#010x} execute it and lanes {w.live & ~mask:#010x} of the warp do not",
                    hint="an aligned barrier must be executed by all threads; use barrier.sync, or move it out of the "
                    "condition",
                )
            found.enter(w, new, predicate, threads, form)
        if not form.waits:
            return 0
        free = found.released.get(w.index, 0)
        if mask & ~free:
            w.wait_for(found)
            return None
    found.released[w.index] = free & ~mask
    monitor = w.cta.launch.machine.monitor
    if monitor is not None:
        monitor.barrier_passed(w, mask, found, form.at)
    return found.results[w.index]


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
