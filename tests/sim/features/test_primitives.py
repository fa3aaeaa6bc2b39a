"""Programs on the DSL's primitives (4.8), compiled and simulated for the architecture that has their instructions."""

from __future__ import annotations

import pytest

from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.remote.base import PythonProgram

MAXIMUM = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack
from cutlass.experimental import primitives as prims


@cute.kernel
def kernel(scores: cute.Tensor, most: cute.Tensor, copy: cute.Tensor):
    where = cutlass.Array(cutlass.Int32, 1, space=cutlass.AddressSpace.smem, alignment=4)
    warp = cute.arch.warp_idx()
    row, _, _ = cute.arch.thread_idx()
    if warp == 0:
        prims.tcgen05_alloc(where, 32, group="cta_1")
        prims.tcgen05_relinquish_alloc_permit(group="cta_1")
    prims.barrier_cta_sync(0)
    base = where.load()
    own = prims.TmemAddr.from_row_col(warp * cutlass.Int32(32), base & 0xFFFF).as_ptr(cutlass.Float32)
    words = cutlass.Vector.from_elements(tuple(scores[row, i] for i in range(16)), dtype=cutlass.Float32)
    prims.tcgen05_st("32x32b", own, words)
    prims.tcgen05_wait(prims.Tcgen05Wait.STORE)
    loaded, greatest = prims.tcgen05_ld_red("32x32b", own, prims.ReductionKind.MAX, num=16)
    prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
    most[row] = greatest
    (copy.iterator.raw_ptr() + row * 16).store(loaded, alignment=16)
    prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
    prims.barrier_cta_sync(0)
    if warp == 0:
        prims.tcgen05_dealloc(cutlass.inttoptr(base, 6, cutlass.Int8), 32, group="cta_1")


@cute.jit
def host(scores: cute.Tensor, most: cute.Tensor, copy: cute.Tensor):
    kernel(scores, most, copy).launch(grid=(1, 1, 1), block=(128, 1, 1))


scores, most, copy = torch.randn(128, 16).cuda(), torch.zeros(128).cuda(), torch.zeros(128, 16).cuda()
host(from_dlpack(scores, assumed_align=16), from_dlpack(most), from_dlpack(copy, assumed_align=16))
assert torch.equal(most.cpu(), scores.cpu().max(dim=1).values)
assert torch.equal(copy.cpu(), scores.cpu())
print("same")
"""
"""A row maximum with the load of the row: ``tcgen05.ld.red`` of sm_103."""

NARROW = """
import cutlass, torch, numpy as np
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass.cute.runtime import make_fake_compact_tensor
from cutlass.experimental import primitives as prims

BITS, E3M2 = 6, 4
TYPE, SRC = cutlass.Float6E3M2FN, prims.Tcgen05CpSrcFormat.B6X16_P32


@cute.kernel
def kernel(
    map_a: cutlass.GridConstant[cuda.TensorMap], map_b: cutlass.GridConstant[cuda.TensorMap], c: cute.Tensor
):
    sa = cutlass.Array(cutlass.Int8, 128 * 128, space=cutlass.AddressSpace.smem, alignment=1024)
    sb = cutlass.Array(cutlass.Float8E4M3FN, 64 * 128, space=cutlass.AddressSpace.smem, alignment=1024)
    full = cutlass.Array(cutlass.Int64, 1, space=cutlass.AddressSpace.smem, alignment=8)
    done = cutlass.Array(cutlass.Int64, 1, space=cutlass.AddressSpace.smem, alignment=8)
    where = cutlass.Array(cutlass.Int32, 1, space=cutlass.AddressSpace.smem, alignment=4)
    warp = cute.arch.warp_idx()
    tid, _, _ = cute.arch.thread_idx()
    idesc = prims.Tcgen05InstrDesc(1 << 4 | E3M2 << 7 | 8 << 17 | 8 << 24)
    if warp == 0:
        if prims.elect_sync():
            prims.mbarrier_init(full, 1)
            prims.mbarrier_init(done, 1)
        prims.tcgen05_alloc(where, 128, group="cta_1")
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    base = where.load()
    prims.tcgen05_relinquish_alloc_permit(group="cta_1")
    if warp == 0:
        if prims.elect_sync():
            prims.mbarrier_arrive_expect_tx(full, map_a.global_tx_bytes() + map_b.global_tx_bytes())
            prims.cp_async_bulk_tensor_shared_cta_global(
                sa, map_a.get_ptr(), (cutlass.Int32(0), cutlass.Int32(0)), full
            )
            prims.cp_async_bulk_tensor_shared_cta_global(
                sb, map_b.get_ptr(), (cutlass.Int32(0), cutlass.Int32(0)), full
            )
    while not prims.mbarrier_try_wait_parity(full, cutlass.Int32(0), time_limit=10000):
        pass
    prims.barrier_cta_sync(0)
    if warp == 0:
        shape, multicast = prims.S2TCopyMode.S2T_128x256b
        da = prims.Tcgen05SmemDesc.build(
            sa, leading_byte_offset=16, stride_byte_offset=1024, layout=map_a.swizzle.to(prims.Tcgen05SmemSwizzle)
        )
        db = prims.Tcgen05SmemDesc.build(sb, leading_byte_offset=16, stride_byte_offset=1024, layout=2)
        if prims.elect_sync():
            for k in cutlass.range_constexpr(4):
                at = cutlass.inttoptr(base + 64 + 8 * k, 6, cutlass.Int32)
                prims.tcgen05_cp(shape, at, da.advance_start_address(32 * k), multicast=multicast, src_format=SRC)
            for k in cutlass.range_constexpr(4):
                at = cutlass.inttoptr(base + 64 + 8 * k, 6, cutlass.Int32)
                prims.tcgen05_mma(
                    prims.Tcgen05MMAKind.F8F6F4,
                    prims.CTAGroup.CTA_1,
                    cutlass.inttoptr(base, 6, cutlass.Float32),
                    at,
                    db.advance_start_address(32 * k),
                    idesc,
                    k > 0,
                )
            prims.tcgen05_commit(done, group=prims.CTAGroup.CTA_1)
    while not prims.mbarrier_try_wait_parity(done, cutlass.Int32(0), time_limit=10000):
        pass
    for s in cutlass.range_constexpr(2):
        v = prims.tcgen05_ld(
            "32x32b",
            prims.TmemAddr.from_row_col(warp * cutlass.Int32(32), (base & 0xFFFF) + s * 32).as_ptr(cutlass.Float32),
            num=32,
        )
        prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)
        (c.iterator.raw_ptr() + tid * 64 + s * 32).store(v, alignment=16)
    prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
    prims.barrier_cta_sync(0)
    if warp == 0:
        prims.tcgen05_dealloc(cutlass.inttoptr(base, 6, cutlass.Int8), 128, group="cta_1")


