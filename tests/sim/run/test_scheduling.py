"""Warps that wait, spin, and never come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_nvfp4.driver.device_model import B200
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run import scheduler
from pytest_nvfp4.sim.run.asynchronous import Lazy, schedule
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.repetition import places
from pytest_nvfp4.sim.run.warp import Warp
from tests.sim.ptx_case import run_ptx

FLAG = """
mov.u32 %r1, %ctaid.x; setp.ne.s32 %p1, %r1, {setter};
@%p1 bra WAIT;
st.release.gpu.global.b32 [%rd100], 1;
bra END;
WAIT: ld.acquire.gpu.global.b32 %r2, [%rd100]; setp.eq.s32 %p2, %r2, 0; @%p2 bra WAIT;
END: mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %rd101, %rd1; st.global.b32 [%rd2], 7;
"""


def flags() -> dict[str, np.ndarray]:
    return {"flag": np.zeros(1, np.uint32), "out": np.zeros(4, np.uint32)}


@pytest.mark.parametrize("setter", [0, 3])
def test_a_cta_that_spins_on_a_flag_gets_it_from_a_later_one(setter: int) -> None:
    ran = run_ptx(FLAG.format(setter=setter), buffers=flags(), grid=(4, 1, 1))
    assert (ran["out"] == 7).all()


def test_a_flag_that_nobody_sets_is_a_deadlock() -> None:
    with pytest.raises(Fault, match="no warp can continue") as caught:
        run_ptx(FLAG.format(setter=9), buffers=flags(), grid=(2, 1, 1))
    assert caught.value.kind == "deadlock"
    assert any("spins on memory" in note for note in caught.value.notes)


LOCK = """
mov.u32 %r1, %tid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra END;
TAKE: {atomic} setp.ne.s32 %p2, %r2, 0; @%p2 bra TAKE;
ld.global.b32 %r3, [%rd101]; add.s32 %r3, %r3, 1; st.global.b32 [%rd101], %r3;
{release}
END:
"""
RELEASE = "atom.release.gpu.global.exch.b32 _, [%rd100], 0;"


@pytest.mark.parametrize(
    "atomic",
    [
        "atom.acquire.gpu.global.cas.b32 %r2, [%rd100], 0, 1;",
        "atom.acquire.gpu.global.exch.b32 %r2, [%rd100], 1;",
        "atom.global.or.b32 %r2, [%rd100], 1;",
    ],
)
def test_a_lock_that_is_never_released_is_a_deadlock(atomic: str) -> None:
    body = LOCK.format(atomic=atomic, release=RELEASE)
    assert run_ptx(body, buffers=flags(), grid=(3, 1, 1))["out"][0] == 3
    with pytest.raises(Fault, match="no warp can continue in 2 CTAs") as caught:
        run_ptx(LOCK.format(atomic=atomic, release=""), buffers=flags(), grid=(3, 1, 1))
    assert caught.value.kind == "deadlock"
    assert any("spins on memory" in note for note in caught.value.notes)


BARRIER = """
mov.u32 %r1, %tid.x; mov.b32 %r9, 0;
ROUND: add.s32 %r9, %r9, 1; mul.lo.s32 %r8, %r9, 8;
bar.sync 0;
setp.ne.s32 %p1, %r1, 0; @%p1 bra JOIN;
atom.add.acq_rel.gpu.global.u32 %r2, [%rd100], 1;
WAIT: ld.acquire.gpu.global.b32 %r3, [%rd100]; setp.lt.u32 %p2, %r3, %r8; {sleep} @%p2 bra WAIT;
JOIN: bar.sync 0;
setp.lt.u32 %p3, %r9, 4; @%p3 bra ROUND;
mov.u32 %r4, %ctaid.x; mad.lo.s32 %r4, %r4, 64, %r1; mul.wide.u32 %rd1, %r4, 4; add.s64 %rd1, %rd1, %rd101;
st.global.b32 [%rd1], %r9;
"""


@pytest.mark.parametrize("order", ["eager", "lazy", "late-0", 1, 2])
@pytest.mark.parametrize("sleep", ["", "nanosleep.u32 100;"])
def test_warps_that_spin_are_parked(order: str | int, sleep: str) -> None:
    """A warp that spins is checked after 64 blocks, and then runs again only after another one's turn."""
    buffers = {"count": np.zeros(1, np.uint32), "out": np.zeros(8 * 64, np.uint32)}
    machine = Machine(asynchronous=schedule(order))
    ran = run_ptx(BARRIER.format(sleep=sleep), buffers=buffers, grid=(8, 1, 1), block=(64, 1, 1), machine=machine)
    assert ran["count"][0] == 4 * 8
    assert (ran["out"] == 4).all()
    assert ran.grid.counters["global.load.requests"] < 10_000


