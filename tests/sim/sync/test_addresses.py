"""Shared addresses in registers of 64 bits: the high half of a generic pointer does not count."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from tests.sim.ptx_case import run_ptx

WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{b}], 0;\n@!%p9 bra W;\n"
SPACES = ("shared", "shared::cta", "shared::cluster")
COPY = "mbarrier::complete_tx::bytes [{a}+128], [%rd100], 128, [{b}];\n"
BODIES = {
    **{f"ld.{space}": f"ld.{space}.b32 %r9, [{{a}}+4];" for space in SPACES},
    "mbarrier": "@%p0 mbarrier.inval.shared::cta.b64 [{b}];\n@%p0 mbarrier.init.shared::cta.b64 [{b}], 1;\n"
    f"@%p0 mbarrier.arrive.shared::cta.b64 _, [{{b}}];\n{WAIT}ld.shared.b32 %r9, [smem];",
    "ld of a part": "ld.shared.v4.b32 {{%r9, %r8, %r7, %r6}}, [{a}];",
    **{f"st.{space}": f"st.{space}.b32 [{{a}}+128], %r1;\nld.shared.b32 %r9, [smem+128];" for space in SPACES},
    **{f"atom.{space}": f"@%p0 atom.{space}.add.u32 %r9, [{{a}}], 5;\nld.shared.b32 %r9, [smem];" for space in SPACES},
    "red": "red.shared.add.u32 [{a}], %r1;\nbar.sync 0;\nld.shared.b32 %r9, [smem];",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r9}}, [{a}];",
    "stmatrix": "stmatrix.sync.aligned.m8n8.x1.shared.b16 [{a}+128], {{%r1}};\n"
    "bar.sync 0;\nld.shared.b32 %r9, [smem+132];",
    "cp.async": "cp.async.ca.shared.global [{a}+128], [%rd100], 4;\ncp.async.wait_all;\nld.shared.b32 %r9, [smem+128];",
    "st.async": "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{b}], 4;\n"
    "@%p0 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [{a}+128], %r99, [{b}];\n"
    f"@%p0 mbarrier.arrive.shared::cta.b64 _, [{{b}}];\n{WAIT}ld.shared.b32 %r9, [smem+128];",
    "red.async": "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{b}], 4;\n"
    "@%p0 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [{a}], %r99, [{b}];\n"
    f"@%p0 mbarrier.arrive.shared::cta.b64 _, [{{b}}];\n{WAIT}ld.shared.b32 %r9, [smem];",
    "st.bulk": "@%p0 st.bulk.weak.shared::cta [{a}+128], 128, 0;\nbar.sync 0;\nld.shared.b32 %r9, [smem+132];",
    **{
        f"cp.async.bulk to {space}": "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [{b}], 128;\n"
        f"@%p0 cp.async.bulk.{space}.global.{COPY}{WAIT}ld.shared.b32 %r9, [smem+132];"
        for space in SPACES[1:]
    },
    "cp.async.bulk from shared": "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd100], [{a}], 128;\n"
    "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;\nld.shared.b32 %r9, [smem+4];",
    "cp.async.mbarrier.arrive": "cp.async.mbarrier.arrive.shared.b64 [{b}];\nld.shared.b32 %r9, [smem];",
    "tcgen05.alloc": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{a}+128], 32;\n"
    "ld.shared.b32 %r9, [smem+128];\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32;",
    "tcgen05.commit": "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{b}];\n"
    f"{WAIT}ld.shared.b32 %r9, [smem];",
}


def ran(body: str, *, a: str, b: str) -> list[int]:
    """What the 32 threads have in %r9. {a} is 128 bytes of shared memory, which hold 0 to 31, {b} an mbarrier."""
    text = f"""
mov.u32 %r1, %tid.x;
setp.eq.u32 %p0, %r1, 0;
mov.u32 %r99, smem;
mad.lo.u32 %r2, %r1, 4, %r99;
st.shared.b32 [%r2], %r1;
add.u32 %r98, %r99, 512;
cvt.u64.u32 %rd1, %r99;
cvta.shared.u64 %rd1, %rd1;
add.u64 %rd2, %rd1, 512;
@%p0 mbarrier.init.shared::cta.b64 [%r98], 1;
bar.sync 0;
{body.format(a=a, b=b)}
mad.wide.u32 %rd3, %r1, 4, %rd101;
st.global.b32 [%rd3], %r9;
"""
    numbers = np.arange(32, dtype=np.uint32)
    return run_ptx(text, buffers={"x": numbers + 64, "y": 0 * numbers}, shared=1024)["y"].tolist()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_generic_pointer_is_cut_to_the_shared_address(body):
    assert ran(body, a="%rd1", b="%rd2") == ran(body, a="%r99", b="%r98")


def test_the_low_half_must_still_be_in_shared_memory():
    with pytest.raises(Fault, match="of shared memory, and the kernel was launched with 1024"):
        ran("ld.shared.b32 %r9, [{a}+1024];", a="%rd1", b="%rd2")
