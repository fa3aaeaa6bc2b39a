"""Mbarrier objects, and operations on them by any unit (``resolve``, ``arrive``, ``expect_tx``, ``complete_tx``).

Rules (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"):

- An mbarrier is an opaque 64-bit object in shared memory, aligned to 8 bytes. It holds the phase, the pending arrivals
  of the phase, the expected arrivals of the next one (1 to 2^20-1 at ``init``; pending 0 to 2^20-1), and the tx-count
  of the phase (-(2^20-1) to 2^20-1). Leaving a range is a fault.
- expect-tx adds to the tx-count and complete-tx subtracts; bytes may arrive before they are announced. The phase is
  complete when pending and tx-count are both 0; the next one starts with the expected arrivals pending.
- Operations other than ``mbarrier.init`` need an initialised mbarrier; only mbarrier operations may access it until
  ``mbarrier.inval``; ``init`` over a live mbarrier is undefined. Violations are faults, but for ``init`` over one that
  is idle after completed phases, a warning.
- An arrive of more than the pending count is undefined: a fault.

A CTA that ends, or an mbarrier that is invalidated, with bytes outstanding is a finding, and a deadlock report names
such bytes. Bytes that completed a phase which no wait of the CTA observed are a finding too: both events must come
behind the copies.

Counters: ``mbarrier.arrivals`` (of threads and units), ``mbarrier.phases`` (completed), ``mbarrier.expected_bytes``,
``mbarrier.arrived_bytes``.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.source import given_name, place_of, quoted
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.sync.addresses import locate

Actor = str | tuple["Warp", int]
"""Cause of an mbarrier operation: the name of a unit, or a warp and the index of its instruction."""

COUNT_LIMIT = (1 << 20) - 1
"""Largest arrival count and largest magnitude of a tx-count (PTX ISA, "Contents of the mbarrier object")."""
SIZE = 8
_RECENT_LIMIT = 8
_HINT_COUNT = "look at the arrival count of the barrier's init, and at how many threads arrive (one elected, or all?)"


class ArrivalRecord(NamedTuple):
    """Arrivals at an mbarrier, for messages."""

    who: Actor
    number: int
    phase: int


class PassedWait(NamedTuple):
    """A wait that succeeded: the completed phases at that time, the instruction, and the lanes."""

    phase: int
    at: int
    lanes: int


class Mbarrier:
    """One mbarrier.

    Attributes:
        cta, index: Its CTA and its index in the CTA's shared memory.
        count: Arrivals that the next phase expects.
        pending: Arrivals still missing in the current phase.
        tx: Bytes announced minus bytes arrived, in the current phase.
        phase: Phases completed since init; ``.parity`` waits compare its parity.
        announced, arrived: Bytes of the current phase.
        announcer: Warp and instruction that announced bytes last, if known.
        brought: Warp and instruction of the last copy of TMA that delivered bytes, if any.
        sent: Warp and instruction that sent the bytes delivered last, if any.
        loaded: Completed phases when a phase with bytes last completed, 0 if never.
        seen: Completed phases when a wait of the CTA last succeeded, 0 if never.
        fresh: Warp and instruction of the first wait that passed before a phase was complete, if any.
        accepted: By warp, its last wait that succeeded.
        repeated: Warp and instruction of the first wait that succeeded twice for one phase, if any.
        arrivers: Everything that has arrived, in order of its first arrival.
        committers: Warps whose ``tcgen05.commit`` has arrived, in the same order.
        recent: The last arrivals.
        made: Instruction that initialised it, if known.
        valid: False after invalidation.
        waiters: Groups that wait for the phase to complete.
    """

    __slots__ = (
        "accepted", "announced", "announcer", "arrived", "arrivers", "brought", "committers", "count", "cta", "fresh",
        "index", "loaded", "made", "pending", "phase", "recent", "repeated", "seen", "sent", "tx", "valid", "waiters",
    )  # fmt: skip

    def __init__(self, cta: Cta, index: int, count: int, *, made: Instruction | None = None) -> None:
        self.cta = cta
        self.index = index
        self.made = made
        self.count = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        self.announced = 0
        self.arrived = 0
        self.announcer: tuple[Warp, int] | None = None
        self.brought: tuple[Warp, int] | None = None
        self.sent: tuple[Warp, int] | None = None
        self.fresh: tuple[Warp, int] | None = None
        self.accepted: dict[Warp, PassedWait] = {}
        self.repeated: tuple[Warp, int] | None = None
        self.arrivers: dict[Actor, None] = {}
        self.committers: dict[Warp, None] = {}
        self.loaded = 0
        self.seen = 0
        self.recent: deque[ArrivalRecord] = deque(maxlen=_RECENT_LIMIT)
        self.valid = True
        self.waiters: list[Group] = []

    may_give_up = True
    """Whether a wait for it may return False (``try_wait``)."""

    @property
    def name(self) -> str:
        """Name in messages."""
        rank = f" of CTA rank {self.cta.rank}" if len(self.cta.cluster.ctas) > 1 else ""
        made = f", initialised at {quoted(self.made)}" if self.made is not None else ""
        named = f"of {self.given_name!r}, " if self.given_name else ""
        address = self.cta.shared.base + self.index
        return f"mbarrier at byte {self.index} of shared memory{rank} ({named}address {address:#x}{made})"

    @property
    def given_name(self) -> str:
        """The name that the author gave its pipeline, if any."""
        return given_name(self.made) if self.made is not None else ""

    def pass_wait(self, w: Warp, mask: int, at: int) -> None:
        """Record a successful wait of some lanes of a warp."""
        self.seen = self.phase
        passed = PassedWait(self.phase, at, mask)
        if self.accepted.get(w) == passed and self.repeated is None:
            self.repeated = w, at
        self.accepted[w] = passed
        if not self.phase and self.fresh is None:
            self.fresh = w, at

    def suspicion(self) -> int:
        """Rank the barrier as the cause of a deadlock (see ``Waitable``)."""
        if self.tx and (self.arrived or not self.pending):
            return 0
        return 1 if self.pending < self.count else 2

    def state(self) -> str:
        """Describe the phase, the pending arrivals and the bytes."""
        text = f"phase {self.phase} (parity {self.phase & 1}): {self.pending} of {self.count} arrivals pending"
        if self.tx > 0:
            text += f", waits for {self.tx} more bytes: expect_tx announced {self.announced}, {self.arrived} arrived"
        elif self.tx < 0:
            text += f", {-self.tx} bytes too many: {self.arrived} arrived, expect_tx announced {self.announced}"
        elif self.announced:
            text += f", all {self.announced} bytes arrived"
        return text

    def waiting_for(self) -> str:
        """Describe the name, the state and the last arrivals, for the report of a deadlock."""
        text = f"{self.name}, {self.state()}"
        if self.recent:
            last = [f"{actor_name(who)} x{number} in phase {phase}" for who, number, phase in list(self.recent)[-4:]]
            return f"{text}; last arrivals: {'; '.join(last)}"
        return f"{text}; nothing ever arrived"


class MbarrierFile:
    """Mbarriers of one CTA by index in its shared memory: ``cta.unit(MbarrierFile)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.barriers: dict[int, Mbarrier] = {}
        self.invalidated: set[int] = set()
        self.refused: set[tuple[Group, int]] = set()
        """Waits, by group and instruction, that returned False and have not succeeded since."""

    def init(self, index: int, count: int, *, what: str, made: Instruction | None = None) -> Mbarrier:
        """Initialise an mbarrier at a checked index.

        A live mbarrier there is undefined behaviour (PTX ISA, "mbarrier.init"). One that has completed phases and is
        idle may be memory that is used again on purpose: a warning. Raises Fault: a bad count, or another live one.
        """
        if not 1 <= count <= COUNT_LIMIT:
            raise Fault("mbarrier", f"{what}: arrival count {count}, which must be 1 to {COUNT_LIMIT}")
        live = self.barriers.get(index)
        if live is not None and (live.count, live.phase, live.tx, live.pending) == (count, 0, 0, count):
            # DSL 4.4 initialises the allocator barrier of a CTA pair twice, before any use.
            return live
        if live is not None and live.phase and not live.waiters and (live.tx, live.pending) == (0, live.count):
            self._check_seen(live, f"{what}:", "after it", "the memory of the mbarrier is used again")
            self.cta.launch.report(
                "mbarrier-reuse",
                f"{what}: the {live.name} is there, idle and never invalidated ({live.state()})",
                hint="PTX requires mbarrier.inval before the memory of an mbarrier is used again; see that no warp "
                "waits for the old one",
            )
            live.valid = False
            del self.cta.shared.opaque[index]
        elif live is not None:
            raise Fault(
                "mbarrier",
                f"{what}: a live {live.name} is there ({live.state()})",
                hint="initialise a barrier once, or invalidate it first (mbarrier.inval); check for two barriers that "
                "share memory, and for several warps that initialise",
            )
        shared = self.cta.shared
        shared.refuse_opaque(index, index + SIZE, what=what)
        barrier = self.barriers[index] = Mbarrier(self.cta, index, count, made=made)
        shared.opaque[index] = (SIZE, "the mbarrier")
        shared.written[index : index + SIZE] = False
        self.invalidated.discard(index)
        self.cta.launch.machine.changes += 1
        return barrier

    def invalidate(self, index: int, *, what: str) -> None:
        """Invalidate an mbarrier; its bytes become uninitialised memory."""
        barrier = self.at(index, what=what)
        self._check_end(barrier, f"{what}:", "at an invalid mbarrier", "mbarrier.inval")
        del self.barriers[index]
        del self.cta.shared.opaque[index]
        self.invalidated.add(index)
        barrier.valid = False
        self.cta.launch.machine.changes += 1
        wake_all(barrier)

    def at(self, index: int, *, what: str) -> Mbarrier:
        """Return the live mbarrier at an index. Raises Fault if there is none."""
        barrier = self.barriers.get(index)
        if barrier is not None:
            return barrier
        address = self.cta.shared.base + index
        if index in self.invalidated:
            raise Fault(
                "mbarrier",
                f"{what}: the mbarrier at byte {index} of shared memory (address {address:#x}) was invalidated",
                hint="initialise it again before use",
            )
        near = ", ".join(str(other) for other in sorted(self.barriers, key=lambda i: abs(i - index))[:4])
        raise Fault(
            "uninitialised",  # as a load of shared memory: the initialisation may come later
            f"{what}: no mbarrier was initialised at byte {index} of shared memory (address {address:#x}); "
            + (f"the nearest are at bytes {near}" if near else "the CTA has none"),
            hint="check the barrier's address and stage, mbarrier.init, and the CTA or cluster barrier between init "
            "and first use",
        )

    def at_exit(self) -> None:
        """Report bytes that are outstanding, and bytes that arrived without a wait for them."""
        for barrier in self.barriers.values():
            arrival = "after the CTA has ended, in memory of the next CTA"
            self._check_end(barrier, "the CTA ended, and", arrival, "the end of the CTA")

    def _check_end(self, barrier: Mbarrier, event: str, arrival: str, limit: str) -> None:
        """Report bytes that are outstanding when ``event`` ends a barrier's use, or bytes that nothing waited for.

        Bytes of a phase without any copy and without waiters are not reported: the producer tail of NVIDIA's pipelines
        announces such bytes on purpose (DSL 4.4).
        """
        if not barrier.tx or not (barrier.arrived or barrier.waiters):
            self._check_seen(barrier, event, arrival, limit)
            return
        grid = self.cta.launch
        last = {"announced": barrier.announcer, "sent": barrier.sent}
        told = [f"; {grid.place(who[1])} {what} the last bytes" for what, who in last.items() if who is not None]
        grid.report(
            "mbarrier",
            f"{event} the {barrier.name} is unbalanced: {barrier.state()}{''.join(told)}",
            hint="compare the bytes given to expect_tx with the bytes of the copies that signal this barrier",
            where=self._where(barrier.announcer or barrier.sent),
        )

    def _check_seen(self, barrier: Mbarrier, event: str, arrival: str, limit: str) -> None:
        """Report bytes that completed a phase, and that nothing waited for before ``event`` ended the use of a barrier.

        ``arrival`` and ``limit`` are, for the message, when they may arrive, and what a wait must precede.
        """
        if barrier.loaded > barrier.seen:
            self.cta.launch.report(
                "in-flight",
                f"{event} nothing waited for the bytes that completed phase {barrier.loaded - 1} of the "
                f"{barrier.name}: on a device they may arrive {arrival}",
                hint=f"wait for every copy before {limit}; compare the iterations of the loading warp with those of "
                "the consuming warp",
                where=self._where(barrier.sent),
            )

    def _where(self, who: tuple[Warp, int] | None) -> Where:
        """Return the place of an instruction of a warp, or the CTA if it is unknown."""
        if who is None:
            return self.cta.launch.where_cta(self.cta)
        warp, at = who
        return warp.cta.launch.where(warp, at)