@cute.jit
def host(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    ta = cuda.create_tensor_map_tiled(
        a.iterator.toint(),
        TYPE,
        global_dims=[128, 128],
        global_strides=[16 * BITS // 16],
        box_dims=[128, 128],
        swizzle=cuda.TensorMapSwizzle.s128b,
    )
    tb = cuda.create_tensor_map_tiled(
        b.iterator.toint(),
        b.element_type,
        global_dims=[128, 64],
        global_strides=[8],
        box_dims=[128, 64],
        swizzle=cuda.TensorMapSwizzle.s128b,
    )
    kernel(ta, tb, c).launch(grid=(1, 1, 1), block=(128, 1, 1))


from pytest_nvfp4.numerics.formats import FORMATS

rng = np.random.default_rng(0)
codes = rng.integers(0, 1 << BITS, (128, 128))
rows = []
for row in codes:
    n = sum(int(c) << BITS * i for i, c in enumerate(row))
    rows.append(np.frombuffer(n.to_bytes(16 * BITS, "little"), np.uint8))
a = torch.from_numpy(np.stack(rows).copy()).cuda()
bf = torch.from_numpy(rng.integers(-4, 5, (64, 128)).astype(np.float32))
b = bf.to(torch.float8_e4m3fn).cuda()
c = torch.zeros(128, 64, device="cuda")
T = lambda t, s: make_fake_compact_tensor(t, s, stride_order=(1, 0), assumed_align=128)
fn = cute.compile(
    host,
    T(cutlass.Uint8, (128, 16 * BITS)),
    T(cutlass.Float8E4M3FN, (64, 128)),
    T(cutlass.Float32, (128, 64)),
    options="--enable-tvm-ffi",
)
fn(a, b, c)
torch.cuda.synchronize()
want = torch.from_numpy(FORMATS["e3m2"].values[codes].astype(np.float32)) @ bf.T
assert torch.equal(c.cpu(), want)
print("same")
"""
"""A product whose A is decompressed into tensor memory, through tensor maps that compiled host code encodes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "arch", "fails"),
    [
        (MAXIMUM, "sm_103a", ""),
        (NARROW, "sm_100a", ""),
        (NARROW.replace("E3M2 << 7", "3 << 7"), "sm_100a", "AssertionError"),
    ],
    ids=["maximum", "narrow", "narrow-e2m3"],
)
def test_a_program_gives_what_its_own_reference_gives(source: str, arch: str, fails: str) -> None:
    pytest.importorskip("cutlass.experimental.primitives", reason="the DSL has it since 4.8")
    said: list[bytes] = []
    end = execute(
        PythonProgram(source=source, environ={"CUTE_DSL_ARCH": arch}),
        backend="sim",
        on_output=lambda _, data: said.append(data),
        simulating=Simulating(races=True),
    )
    text = b"".join(said).decode()
    assert (end.returncode == 0) == (not fails), text
    assert (fails or "same") in text
