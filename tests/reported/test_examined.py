"""The verdicts on NVIDIA's kernels: each is shown by a test, the real one by a twin of our own."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from tests.reported.examined import EXAMINED, Examined
from tests.sim.ptx_case import run_ptx

# Warp 0 allocates, arrives, arrives again when it needs its columns no longer, and frees them. Warps 1 to 4 arrive, use
# the columns behind the first phase, and arrive again. r9: the columns; r8: the address of the mbarrier.
ALLOCATED = """
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; mov.u32 %r4, smem; add.u32 %r8, %r4, 64;
setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [%r8], 160; bar.sync 0;
setp.ne.u32 %p2, %r1, 0; @%p2 bra USER;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32; mbarrier.arrive.shared::cta.b64 _, [%r8];
ld.shared.b32 %r9, [%r4];
"""
WAITS = "W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r8], 0; @!%p3 bra W;"
FREED = """
mbarrier.arrive.shared::cta.b64 _, [%r8];
F: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r8], 1; @!%p3 bra F;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32; bra END;
USER: mbarrier.arrive.shared::cta.b64 _, [%r8];
A: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r8], 0; @!%p3 bra A;
ld.shared.b32 %r9, [%r4]; and.b32 %r10, %r1, 3; shl.b32 %r10, %r10, 21; add.u32 %r9, %r9, %r10;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {%r0}; tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r11}, [%r9]; tcgen05.wait::ld.sync.aligned;
cvt.u64.u32 %rd1, %r0; shl.b64 %rd1, %rd1, 2; add.u64 %rd3, %rd100, %rd1; st.global.b32 [%rd3], %r11;
mbarrier.arrive.shared::cta.b64 _, [%r8];
END:
"""


def test_a_second_arrive_without_a_wait_for_the_first_phase() -> None:
    def run(body: str) -> np.ndarray:
        case = run_ptx(body, buffers={"out": np.zeros(160, np.uint32)}, shared=128, block=(160, 1, 1))
        assert case.grid.findings == []
        return case["out"]

    with pytest.raises(Fault, match=r"freed by warp 0") as caught:
        run(ALLOCATED + FREED)
    assert caught.value.kind == "tmem"
    assert (run(ALLOCATED + WAITS + FREED)[32:] == np.arange(32, 160)).all()


@pytest.mark.parametrize("examined", EXAMINED, ids=lambda examined: f"{examined.example}: {examined.finding}"[:60])
def test_a_test_shows_it(examined: Examined) -> None:
    module, _, function = examined.shown.partition("::")
    assert callable(getattr(importlib.import_module(module), function))
