"""Memory through whole kernels: compiled blocks, several warps and CTAs, late copies, places of faults."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Lazy
from tests.sim.ptx_case import run_ptx

RNG = np.random.default_rng(9)

INDEX = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
mad.lo.u32 %r4, %r1, %r2, %r3;
mul.wide.u32 %rd1, %r4, 4;
add.u64 %rd2, %rd100, %rd1;
add.u64 %rd3, %rd101, %rd1;
"""


@pytest.mark.parametrize("block", [(32, 1, 1), (96, 1, 1), (40, 1, 1)])
def test_a_copy_of_every_element(block):
    data = RNG.integers(0, 1 << 32, 3 * block[0], dtype=np.uint32)
    ran = run_ptx(
        INDEX + "ld.global.nc.b32 %r5, [%rd2]; st.global.b32 [%rd3], %r5;",
        buffers={"in": data, "out": np.zeros_like(data)},
        grid=(3, 1, 1),
        block=block,
        read_only=["in"],
    )
    assert (ran["out"] == data).all()
    warps = 3 * -(-block[0] // 32)
    assert ran.grid.counters["global.load.requests"] == warps
    assert ran.grid.counters["global.store.bytes"] == data.nbytes


def test_a_fault_knows_lane_line_and_tensor():
    with pytest.raises(Fault) as caught:
        run_ptx(
            INDEX + "ld.global.b32 %r5, [%rd2+4]; st.global.b32 [%rd3], %r5;",
            buffers={"in": np.zeros(64, np.uint32), "out": np.zeros(64, np.uint32)},
            block=(64, 1, 1),
        )
    fault = caught.value
    assert fault.kind == "out-of-bounds"
    assert "lane 31" in fault.message
    assert "0 bytes after the end of in (256 bytes)" in fault.message
    assert fault.where is not None
    assert fault.where.warp == 1
    assert fault.where.text.startswith("ld.global.b32")


def test_an_array_in_local_memory_by_generic_address():
    body = """
.reg .b64 %SPL; .reg .b64 %SP;
.local .align 16 .b8 depot[128];
mov.u64 %SPL, depot;
cvta.local.u64 %SP, %SPL;
mov.u32 %r3, %tid.x;
and.b32 %r4, %r3, 31;
mul.wide.u32 %rd1, %r4, 4;
add.u64 %rd2, %SP, %rd1;
add.u64 %rd3, %SPL, %rd1;
st.b32 [%rd2], %r3;
ld.local.b32 %r5, [%rd3];
add.u64 %rd4, %rd100, %rd1;
st.global.b32 [%rd4], %r5;
"""
    ran = run_ptx(body, buffers={"out": np.zeros(32, np.uint32)})
    assert (ran["out"] == np.arange(32)).all()


TILE = """
mov.u32 %r3, %tid.x;
mul.wide.u32 %rd1, %r3, 16;
add.u64 %rd2, %rd100, %rd1;
mov.u32 %r10, smem;
shl.b32 %r11, %r3, 4;
add.u32 %r12, %r10, %r11;
cp.async.cg.shared.global [%r12], [%rd2], 16;
cp.async.commit_group;
cp.async.cg.shared.global [%r12+2048], [%rd2+2048], 16;
cp.async.commit_group;
WAIT
bar.sync 0;
xor.b32 %r13, %r11, 1008;
add.u32 %r14, %r10, %r13;
ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r14+HALF];
add.u64 %rd3, %rd101, %rd1;
st.global.v4.b32 [%rd3], {%r20, %r21, %r22, %r23};
cp.async.wait_all;
"""


@pytest.mark.parametrize("schedule", [None, Lazy])
@pytest.mark.parametrize(("half", "wait"), [(0, 1), (2048, 0)])
def test_copies_in_groups(schedule, half, wait):
    data = RNG.integers(0, 256, 4096).astype(np.uint8)
    body = TILE.replace("HALF", str(half)).replace("WAIT", f"cp.async.wait_group {wait};")
    buffers = {"in": data, "out": np.zeros(2048, np.uint8)}
    ran = run_ptx(body, buffers=buffers, block=(128, 1, 1), shared=4096, asynchronous=schedule and schedule())
    order = np.arange(128) ^ 63
    assert (ran["out"].reshape(128, 16) == data[half : half + 2048].reshape(128, 16)[order]).all()
    assert ran.grid.counters["cp_async.bytes"] == 4096


@pytest.mark.parametrize(("half", "wait"), [(0, ""), (2048, "cp.async.wait_group 1;")])
def test_a_wait_too_few_is_found_when_copies_are_late(half, wait):
    body = TILE.replace("HALF", str(half)).replace("WAIT", wait)
    buffers = {"in": np.ones(4096, np.uint8), "out": np.zeros(2048, np.uint8)}
    run_ptx(body, buffers=buffers, block=(128, 1, 1), shared=4096)
    with pytest.raises(Fault, match=r"has not arrived: cp\.async\.cg") as caught:
        run_ptx(body, buffers=buffers, block=(128, 1, 1), shared=4096, asynchronous=Lazy())
    assert caught.value.kind == "in-flight"


def test_tickets_of_all_ctas_are_different():
    body = INDEX + "atom.relaxed.gpu.global.add.u32 %r5, [%rd101], 1; st.global.b32 [%rd2], %r5;"
    ran = run_ptx(
        body,
        buffers={"out": np.zeros(256, np.uint32), "counter": np.zeros(1, np.uint32)},
        grid=(4, 1, 1),
        block=(64, 1, 1),
    )
    assert sorted(ran["out"].tolist()) == list(range(256))
    assert ran["counter"][0] == 256
    assert ran.grid.counters["global.atomic.lanes"] == 256


def test_a_lock_in_global_memory_lets_everybody_through():
    body = """
mov.u32 %r3, %tid.x;
setp.ne.u32 %p1, %r3, 0;
@%p1 bra DONE;
SPIN:
atom.acquire.gpu.global.cas.b32 %r5, [%rd100], 0, 1;
setp.ne.u32 %p2, %r5, 0;
@%p2 bra SPIN;
ld.volatile.global.b32 %r6, [%rd100+4];
add.u32 %r6, %r6, 1;
st.volatile.global.b32 [%rd100+4], %r6;
st.release.gpu.global.b32 [%rd100], 0;
DONE:
"""
    ran = run_ptx(body, buffers={"state": np.zeros(2, np.uint32)}, grid=(9, 1, 1))
    assert ran["state"].tolist() == [0, 9]


def test_a_transpose_through_matrix_moves_and_peers():
    body = """
mov.u32 %r3, %tid.x;
shl.b32 %r4, %r3, 4;
mov.u32 %r5, smem;
add.u32 %r6, %r5, %r4;
mul.wide.u32 %rd1, %r3, 16;
add.u64 %rd2, %rd100, %rd1;
ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd2];
st.shared.v4.b32 [%r6], {%r10, %r11, %r12, %r13};
bar.warp.sync 0xffffffff;
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r20, %r21, %r22, %r23}, [%r6];
bar.warp.sync 0xffffffff;
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r6], {%r20, %r21, %r22, %r23};
bar.warp.sync 0xffffffff;
ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r6];
add.u64 %rd3, %rd101, %rd1;
st.global.v4.b32 [%rd3], {%r10, %r11, %r12, %r13};
"""
    data = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    ran = run_ptx(body, buffers={"in": data, "out": np.zeros_like(data)}, shared=512)
    assert (ran["out"] == data.transpose(0, 2, 1)).all()
    assert ran.grid.counters["shared.load.conflicts"] == 0


@pytest.mark.parametrize("width", [32, 33])
def test_padding_a_column_removes_its_conflicts(width):
    body = f"""
mov.u32 %r3, %tid.x;
mov.u32 %r5, smem;
mad.lo.u32 %r6, %r3, {4 * width}, %r5;
st.shared.b32 [%r6], %r3;
ld.shared.b32 %r7, [%r6];
"""
    ran = run_ptx(body, buffers={}, shared=32 * width * 4)
    wanted = 31 if width == 32 else 0
    assert ran.grid.counters["shared.load.conflicts"] == wanted
    assert ran.grid.counters["shared.store.conflicts"] == wanted


def test_counters_do_not_depend_on_the_schedule():
    body = TILE.replace("HALF", "0").replace("WAIT", "cp.async.wait_all;")
    buffers = {"in": np.ones(4096, np.uint8), "out": np.zeros(2048, np.uint8)}
    runs = [
        run_ptx(body, buffers=buffers, block=(128, 1, 1), shared=4096, asynchronous=schedule).grid.counters
        for schedule in (None, Lazy())
    ]
    chosen = [
        {k: v for k, v in counters.items() if k.startswith(("global", "shared", "cp_async"))} for counters in runs
    ]
    assert chosen[0] == chosen[1]
    assert chosen[0]["shared.load.wavefronts"] == 16