def test_ctas_that_do_not_fit_at_once_cannot_wait_for_each_other() -> None:
    machine = Machine(model=replace(B200, sm_count=1, blocks_per_sm=2))
    with pytest.raises(Fault, match="no warp can continue") as caught:
        run_ptx(FLAG.format(setter=3), buffers=flags(), grid=(4, 1, 1), machine=machine)
    assert any("have not started" in note for note in caught.value.notes)


def test_a_long_loop_that_ends_is_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states are compared in about an eighth of its blocks."""
    compared: list[Warp] = []
    monkeypatch.setattr(scheduler, "places", lambda warp: compared.append(warp) or places(warp))
    ran = run_ptx(
        "mov.b32 %r1, 0; L: add.s32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 60000; @%p1 bra L; st.global.b32 [%rd100], %r1;",
        buffers={"out": np.zeros(1, np.uint32)},
    )
    assert ran["out"][0] == 60000
    assert 0 < len(compared) < 60000 / 5


@pytest.mark.parametrize("rounds", [1, 20, 1_000, 15_000])
def test_an_endless_loop_is_found_however_long_its_cycle_is(rounds: int) -> None:
    with pytest.raises(Fault, match="no warp can continue"):
        run_ptx(f"M: mov.b32 %r1, 0; L: add.s32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, {rounds}; @%p1 bra L; bra M;")


def test_an_empty_endless_loop_is_found() -> None:
    with pytest.raises(Fault, match="no warp can continue"):
        run_ptx("L: bra L;")


WAIT = """
mov.u32 %r1, %tid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [smem], {count};
READY: bar.sync 0;
{arrive}
L: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra L;
st.global.b32 [%rd100], 5;
"""


def test_a_barrier_that_is_met_lets_all_go_on() -> None:
    body = WAIT.format(count=64, arrive="mbarrier.arrive.shared.b64 _, [smem];")
    ran = run_ptx(body, buffers={"out": np.zeros(1, np.uint32)}, block=(64, 1, 1), shared=64)
    assert ran["out"][0] == 5


def test_a_missing_arrival_is_a_deadlock_with_the_barriers_state() -> None:
    body = WAIT.format(count=65, arrive="mbarrier.arrive.shared.b64 _, [smem];")
    with pytest.raises(Fault) as caught:
        run_ptx(body, buffers={"out": np.zeros(1, np.uint32)}, block=(64, 1, 1), shared=64)
    assert caught.value.kind == "deadlock"
    said = "\n".join(caught.value.notes)
    assert "warp 0" in said
    assert "warp 1" in said


def test_a_peek_that_does_not_loop_gets_its_false() -> None:
    body = """
    mbarrier.init.shared.b64 [smem], 1;
    mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0;
    selp.b32 %r1, 1, 2, %p2;
    st.global.b32 [%rd100], %r1;
    mbarrier.arrive.shared.b64 _, [smem];
    mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0;
    selp.b32 %r1, 1, 2, %p2;
    st.global.b32 [%rd100+4], %r1;
    """
    ran = run_ptx(body, buffers={"out": np.zeros(2, np.uint32)}, block=(1, 1, 1), shared=64)
    assert ran["out"].tolist() == [2, 1]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_launch_counts_the_same_each_time(lazy: bool) -> None:
    body = WAIT.format(count=64, arrive="mbarrier.arrive.shared.b64 _, [smem];")
    counts = [
        run_ptx(
            body,
            buffers={"out": np.zeros(1, np.uint32)},
            block=(64, 1, 1),
            shared=64,
            asynchronous=Lazy() if lazy else None,
        ).grid.counters
        for _ in range(2)
    ]
    assert counts[0] == counts[1]


PEEK = """
mov.u32 %r1, %tid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [smem], 1;
READY: bar.sync 0;
setp.ge.u32 %p1, %r1, 32; @%p1 bra WAIT;
elect.sync %r9|%p3, -1; @!%p3 bra END;
mbarrier.arrive.shared.b64 _, [smem];
bra END;
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0;
{again}
selp.b32 %r2, 1, 2, %p2; st.global.b32 [%rd100], %r2;
END:
"""


@pytest.mark.parametrize(("patient", "again", "answer"), [
    (True, "", 1),
    (True, "@!%p2 bra WAIT;", 1),
    (False, "", 2),
    (False, "@!%p2 bra WAIT;", 1),
])  # fmt: skip
def test_a_wait_gives_up_once_in_an_impatient_schedule(patient: bool, again: str, answer: int) -> None:
    ran = run_ptx(
        PEEK.format(again=again),
        buffers={"out": np.zeros(1, np.uint32)},
        block=(64, 1, 1),
        shared=64,
        asynchronous=Lazy(patient=patient),
    )
    assert ran["out"][0] == answer
