"""Events that a monitor receives: enough to derive the order of every access."""

from __future__ import annotations

from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.sync.harness import clean
from tests.sim.sync.listeners import recorded

ALL = 0xFFFF_FFFF


def test_an_mbarrier():
    events = recorded(
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
    events = recorded(
        """
setp.lt.u32 %p1, %r0, 2;
mad.lo.u32 %r1, %r0, 8, %r99;
@%p1 mbarrier.init.shared.b64 [%r1], 1;
bar.warp.sync -1;
@%p0 mbarrier.arrive.shared.b64 _, [%r1];
and.b32 %r2, %r0, 1; mad.lo.u32 %r2, %r2, 8, %r99;
mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
selp.u32 %r3, 1, 0, %p2;
"""
    )
    assert events[-1] == ("waited", 0, 0x5555_5555, 1)


def test_named_barriers():
    events = recorded(
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
    events = recorded("barrier.cluster.arrive;\nbarrier.cluster.wait;", grid=(2, 1, 1), cluster=(2, 1, 1))
    arrive, leave = ("at", "cluster", 0, ALL), ("past", "cluster", 0, ALL)
    assert events == [arrive, arrive, ("done", "cluster"), leave, leave]


def test_without_a_monitor_nothing_is_called():
    machine = Machine()
    assert machine.monitor is None
    clean("bar.warp.sync -1;\nbar.sync 0;\nfence.proxy.async;", machine=machine)