def resolve(w_or_cta: Warp | Cta, shared_address: int, *, cluster: bool, what: str) -> Mbarrier:
    """Return the live mbarrier at a shared address.

    Args:
        shared_address: 32 bits; with ``cluster``, bits 24 and up select the CTA.
        what: Operation, for messages.

    Raises:
        Fault: misaligned, out of bounds, another CTA's without ``cluster``, not initialised, or invalidated.
    """
    cta = w_or_cta if isinstance(w_or_cta, Cta) else w_or_cta.cta
    owner, index = locate(cta, shared_address, SIZE, cluster=cluster, align=SIZE, what=what)
    return owner.unit(MbarrierFile).at(index, what=what)


def arrive(barrier: Mbarrier, count: int = 1, *, who: Actor = "", lanes: int = FULL) -> None:
    """Add ``count`` arrivals; complete the phase if none is pending and no bytes are outstanding.

    ``lanes``: the lanes of the warp that arrive.

    Raises:
        Fault: more arrivals than are pending, a count out of range, or an invalidated barrier.
    """
    _check(barrier, who)
    if not 1 <= count <= COUNT_LIMIT:
        raise Fault("mbarrier", f"{actor_name(who)}: arrival count {count}, which must be 1 to {COUNT_LIMIT}")
    if count > barrier.pending:
        raise Fault(
            "mbarrier",
            f"{actor_name(who)}: {count} arrivals at the {barrier.name}, of which only {barrier.pending} are pending "
            f"({barrier.waiting_for()})",
            hint=_HINT_COUNT,
        )
    barrier.recent.append(ArrivalRecord(who, count, barrier.phase))
    barrier.arrivers[who] = None
    launch = barrier.cta.launch
    launch.counters["mbarrier.arrivals"] += count
    if launch.machine.monitor is not None:
        launch.machine.monitor.mbarrier_arrived(barrier, who, count, lanes)
    if launch.machine.barrier_log is not None:
        launch.machine.barrier_log.add("arrive", barrier, who, count)
    barrier.pending -= count
    if not barrier.pending and not barrier.tx:
        _complete(barrier)


