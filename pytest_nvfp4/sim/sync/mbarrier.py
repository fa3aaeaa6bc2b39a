"""Mbarriers: the objects, and what other units do to them (``resolve``, ``arrive``, ``expect_tx``, ``complete_tx``).

Rules (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"):

- An mbarrier is an opaque 64-bit object in shared memory, aligned to 8 bytes. It holds the phase, the pending arrivals
  of the phase, the expected arrivals of the next one (1 to 2^20-1 at ``init``; pending 0 to 2^20-1), and the tx-count
  of the phase (-(2^20-1) to 2^20-1). Leaving a range is a fault.
- expect-tx adds to the tx-count and complete-tx subtracts; bytes may arrive before they are announced. The phase is
  complete when pending and tx-count are both 0; the next one starts with the expected arrivals pending.
- Nothing but ``mbarrier.init`` may touch memory that holds no mbarrier as if it did; nothing but an mbarrier operation
  may touch one until ``mbarrier.inval``; ``init`` over a live one is undefined. All are faults.
- An arrive of more than the pending count is undefined: a fault.

Bytes announced and never arrived are a finding when the CTA ends, and are named in a deadlock report. So are bytes
whose phase no wait of the CTA ever saw complete: a CTA must not end before its copies have.

Counters: ``mbarrier.arrivals`` (of threads and units), ``mbarrier.phases`` (completed), ``mbarrier.expected_bytes``,
``mbarrier.arrived_bytes``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.source import place_of, quoted
from pytest_nvfp4.sim.sync.addresses import locate

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Group, Warp

__all__ = ["COUNT_LIMIT", "Mbarrier", "MbarrierFile", "Who", "arrive", "complete_tx", "expect_tx", "resolve", "said"]

Who = str | tuple["Warp", int]
"""Who does something to a barrier: a unit in words, or a warp and the index of its instruction."""

COUNT_LIMIT = (1 << 20) - 1
"""Largest arrival count and largest magnitude of a tx-count."""
SIZE = 8
_REMEMBERED = 8
_HINT_COUNT = "look at the arrival count of the barrier's init, and at how many threads arrive (one elected, or all?)"


class Mbarrier:
    """One mbarrier.

    Attributes:
        cta, index: Its CTA and where it lies in its shared memory (0 is the kernel's first byte).
        count: Arrivals that the next phase expects.
        pending: Arrivals still missing in the current phase.
        tx: Bytes announced less bytes arrived, in the current phase.
        phase: Phases completed since init; its parity is what ``.parity`` waits compare.
        announced, arrived: Bytes of the current phase.
        brought: The warp and instruction of the last copy that brought bytes, if it told.
        loaded: Phases completed when bytes were last among what completed one, 0 if never.
        seen: Phases completed when a wait of the CTA last held, 0 if none ever did.
        recent: The last arrivals: who, how many, in which phase.
        made: The instruction that initialised it, if somebody said.
        valid: False once invalidated.
        waiters: Groups that wait for the phase to change.
    """

    __slots__ = (
        "announced", "arrived", "brought", "count", "cta", "index", "loaded", "made", "pending", "phase", "recent",
        "seen", "tx", "valid", "waiters",
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
        self.brought: tuple[Warp, int] | None = None
        self.loaded = 0
        self.seen = 0
        self.recent: deque[tuple[Who, int, int]] = deque(maxlen=_REMEMBERED)
        self.valid = True
        self.waiters: list[Group] = []

    may_give_up = True
    """A wait for an mbarrier (``try_wait``) may answer False."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        rank = f" of CTA rank {self.cta.rank}" if len(self.cta.cluster.ctas) > 1 else ""
        made = f", initialised at {quoted(self.made)}" if self.made is not None else ""
        address = self.cta.shared.base + self.index
        return f"mbarrier at byte {self.index} of shared memory{rank} (address {address:#x}{made})"

    def suspicion(self) -> int:
        """How much its state alone says that it is the cause of a deadlock (see ``Waitable``)."""
        if self.tx and (self.arrived or not self.pending):
            return 0
        return 1 if self.pending < self.count else 2

    def state(self) -> str:
        """Phase, pending arrivals and bytes in words."""
        text = f"phase {self.phase} (parity {self.phase & 1}): {self.pending} of {self.count} arrivals pending"
        if self.tx > 0:
            text += f", waits for {self.tx} more bytes: expect_tx announced {self.announced}, {self.arrived} arrived"
        elif self.tx < 0:
            text += f", {-self.tx} bytes too many: {self.arrived} arrived, expect_tx announced {self.announced}"
        elif self.announced:
            text += f", all {self.announced} bytes arrived"
        return text

    def waiting_for(self) -> str:
        """Name, state and last arrivals, for the report of a deadlock."""
        text = f"{self.name}, {self.state()}"
        if self.recent:
            last = "; ".join(f"{said(who)} x{n} in phase {phase}" for who, n, phase in list(self.recent)[-4:])
            return f"{text}; last arrivals: {last}"
        return f"{text}; nothing ever arrived"

    def wake(self) -> None:
        """Let all waiters look again."""
        waiters, self.waiters = self.waiters, []
        for group in waiters:
            group.wake()


class MbarrierFile:
    """The mbarriers of one CTA, by index in its shared memory: ``cta.unit(MbarrierFile)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.barriers: dict[int, Mbarrier] = {}
        self.invalidated: set[int] = set()
        self.refused: set[tuple[Group, int]] = set()
        """Waits that were told False, by instruction, and have not held since."""

    def init(self, index: int, count: int, *, what: str, made: Instruction | None = None) -> Mbarrier:
        """Make an mbarrier at a checked index. Raises Fault for a bad count or a live one there."""
        if not 1 <= count <= COUNT_LIMIT:
            raise Fault("mbarrier", f"{what}: arrival count {count}, which must be 1 to {COUNT_LIMIT}")
        live = self.barriers.get(index)
        if live is not None and (live.count, live.phase, live.tx, live.pending) == (count, 0, 0, count):
            # Made again as it is, before anybody used it: DSL 4.4 does so for the allocator of a pair of CTAs.
            return live
        if live is not None:
            raise Fault(
                "mbarrier",
                f"{what}: there is a live {live.name} ({live.state()})",
                hint="initialise a barrier once, or invalidate it first (mbarrier.inval); look for two barriers that "
                "share memory, or for several warps that all initialise",
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
        """End an mbarrier; its bytes are then uninitialised memory."""
        barrier = self.at(index, what=what)
        del self.barriers[index]
        del self.cta.shared.opaque[index]
        self.invalidated.add(index)
        barrier.valid = False
        self.cta.launch.machine.changes += 1
        barrier.wake()

    def at(self, index: int, *, what: str) -> Mbarrier:
        """The live mbarrier at an index. Raises Fault if there is none."""
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
            "mbarrier",
            f"{what}: no mbarrier was initialised at byte {index} of shared memory (address {address:#x}); "
            + (f"the nearest are at bytes {near}" if near else "the CTA has none"),
            hint="look at the barrier's address and stage, at mbarrier.init, and at the barrier or cluster barrier "
            "between init and first use",
        )

    def at_exit(self) -> None:
        """Report bytes that are still outstanding, and those that arrived without anybody who waited for them.

        Bytes announced for a phase whose copy was never begun, and which nobody waits for, are left alone: the
        producer tail of NVIDIA's pipelines does so on purpose (DSL 4.4).
        """
        for barrier in self.barriers.values():
            if barrier.tx and (barrier.arrived or barrier.waiters):
                self.cta.launch.report(
                    "mbarrier",
                    f"the CTA ended and the {barrier.name} is unbalanced: {barrier.state()}",
                    hint="compare the bytes given to expect_tx with the bytes of the copies that signal this barrier",
                    where=self._where(barrier),
                )
            elif barrier.loaded > barrier.seen:
                self.cta.launch.report(
                    "in-flight",
                    f"the CTA ended, and nothing waited for the bytes that completed phase {barrier.loaded - 1} of the "
                    f"{barrier.name}: on a device they may arrive when the CTA has gone, in memory of the next one",
                    hint="wait for every copy before the end of the CTA; compare how often the loading warp goes round "
                    "with how often the consuming one does",
                    where=self._where(barrier),
                )

    def _where(self, barrier: Mbarrier) -> Where:
        """The last copy that brought bytes, if it is known."""
        if barrier.brought is None:
            return self.cta.launch.where_cta(self.cta)
        warp, at = barrier.brought
        return warp.cta.launch.where(warp, at)


def resolve(w_or_cta: Warp | Cta, shared_address: int, *, cluster: bool, what: str) -> Mbarrier:
    """The live mbarrier at a shared address.

    Args:
        shared_address: 32 bits; with ``cluster`` the CTA rank in bits 24 and up is followed.
        what: Who asks, for the message.

    Raises:
        Fault: misaligned, out of bounds, another CTA's without ``cluster``, not initialised, or invalidated.
    """
    cta = w_or_cta if isinstance(w_or_cta, Cta) else w_or_cta.cta
    owner, index = locate(cta, shared_address, SIZE, cluster=cluster, align=SIZE, what=what)
    return owner.unit(MbarrierFile).at(index, what=what)


def arrive(barrier: Mbarrier, count: int = 1, *, who: Who = "") -> None:
    """``count`` arrivals; completes the phase if they were the last and no bytes are outstanding.

    Raises:
        Fault: more arrivals than are pending, a count out of range, or an invalidated barrier.
    """
    _check(barrier, who)
    if not 1 <= count <= COUNT_LIMIT:
        raise Fault("mbarrier", f"{said(who)}: arrival count {count}, which must be 1 to {COUNT_LIMIT}")
    if count > barrier.pending:
        raise Fault(
            "mbarrier",
            f"{said(who)}: {count} arrivals at the {barrier.name}, of which only {barrier.pending} are pending "
            f"({barrier.waiting_for()})",
            hint=_HINT_COUNT,
        )
    barrier.recent.append((who, count, barrier.phase))
    launch = barrier.cta.launch
    launch.counters["mbarrier.arrivals"] += count
    if launch.machine.monitor is not None:
        launch.machine.monitor.mbarrier_arrived(barrier, who, count)
    barrier.pending -= count
    if not barrier.pending and not barrier.tx:
        _complete(barrier)


def expect_tx(barrier: Mbarrier, size: int, *, who: Who = "") -> None:
    """Announce ``size`` bytes for the current phase (0 to 2^20-1). Raises Fault if the tx-count leaves its range."""
    _check(barrier, who)
    _check_bytes(size, who, "expect_tx")
    barrier.tx += size
    barrier.announced += size
    barrier.cta.launch.counters["mbarrier.expected_bytes"] += size
    if barrier.tx > COUNT_LIMIT:
        raise Fault(
            "mbarrier",
            f"{said(who)}: the tx-count of the {barrier.name} would be {barrier.tx}, above {COUNT_LIMIT} "
            f"({barrier.waiting_for()})",
            hint="expect_tx is given bytes; it may have run for several stages, or in all lanes",
        )
    if not barrier.pending and not barrier.tx and size:
        _complete(barrier)


def complete_tx(barrier: Mbarrier, size: int, *, who: Who = "") -> None:
    """``size`` bytes arrived; completes the phase if nothing else is outstanding.

    Raises Fault if the tx-count leaves its range.
    """
    _check(barrier, who)
    _check_bytes(size, who, "complete_tx")
    barrier.tx -= size
    barrier.arrived += size
    launch = barrier.cta.launch
    launch.counters["mbarrier.arrived_bytes"] += size
    if launch.machine.monitor is not None:
        launch.machine.monitor.mbarrier_bytes(barrier, who, size)
    if barrier.tx < -COUNT_LIMIT:
        raise Fault(
            "mbarrier",
            f"{said(who)}: the tx-count of the {barrier.name} would be {barrier.tx}, below {-COUNT_LIMIT} "
            f"({barrier.waiting_for()})",
            hint="bytes arrive that no expect_tx announces: look at the barrier of the copy",
        )
    if not barrier.pending and not barrier.tx and size:
        _complete(barrier)


def said(who: Who) -> str:
    """Who, in words: for a warp its CTA's rank, its number, and the user's line."""
    if isinstance(who, str):
        return who
    warp, at = who
    rank = f"CTA rank {warp.cta.rank} " if len(warp.cta.cluster.ctas) > 1 else ""
    instruction = warp.cta.launch.kernel.instructions[at]
    return f"{rank}warp {warp.index} ({instruction.opcode}, {place_of(instruction)})"


def _complete(barrier: Mbarrier) -> None:
    monitor = barrier.cta.launch.machine.monitor
    if monitor is not None:
        monitor.mbarrier_completed(barrier)
    trace = barrier.cta.launch.machine.trace
    if trace is not None:
        trace.phase(barrier.cta, barrier, f"mbarrier at byte {barrier.index}")
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
        barrier.wake()


def _check(barrier: Mbarrier, who: Who) -> None:
    if not barrier.valid:
        raise Fault(
            "mbarrier",
            f"{said(who)}: the {barrier.name} was invalidated while this operation was under way",
            hint="wait for every copy and arrival before mbarrier.inval",
        )


def _check_bytes(size: int, who: Who, operation: str) -> None:
    if not 0 <= size <= COUNT_LIMIT:
        raise Fault("mbarrier", f"{said(who)}: {operation} of {size} bytes, which must be 0 to {COUNT_LIMIT}")
