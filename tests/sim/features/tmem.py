"""Tensor memory: ``tcgen05.ld`` and ``tcgen05.st`` of every shape, and A from TMEM; PTX ISA, "tcgen05.ld"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import numpy as np
import torch
from cutlass import pipeline, utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync, tcgen05

from .blocks import block_feature
from .feature import Feature, Tensors, integers, on_device
from .gemm import K_MAJOR, argument, f16_op

THREADS = 128
BARRIER = 1


def allocator(storage: Any) -> Any:
    """Warp 0 allocates, all threads of the block wait for the address."""
    return utils.TmemAllocator(
        storage, barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=BARRIER, num_threads=THREADS)
    )


def round_trip(store: Any, load: Any, *, rows: int, columns: int) -> Callable[[cute.Tensor, cute.Tensor], None]:
    """Registers to TMEM with one instruction and back with another, as if an M = ``rows`` accumulator lay there.

    Where each thread's values belong is CuTe's knowledge of both instructions: a wrong fragment in either shows.
    """

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        tmem = allocator(smem.allocate_array(cutlass.Int32, 1))
        tiled_mma = cute.make_tiled_mma(f16_op((rows, columns), tcgen05.CtaGroup.ONE))
        acc = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((rows, columns)))
        tmem.allocate(utils.get_num_tmem_alloc_cols(acc))
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
        acc = cute.make_tensor(tmem_ptr, acc.layout)[((None, None), 0, 0)]
        slice_mma = tiled_mma.get_slice(0)
        gX, gY = (slice_mma.partition_C(tensor)[((None, None), 0, 0)] for tensor in (x, y))
        tiled_store = tcgen05.make_tmem_copy(cute.make_copy_atom(store, cutlass.Float32), acc)
        slice_store = tiled_store.get_slice(thread)
        source = slice_store.partition_S(gX)
        values = cute.make_rmem_tensor(source.shape, cutlass.Float32)
        cute.autovec_copy(source, values)
        cute.copy(tiled_store, values, slice_store.partition_D(acc))
        arch.fence_view_async_tmem_store()
        arch.barrier(barrier_id=BARRIER, number_of_threads=THREADS)
        tiled_load = tcgen05.make_tmem_copy(cute.make_copy_atom(load, cutlass.Float32), acc)
        slice_load = tiled_load.get_slice(thread)
        target = slice_load.partition_D(gY)
        back = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        cute.copy(tiled_load, slice_load.partition_S(acc), back)
        arch.fence_view_async_tmem_load()
        back.store(back.load() + 1.0)
        cute.autovec_copy(back, target)
        tmem.relinquish_alloc_permit()
        pipeline.sync(barrier_id=BARRIER)
        tmem.free(tmem_ptr)

    return body


def round_trip_feature(
    name: str, store: Any, load: Any, *, rows: int, columns: int, opcodes: tuple[str, str]
) -> Feature:
    return block_feature(
        name,
        round_trip(store, load, rows=rows, columns=columns),
        lambda x: x + 1,
        shape=(rows, columns),
        dtype=np.float32,
        opcodes=(
            f"tcgen05.st.sync.aligned.{opcodes[0]}.b32",
            f"tcgen05.ld.sync.aligned.{opcodes[1]}.b32",
            "tcgen05.wait::st.sync.aligned",
            "tcgen05.wait::ld.sync.aligned",
        ),
    )


def x(count: int) -> tcgen05.Repetition:
    return tcgen05.Repetition(count)


class TmemOperandGemm:
    """One tile whose A goes from global memory through registers into TMEM; B comes by TMA. K is one tile of 64."""

    tile = (128, 64, 64)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor) -> None:
        op = tcgen05.MmaF16BF16Op(
            cutlass.Float16,
            cutlass.Float32,
            (*self.tile[:2], 16),
            tcgen05.CtaGroup.ONE,
            tcgen05.OperandSource.TMEM,
            K_MAJOR,
            K_MAJOR,
        )
        tiled_mma = cute.make_tiled_mma(op)
        a_layout = sm100_utils.make_smem_layout_a(tiled_mma, self.tile, cutlass.Float16, 1)
        b_layout = sm100_utils.make_smem_layout_b(tiled_mma, self.tile, cutlass.Float16, 1)
        b_atom, b_coords = cute.nvgpu.make_tiled_tma_atom_B(
            cpasync.CopyBulkTensorTileG2SOp(), b, cute.slice_(b_layout, (None, None, None, 0)), self.tile, tiled_mma
        )
        self.kernel(tiled_mma, a, b_atom, b_coords, c, a_layout, b_layout).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(
        self,
        tiled_mma: cute.TiledMma,
        mA: cute.Tensor,
        b_atom: cute.CopyAtom,
        mB: cute.Tensor,
        mC: cute.Tensor,
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
    ) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        barriers = smem.allocate_array(cutlass.Int64, 2)
        tmem = allocator(smem.allocate_array(cutlass.Int32, 1))
        sB = smem.allocate_tensor(cutlass.Float16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
        loaded, computed = barriers, barriers + 1
        if thread == 0:
            arch.mbarrier_init(loaded, 1)
            arch.mbarrier_init(computed, 1)
        arch.mbarrier_init_fence()
        tmem.allocate(128)
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
        slice_mma = tiled_mma.get_slice(0)
        acc = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2]))
        acc = cute.make_tensor(tmem_ptr, acc.layout)
        # Behind the accumulator: 64 values of K in 32 columns, two to a column.
        a_ptr = cute.recast_ptr(tmem_ptr + 64, dtype=cutlass.Float16)
        tCrA = cute.make_tensor(a_ptr, tiled_mma.make_fragment_A(a_layout.outer).layout)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCgB = slice_mma.partition_B(cute.local_tile(mB, self.tile, (0, 0, None, 0), proj=(None, 1, 1)))
        tBsB, tBgB = cpasync.tma_partition(
            b_atom, 0, cute.make_layout(1), cute.group_modes(sB, 0, 3), cute.group_modes(tCgB, 0, 3)
        )
        if warp == 0:
            with arch.elect_one():
                arch.mbarrier_arrive_and_expect_tx(loaded, cute.size_in_bytes(cutlass.Float16, b_layout))
            cute.copy(b_atom, tBgB[None, 0], tBsB[None, 0], tma_bar_ptr=loaded)

        tCgA = slice_mma.partition_A(cute.local_tile(mA, self.tile, (0, 0, 0, 0), proj=(1, None, 1)))
        tiled_store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.St32x32bOp(x(8)), cutlass.Float16), tCrA[None, None, None, 0]
        )
        slice_store = tiled_store.get_slice(thread)
        source = slice_store.partition_S(tCgA)
        values = cute.make_rmem_tensor(source.shape, cutlass.Float16)
        cute.autovec_copy(source, values)
        values.store(values.load() * cutlass.Float16(2.0))
        cute.copy(tiled_store, values, slice_store.partition_D(tCrA[None, None, None, 0]))
        arch.fence_view_async_tmem_store()
        pipeline.sync(barrier_id=BARRIER)
        if warp == 0:
            arch.mbarrier_wait(loaded, 0)
            for k_block in cutlass.range_constexpr(4):
                tiled_mma.set(tcgen05.Field.ACCUMULATE, k_block != 0)
                block = (None, None, k_block, 0)
                cute.gemm(tiled_mma, acc, tCrA[block], tCrB[block], acc)
            with arch.elect_one():
                tcgen05.commit(computed)
        arch.mbarrier_wait(computed, 0)
        tiled_load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(x(64)), cutlass.Float32), acc[((None, None), 0, 0)]
        )
        slice_load = tiled_load.get_slice(thread)
        tCgC = slice_mma.partition_C(cute.local_tile(mC, self.tile, (0, 0, None, 0), proj=(1, 1, None)))
        target = slice_load.partition_D(tCgC[((None, None), 0, 0)])
        results = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        cute.copy(tiled_load, slice_load.partition_S(acc[((None, None), 0, 0)]), results)
        arch.fence_view_async_tmem_load()
        cute.autovec_copy(results, target)
        tmem.relinquish_alloc_permit()
        pipeline.sync(barrier_id=BARRIER)
        tmem.free(tmem_ptr)


def operand_run(inputs: Tensors) -> Tensors:
    device = on_device(inputs)
    c = torch.empty((128, 64, 1), device="cuda")
    TmemOperandGemm()(argument(device["a"]), argument(device["b"]), argument(c))
    return {"c": c}


def operand_reference(inputs: Tensors) -> Tensors:
    return {"c": (2 * inputs["a"][..., 0].float() @ inputs["b"][..., 0].float().T)[..., None]}


LD32, ST32 = tcgen05.Ld32x32bOp, tcgen05.St32x32bOp

FEATURES = (
    *(
        round_trip_feature(
            f"tmem_32x32b_x{n}", ST32(x(n)), LD32(x(n)), rows=128, columns=max(n, 16), opcodes=(f"32x32b.x{n}",) * 2
        )
        for n in (1, 2, 4, 8, 16, 32, 64, 128)
    ),
    round_trip_feature(
        "tmem_16x64b",
        tcgen05.St16x64bOp(x(8)),
        tcgen05.Ld16x128bOp(x(4)),
        rows=64,
        columns=64,
        opcodes=("16x64b.x8", "16x128b.x4"),
    ),
    round_trip_feature(
        "tmem_16x128b",
        tcgen05.St16x128bOp(x(8)),
        tcgen05.Ld16x256bOp(x(2)),
        rows=64,
        columns=64,
        opcodes=("16x128b.x8", "16x256b.x2"),
    ),
    round_trip_feature(
        "tmem_16x256b",
        tcgen05.St16x256bOp(x(4)),
        tcgen05.Ld16x64bOp(x(32)),
        rows=64,
        columns=64,
        opcodes=("16x256b.x4", "16x64b.x32"),
    ),
    round_trip_feature(
        "tmem_16x32bx2",
        tcgen05.St16x32bx2Op(x(32)),
        tcgen05.Ld16x256bOp(x(8)),
        rows=64,
        columns=64,
        opcodes=("16x32bx2.x32", "16x256b.x8"),
    ),
    round_trip_feature(
        "tmem_16x32bx2_load",
        tcgen05.St16x256bOp(x(1)),
        tcgen05.Ld16x32bx2Op(x(16)),
        rows=64,
        columns=64,
        opcodes=("16x256b.x1", "16x32bx2.x16"),
    ),
    Feature(
        "mma_a_from_tmem",
        lambda seed: {
            "a": integers(seed, (128, 64, 1), stream=0).half(),
            "b": integers(seed, (64, 64, 1), stream=1).half(),
        },
        operand_run,
        operand_reference,
        opcodes=(
            r"tcgen05.mma.cta_group::1.kind::f16.*\[%r\d+\], *\[%r\d+\], *%rd",
            "tcgen05.st.sync.aligned.32x32b.x8.b32",
        ),
    ),
)