def expect_tx(barrier: Mbarrier, size: int, *, who: Actor = "") -> None:
    """Announce ``size`` bytes for the current phase (0 to 2^20-1). Raises Fault if the tx-count leaves its range."""
    _check(barrier, who)
    _check_bytes(size, who, "expect_tx")
    barrier.tx += size
    barrier.announced += size
    if not isinstance(who, str):
        barrier.announcer = who
    launch = barrier.cta.launch
    launch.counters["mbarrier.expected_bytes"] += size
    if launch.machine.barrier_log is not None:
        launch.machine.barrier_log.add("expect", barrier, who, size)
    if barrier.tx > COUNT_LIMIT:
        raise _tx_range(barrier, who, "expect_tx counts bytes; it may have run for several stages, or in all lanes")
    if not barrier.pending and not barrier.tx and size:
        _complete(barrier)


def complete_tx(barrier: Mbarrier, size: int, *, who: Actor, source: tuple[Warp, int]) -> None:
    """Deliver ``size`` bytes; complete the phase if nothing else is outstanding.

    Args:
        source: Warp and instruction that sent them.

    Raises:
        Fault: the tx-count leaves its range.
    """
    _check(barrier, who)
    _check_bytes(size, who, "complete_tx")
    barrier.sent = source
    barrier.tx -= size
    barrier.arrived += size
    launch = barrier.cta.launch
    launch.counters["mbarrier.arrived_bytes"] += size
    if launch.machine.monitor is not None:
        launch.machine.monitor.mbarrier_bytes(barrier, who, size)
    if launch.machine.barrier_log is not None:
        launch.machine.barrier_log.add("bytes", barrier, who, size)
    if barrier.tx < -COUNT_LIMIT:
        raise _tx_range(barrier, who, "no expect_tx announces the bytes that arrive; check the barrier of the copy")
    if not barrier.pending and not barrier.tx and size:
        _complete(barrier)


