"""Schedules: legal, different, and the same again from the same seed; what only some of them show is found."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Eager, Late, Lazy, Random, schedule
from tests.sim.ptx_case import run_ptx

ORDER = """
mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; setp.ne.u32 %p0, %r1, 0; @%p0 bra END;
mov.u32 %r2, %ctaid.x; shl.b32 %r2, %r2, 2; shr.u32 %r3, %r0, 5; add.u32 %r2, %r2, %r3;
mov.u32 %r5, 1; atom.global.add.u32 %r4, [%rd100], %r5; shl.b32 %r2, %r2, 2; cvt.u64.u32 %rd0, %r2;
add.u64 %rd1, %rd101, %rd0; st.global.b32 [%rd1], %r4; END:
"""
"""Each warp of each CTA notes how many came before it."""


def order(asynchronous: Asynchronous) -> tuple[int, ...]:
    buffers = {"count": np.zeros(1, np.uint32), "y": np.full(16, 99, np.uint32)}
    ran = run_ptx(ORDER, buffers=buffers, grid=(4, 1, 1), block=(128, 1, 1), asynchronous=asynchronous)
    return tuple(ran["y"].tolist())


def test_a_seed_repeats_its_schedule():
    assert order(Random(5)) == order(Random(5))


def test_seeds_differ_and_every_order_is_whole():
    seen = {order(Random(seed)) for seed in range(8)}
    assert len(seen) > 4
    assert all(sorted(one) == list(range(16)) for one in seen)
    assert order(Eager()) == tuple(range(16))


def test_a_late_warp_comes_after_the_others_of_its_cta():
    found = order(Late([1]))
    for cta in range(4):
        own = found[4 * cta : 4 * cta + 4]
        assert own[1] == max(own)


@pytest.mark.parametrize(("name", "kind"), [("eager", Eager), ("lazy", Lazy), ("late-0-3", Late), ("17", Random)])
def test_names(name, kind):
    assert isinstance(schedule(name), kind)


@pytest.mark.parametrize("name", ["", "late-", "late-x", "busy", "1.5"])
def test_no_such_schedule(name):
    with pytest.raises(ValueError, match="late-WARP or a seed"):
        schedule(name)


LOCKS = """
mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; setp.ne.u32 %p0, %r1, 0; @%p0 bra END; shr.u32 %r3, %r0, 5;
mov.u32 %r9, 0; mov.u32 %r8, 1; mov.b64 %rd1, %rd100; add.u64 %rd2, %rd100, 4;
setp.eq.u32 %p1, %r3, 0; @%p1 bra GO; mov.b64 %rd3, %rd1; mov.b64 %rd1, %rd2; mov.b64 %rd2, %rd3;
GO: atom.global.cas.b32 %r4, [%rd1], %r9, %r8; setp.ne.u32 %p2, %r4, 0; @%p2 bra GO;
AGAIN: atom.global.cas.b32 %r4, [%rd2], %r9, %r8; setp.ne.u32 %p2, %r4, 0; @%p2 bra AGAIN;
atom.global.exch.b32 %r4, [%rd2], %r9; atom.global.exch.b32 %r4, [%rd1], %r9; END:
"""
"""Two warps take two locks, in opposite orders."""


def test_a_deadlock_of_some_schedules_only():
    def ends(asynchronous):
        try:
            run_ptx(LOCKS, buffers={"locks": np.zeros(2, np.uint32)}, block=(64, 1, 1), asynchronous=asynchronous)
        except Fault as fault:
            return fault.kind
        return ""

    assert ends(Eager()) == ""
    stuck = [seed for seed in range(12) if ends(Random(seed)) == "deadlock"]
    assert stuck
    assert ends(Random(stuck[0])) == "deadlock"
