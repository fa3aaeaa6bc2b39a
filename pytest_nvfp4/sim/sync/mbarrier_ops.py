"""The mbarrier instructions (PTX ISA, "mbarrier.init" to "mbarrier.try_wait").

- Each active lane executes: 32 lanes that arrive are 32 arrivals, in lane order. Lanes of one instruction that complete
  two or more phases are a fault: no thread can have waited in between, so one lane should have arrived instead.
- ``.shared::cluster`` addresses select a CTA. Waits and state results exist only for barriers of the own CTA.
- A state (result of arrive) is an opaque value that encodes the barrier and its phase. A wait on a state of another
  barrier, or of a phase older than the one just completed, is undefined and a fault. ``mbarrier.pending_count`` accepts
  only the state of a ``.noComplete`` arrive.
- A parity other than 0 and 1 is not valid in the ISA, and a warning: its low bit counts, as in the code of ptxas 13 for
  sm_90a and sm_100a (``parity << 31``), which Triton's warp specialisation for sm_90 depends on (-1).
- ``.noComplete`` must not complete the phase.
- ``try_wait(P)`` is True iff ``(phase & 1) != P`` ("the phase of parity P is complete"). Otherwise the lanes wait for
  the phase to complete, regardless of the suspend-time hint. They return False only if no other group can run
  (``Group.forced``), and in an impatient schedule (``Asynchronous.patient``) once before they wait, which finds a
  ``try_wait`` with an ignored result. ``test_wait`` waits in the same way, because a loop around it must not starve the
  other warps; the ISA does not specify when it executes. If the result differs by lane, it is returned at once. A wait
  whose result nothing in the kernel reads neither waits nor orders, for it may return False: so remains the peek of a
  pipeline that lost its wait.
- Memory ordering (``.acquire``, ``.release``, ``.relaxed``, scopes) has no effect on values here.

Counter: ``mbarrier.waits`` (successful waits, per warp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, Predicate, lanes, uniform, value_in
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.sync import mbarrier
from pytest_nvfp4.sim.sync.addresses import locate, shared_address
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier, MbarrierFile

# Layout of a state: bits 61-63 _MAGIC, 60 noComplete, 44-59 index / 8, 24-43 pending count, 0-23 phase. The ISA leaves
# the format open.
_MAGIC = 0b101
_PHASE = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class MbarrierForm:
    """Parsed mbarrier instruction."""

    what: str
    at: int
    cluster: bool = False
    generic: bool = False
    expects: bool = False
    """``.expect_tx``: the amount is bytes; the count of an arrive is 1."""
    drop: bool = False
    completes: bool = True
    state: bool = False
    """Whether the state is used."""
    unread: bool = False
    """Whether nothing in the kernel reads the result of the wait."""


class AnyOf:
    """Several mbarriers that lanes of one group wait for; a change of any resumes the group."""

    may_give_up = True

    def __init__(self, barriers: list[Mbarrier]) -> None:
        self.barriers = barriers
        self.waiters: list[Group] = []

    def suspicion(self) -> int:
        """Return the rank of the most suspect barrier."""
        return min(barrier.suspicion() for barrier in self.barriers)

    def waiting_for(self) -> str:
        """Describe the states of all barriers."""
        return "one of: " + "; ".join(barrier.waiting_for() for barrier in self.barriers)


def init(w: Warp, mask: int, address: Bits, count: Bits, form: MbarrierForm) -> None:
    """Execute mbarrier.init in each lane.

    Several lanes may initialise one barrier with equal counts, as NVIDIA's kernels do; different counts are a fault.
    """
    seen: dict[int, int] = {}
    for lane in lanes(mask):
        place, number = value_in(address, lane), value_in(count, lane)
        if place in seen:
            if seen[place] == number:
                continue
            raise Fault(
                "multi-lane",
                f"{form.what}: several lanes initialise the barrier at {place:#x} at once, with counts {seen[place]} "
                f"and {number}",
                hint="let one lane, of <elect.sync> or thread 0, execute the initialisation",
            )
        seen[place] = number
        owner, index = _locate(w, place, form)
        made = w.cta.launch.kernel.instructions[form.at]
        barrier = owner.init(index, number, what=mbarrier.actor_name((w, form.at)), made=made)
        if w.cta.launch.machine.monitor is not None:
            w.cta.launch.machine.monitor.mbarrier_initialised(barrier, (w, form.at))
        if w.cta.launch.machine.barrier_log is not None:
            w.cta.launch.machine.barrier_log.add("init", barrier, (w, form.at), number)


def invalidate(w: Warp, mask: int, address: Bits, form: MbarrierForm) -> None:
    """Execute mbarrier.inval in each lane."""
    for lane in lanes(mask):
        owner, index = _locate(w, value_in(address, lane), form)
        owner.invalidate(index, what=mbarrier.actor_name((w, form.at)))


def count_bytes(w: Warp, mask: int, address: Bits, size: Bits, form: MbarrierForm) -> None:
    """Execute mbarrier.expect_tx, or complete_tx, which counts bytes without moving data, in each lane."""
    here = (w, form.at)
    count = mbarrier.expect_tx if form.expects else partial(mbarrier.complete_tx, source=here)
    for lane in lanes(mask):
        count(_barrier(w, value_in(address, lane), form), _signed(size, lane, form), who=here)


def arrive(w: Warp, mask: int, address: Bits, amount: Bits, form: MbarrierForm) -> Bits:
    """Execute mbarrier.arrive or arrive_drop in each lane; return the states before the arrivals (0 if unused)."""
    common = address if isinstance(address, int) else uniform(address, mask)
    many = amount if isinstance(amount, int) else uniform(amount, mask)
    number = mask.bit_count()
    if common is not None and many is not None:
        barrier = _barrier(w, common, form)
        count = 1 if form.expects else many
        if number * count <= barrier.pending and form.completes and not form.drop:
            if form.expects:
                mbarrier.expect_tx(barrier, many * number, who=(w, form.at))
            state = _state(barrier, form) if form.state else 0
            mbarrier.arrive(barrier, number * count, who=(w, form.at), lanes=mask)
            return state
    states = np.zeros(32, np.uint64)
    phases: dict[Mbarrier, int] = {}
    for lane in lanes(mask):
        barrier = _barrier(w, value_in(address, lane), form)
        start = phases.setdefault(barrier, barrier.phase)
        value = value_in(amount, lane)
        if form.expects:
            mbarrier.expect_tx(barrier, value, who=(w, form.at))
            value = 1
        states[lane] = _state(barrier, form)
        _arrive_one(w, barrier, value, form, mask)
        if barrier.phase > start + 1:
            raise Fault(
                "mbarrier",
                f"the {number} lanes of one {form.what} completed {barrier.phase - start} phases of the "
                f"{barrier.name}, which expects {barrier.count} arrivals per phase",
                hint="arrive in one elected lane, or make the barrier's arrival count the number of threads",
            )
    return states


def _arrive_one(w: Warp, barrier: Mbarrier, count: int, form: MbarrierForm, mask: int) -> None:
    if form.drop:
        if count > barrier.count:
            raise Fault(
                "mbarrier", f"{form.what} of {count} from the {barrier.name}, which expects {barrier.count} arrivals"
            )
        barrier.count -= count
    if not form.completes and count == barrier.pending and not barrier.tx:
        raise Fault(
            "mbarrier",
            f"{form.what}: the arrival of {count} completes the phase of the {barrier.name} ({barrier.state()})",
            hint="a .noComplete arrival must leave arrivals pending",
        )
    mbarrier.arrive(barrier, count, who=(w, form.at), lanes=mask)


def wait_parity(w: Warp, mask: int, address: Bits, parity: Bits, form: MbarrierForm) -> Predicate | None:
    """Return whether the phase of a parity is complete, or None after the group was suspended."""
    if isinstance(address, int) and isinstance(parity, int) and not form.unread:
        shared = w.cta.shared
        barrier = w.cta.unit(MbarrierFile).barriers.get(address - shared.base) or _barrier(w, address, form)
        if parity > 1:
            parity = _low_bit(w, parity, form)
        if barrier.phase & 1 != parity:
            barrier.pass_wait(w, mask, form.at)
            if refused := w.cta.unit(MbarrierFile).refused:
                refused.discard((w.current, form.at))
            w.cta.launch.counters["mbarrier.waits"] += 1
            if w.cta.launch.machine.monitor is not None:
                w.cta.launch.machine.monitor.mbarrier_waited(w, mask, barrier, form.at)
            if (log := w.cta.launch.machine.barrier_log) is not None:
                log.waited("wait", barrier, w, form.at, parity)
            return True
        if w.current.forced or _gives_up(w, form):
            if w.cta.launch.machine.monitor is not None:
                w.cta.launch.machine.monitor.mbarrier_refused(w, mask, barrier, form.at)
            if (log := w.cta.launch.machine.barrier_log) is not None:
                log.waited("refused", barrier, w, form.at, parity)
            return False
        w.wait_for(barrier)
        return None

    def complete(lane: int, barrier: Mbarrier) -> bool:
        wanted = parity if isinstance(parity, int) else int(parity[lane])
        if wanted > 1:
            wanted = _low_bit(w, wanted, form)
        return barrier.phase & 1 != wanted

    return _wait(w, mask, address, complete, form)


def wait_state(w: Warp, mask: int, address: Bits, state: Bits, form: MbarrierForm) -> Predicate | None:
    """Return whether the phase of a state is complete, or None after the group was suspended."""

    def complete(lane: int, barrier: Mbarrier) -> bool:
        value = state if isinstance(state, int) else int(state[lane])
        phase, place = value & _PHASE, (value >> 44 & 0xFFFF) << 3
        if value >> 61 != _MAGIC or place != barrier.index & 0x7FFF8:
            raise Fault(
                "mbarrier",
                f"{form.what}: {value:#x} is not a state of the {barrier.name}",
                hint="the state must be the result of an arrive at the same barrier",
            )
        behind = (barrier.phase - phase) & _PHASE
        if behind > 1:
            raise Fault(
                "mbarrier",
                f"{form.what}: the state is of phase {phase} and the {barrier.name} is in phase {barrier.phase}",
                hint="wait for a state in its phase or in the next one",
            )
        return behind == 1

    return _wait(w, mask, address, complete, form)


def _wait(
    w: Warp, mask: int, address: Bits, complete: Callable[[int, Mbarrier], bool], form: MbarrierForm
) -> Predicate | None:
    answers = np.zeros(32, np.bool_)
    pending: list[Mbarrier] = []
    seen: dict[Mbarrier, int] = {}
    for lane in lanes(mask):
        barrier = _barrier(w, value_in(address, lane), form)
        if complete(lane, barrier) and not form.unread:
            answers[lane] = True
            barrier.pass_wait(w, 1 << lane, form.at)
            seen[barrier] = seen.get(barrier, 0) | 1 << lane
        elif barrier not in pending:
            pending.append(barrier)
    if (monitor := w.cta.launch.machine.monitor) is not None:
        for barrier, which in seen.items():
            monitor.mbarrier_waited(w, which, barrier, form.at)
    if (log := w.cta.launch.machine.barrier_log) is not None:
        for barrier in seen:
            log.waited("wait", barrier, w, form.at, -1)
    w.cta.launch.counters["mbarrier.waits"] += bool(seen)
    if seen and (refused := w.cta.unit(MbarrierFile).refused):
        refused.discard((w.current, form.at))
    if not pending:
        return True
    if seen:
        return answers
    if form.unread or w.current.forced or _gives_up(w, form):
        return False
    if len(pending) == 1:
        w.wait_for(pending[0])
        return None
    w.wait_for(AnyOf(pending))
    for barrier in pending:
        barrier.waiters.append(w.current)
    return None


def _gives_up(w: Warp, form: MbarrierForm) -> bool:
    """Return whether an unsuccessful wait returns False: in an impatient schedule, once until it succeeds."""
    if w.cta.launch.machine.asynchronous.patient:
        return False
    refused = w.cta.unit(MbarrierFile).refused
    waiting = (w.current, form.at)
    if waiting in refused:
        return False
    refused.add(waiting)
    return True


def pending_count(mask: int, state: Bits) -> Bits:
    """Return the pending count in the state of a ``.noComplete`` arrive."""
    if isinstance(state, int):
        return _pending_in(state)
    counts = np.zeros(32, np.uint32)
    for lane in lanes(mask):
        counts[lane] = _pending_in(int(state[lane]))
    return counts


def _pending_in(state: int) -> int:
    if state >> 61 != _MAGIC or not state >> 60 & 1:
        raise Fault(
            "mbarrier",
            f"mbarrier.pending_count of {state:#x}, which is not the state of an arrive.noComplete",
            hint="PTX ISA, 'mbarrier.pending_count': any other state is undefined",
        )
    return state >> 24 & mbarrier.COUNT_LIMIT


def _state(barrier: Mbarrier, form: MbarrierForm) -> int:
    state = _MAGIC << 61 | (barrier.index >> 3 & 0xFFFF) << 44 | barrier.phase & _PHASE
    return state if form.completes else state | 1 << 60 | barrier.pending << 24


def _signed(size: Bits, lane: int, form: MbarrierForm) -> int:
    value = value_in(size, lane)
    if value >> 31:
        raise Fault("mbarrier", f"{form.what}: {value - (1 << 32)} bytes, which must be 0 to {mbarrier.COUNT_LIMIT}")
    return value


def _low_bit(w: Warp, parity: int, form: MbarrierForm) -> int:
    """Return the parity that a wait takes of an operand with further bits, and report them."""
    w.cta.launch.report(
        "parity",
        f"{form.what}: parity {parity}, which the PTX ISA requires to be 0 or 1: taken for {parity & 1}, its low bit, "
        "as the code of ptxas does",
        hint="the phase of a pipeline state is one bit: toggle it with ^ 1 when the stage index wraps",
    )
    return parity & 1


def _locate(w: Warp, address: int, form: MbarrierForm) -> tuple[MbarrierFile, int]:
    place = shared_address(address, generic=form.generic, what=form.what)
    owner, index = locate(w.cta, place, mbarrier.SIZE, cluster=form.cluster, align=mbarrier.SIZE, what=form.what)
    return owner.unit(MbarrierFile), index


def _barrier(w: Warp, address: int, form: MbarrierForm) -> Mbarrier:
    owner, index = _locate(w, address, form)
    return owner.at(index, what=form.what)