def complete_lanes(barrier: Mbarrier, size: int, count: int, *, source: tuple[Warp, int]) -> None:
    """Deliver ``size`` bytes of each of ``count`` lanes of ``source``.

    The phase may not end between them. The hardware delivers them in packets, which depend on their addresses. On an
    H200 (driver 580.159.04), a packet that brings more than a phase still waits for, where no arrival is pending, ends
    the launch with an error if the mbarrier is the own CTA's, and the wait never ends if it is a peer's (measured: of
    128 bytes in a row, all is well only if the phase waits for 64 or for all).

    Raises:
        Fault: the phase waits for some of the bytes only, or the tx-count leaves its range.
    """
    total = size * count
    if not barrier.pending and 0 < barrier.tx < total:
        raise Fault(
            "mbarrier",
            f"{actor_name(source)} brings {total} bytes to the {barrier.name}, whose phase waits for {barrier.tx} more",
            hint="expect_tx must announce the bytes of all lanes; on an H200 the launch fails or never ends (measured)",
        )
    complete_tx(barrier, total, who=source, source=source)


def _tx_range(barrier: Mbarrier, who: Actor, hint: str) -> Fault:
    bound = f"above {COUNT_LIMIT}" if barrier.tx > 0 else f"below {-COUNT_LIMIT}"
    return Fault(
        "mbarrier",
        f"{actor_name(who)}: the tx-count of the {barrier.name} would be {barrier.tx}, {bound} "
        f"({barrier.waiting_for()})",
        hint=hint,
    )


