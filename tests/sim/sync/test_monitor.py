"""What a monitor hears: enough to order every access by hand."""

from __future__ import annotations

from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
from tests.sim.sync.harness import clean


class Listener:
    """Writes down every event of synchronisation."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def fence(self, w, mask, kind, at):  # noqa: ARG002
        self.events.append(("fence", w.index, kind))

    def warp_met(self, w, mask, at):  # noqa: ARG002
        self.events.append(("met", w.index, mask))

    def mbarrier_initialised(self, barrier, who):
        self.events.append(("made", who[0].index, barrier.count))

    def mbarrier_arrived(self, barrier, who, count):
        self.events.append(("arrived", who[0].index, count, barrier.phase))

    def mbarrier_bytes(self, barrier, who, size):  # noqa: ARG002
        self.events.append(("bytes", size, barrier.phase))

    def mbarrier_completed(self, barrier):
        self.events.append(("completed", barrier.phase))

    def mbarrier_waited(self, w, mask, barrier, at):  # noqa: ARG002
        self.events.append(("waited", w.index, mask, barrier.phase))

    def barrier_arrived(self, w, mask, barrier, at):  # noqa: ARG002
        self.events.append(("at", _name(barrier), w.index, mask))

    def barrier_completed(self, barrier):
        self.events.append(("done", _name(barrier)))

    def barrier_passed(self, w, mask, barrier, at):  # noqa: ARG002
        self.events.append(("past", _name(barrier), w.index, mask))

    def __getattr__(self, name):
        return lambda *_, **__: None


def _name(barrier) -> object:
    return "cluster" if isinstance(barrier, ClusterBarrier) else barrier.number


def heard(body: str, **options) -> list[tuple[object, ...]]:
    """The events of a run."""
    machine = Machine()
    machine.monitor = listener = Listener()
    clean(body, machine=machine, **options)
    return listener.events


ALL = 0xFFFF_FFFF


def test_an_mbarrier():
    events = heard(
        """
@%p0 mbarrier.init.shared.b64 [%r99], 1;
bar.warp.sync -1;
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99], 32;
@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], 32;
W: mbarrier.try_wait.parity.shared.b64 %p1, [%r99], 0;
@!%p1 bra W;
fence.proxy.async;
"""
    )
    assert events == [
        ("made", 0, 1),
        ("met", 0, ALL),
        ("arrived", 0, 1, 0),
        ("bytes", 32, 0),
        ("completed", 0),
        ("waited", 0, ALL, 1),
        ("fence", 0, "proxy.async"),
    ]


def test_lanes_hear_of_their_own_barrier():
    events = heard(
        """
setp.lt.u32 %p1, %r0, 2;
mad.lo.u32 %r1, %r0, 8, %r99;
@%p1 mbarrier.init.shared.b64 [%r1], 1;
bar.warp.sync -1;
@%p0 mbarrier.arrive.shared.b64 _, [%r1];
and.b32 %r2, %r0, 1; mad.lo.u32 %r2, %r2, 8, %r99;
mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
"""
    )
    assert events[-1] == ("waited", 0, 0x5555_5555, 1)


def test_named_barriers():
    events = heard(
        """
setp.lt.u32 %p1, %r0, 32;
@%p1 bra A;
bar.arrive 3, 64;
bra B;
A: bar.sync 3, 64;
B:
""",
        threads=64,
    )
    assert events == [("at", 3, 0, ALL), ("at", 3, 1, ALL), ("done", 3), ("past", 3, 0, ALL)]


def test_the_cluster_barrier():
    events = heard("barrier.cluster.arrive;\nbarrier.cluster.wait;", grid=(2, 1, 1), cluster=(2, 1, 1))
    arrive, leave = ("at", "cluster", 0, ALL), ("past", "cluster", 0, ALL)
    assert events == [arrive, arrive, ("done", "cluster"), leave, leave]


def test_without_a_monitor_nothing_is_called():
    machine = Machine()
    assert machine.monitor is None
    clean("bar.warp.sync -1;\nbar.sync 0;\nfence.proxy.async;", machine=machine)