def actor_name(who: Actor) -> str:
    """Return the name of an actor: for a warp, its CTA's rank, its number, and the source line."""
    if isinstance(who, str):
        return who
    warp, at = who
    rank = f"CTA rank {warp.cta.rank} " if len(warp.cta.cluster.ctas) > 1 else ""
    instruction = warp.cta.launch.kernel.instructions[at]
    return f"{rank}warp {warp.index} ({instruction.opcode}, {place_of(instruction)})"


def _complete(barrier: Mbarrier) -> None:
    if (monitor := barrier.cta.launch.machine.monitor) is not None:
        monitor.mbarrier_completed(barrier)
    trace = barrier.cta.launch.machine.trace
    if trace is not None:
        named = f" of {barrier.given_name!r}" if barrier.given_name else ""
        trace.phase(barrier.cta, barrier, f"mbarrier at byte {barrier.index}{named}")
    if barrier.cta.launch.machine.barrier_log is not None:
        barrier.cta.launch.machine.barrier_log.add("complete", barrier, "", barrier.arrived)
    barrier.phase += 1
    if barrier.arrived:
        barrier.loaded = barrier.phase
    barrier.pending = barrier.count
    barrier.announced = 0
    barrier.arrived = 0
    launch = barrier.cta.launch
    launch.counters["mbarrier.phases"] += 1
    launch.machine.changes += 1
    if barrier.waiters:
        wake_all(barrier)


def _check(barrier: Mbarrier, who: Actor) -> None:
    if not barrier.valid:
        raise Fault(
            "mbarrier",
            f"{actor_name(who)}: the {barrier.name} was invalidated while this operation was in flight",
            hint="wait for every copy and arrival before mbarrier.inval",
        )


def _check_bytes(size: int, who: Actor, operation: str) -> None:
    if not 0 <= size <= COUNT_LIMIT:
        raise Fault("mbarrier", f"{actor_name(who)}: {operation} of {size} bytes, which must be 0 to {COUNT_LIMIT}")
