"""``tcgen05.cp`` from unswizzled shared memory in the shapes without and with multicast; PTX ISA, "tcgen05.cp".

A matrix lies as core matrices of 8 rows by 16 bytes: those side by side are 128 bytes apart (leading dimension), those
below each other one block of 8 rows apart (stride dimension). What arrived is read back with ``tcgen05.ld``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import pipeline, utils
from cutlass._mlir.dialects import llvm
from cutlass.cute import arch
from cutlass.cute.nvgpu import tcgen05
from cutlass.cutlass_dsl import dsl_user_op

from .blocks import block_feature
from .feature import Feature

THREADS = 128
COLUMNS = 32
VERSION = 1 << 46


@dsl_user_op
def copy_to_tmem(
    form: str, address: cutlass.Int32, descriptor: cutlass.Int64, *, loc: Any = None, ip: Any = None
) -> None:
    """``tcgen05.cp`` of one form, in the thread that calls it."""
    operands = [
        cutlass.Int32(address).ir_value(loc=loc, ip=ip),
        cutlass.Int64(descriptor).ir_value(loc=loc, ip=ip),
    ]
    llvm.inline_asm(
        None,
        operands,
        f"tcgen05.cp.cta_group::1.{form} [$0], $1;",
        "r,l",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


def copied(form: str, rows: int, words: int) -> Callable[[cute.Tensor, cute.Tensor], None]:
    """``rows`` rows of ``words`` 32-bit words to TMEM columns from 8 on, then columns 0 to 31 of all lanes out."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        barrier = smem.allocate_array(cutlass.Int64, 1)
        # (row in core matrix, core matrix below, word in core matrix, core matrix aside)
        layout = cute.make_layout(((8, rows // 8), (4, words // 4)), stride=((4, 8 * words), (1, 32)))
        shared = smem.allocate_tensor(cutlass.Int32, layout, byte_alignment=128)
        tmem = utils.TmemAllocator(
            smem.allocate_array(cutlass.Int32, 1),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
        )
        if thread == 0:
            arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        tmem.allocate(COLUMNS)
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
        acc = cute.make_tensor(tmem_ptr, cute.make_layout((128, COLUMNS), stride=(1 << 16, 1)))
        if thread < rows:
            for word in cutlass.range_constexpr(words):
                shared[thread, word] = x[thread, word]
        # Columns that the copy does not write have to be defined as well.
        store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), cutlass.Float32), acc
        )
        slice_store = store.get_slice(thread)
        values = cute.make_rmem_tensor(slice_store.partition_S(y).shape, cutlass.Float32)
        values.fill(1.0)
        cute.copy(store, values, slice_store.partition_D(acc))
        arch.fence_view_async_tmem_store()
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if warp == 0:
            with arch.elect_one():
                start = cutlass.Int64(shared.iterator.toint())
                strides = (8 << 16) | (words * 2 << 32)
                copy_to_tmem(form, tmem_ptr.toint() + 8, (start >> 4) | strides | VERSION)
                tcgen05.commit(barrier)
        arch.mbarrier_wait(barrier, 0)
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32), acc
        )
        slice_load = load.get_slice(thread)
        out = slice_load.partition_D(y)
        back = cute.make_rmem_tensor(out.shape, cutlass.Float32)
        cute.copy(load, slice_load.partition_S(acc), back)
        arch.fence_view_async_tmem_load()
        cute.autovec_copy(back, out)
        tmem.relinquish_alloc_permit()
        pipeline.sync(barrier_id=1)
        tmem.free(tmem_ptr)

    return body


def reference(lanes_of: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The source row of each of the 128 lanes decides what is in its columns from 8 on."""

    def expected(x: np.ndarray) -> np.ndarray:
        y = np.ones((128, COLUMNS), np.float32)
        y[:, 8 : 8 + x.shape[1]] = x.view(np.float32)[lanes_of]
        return y

    return expected


def copy_feature(name: str, form: str, rows: int, words: int, lanes_of: np.ndarray) -> Feature:
    return block_feature(
        name,
        copied(form, rows, words),
        reference(lanes_of),
        shape=(rows, words),
        out_shape=(128, COLUMNS),
        out_dtype=np.float32,
        draw=lambda random, shape: random.integers(-999, 999, shape).astype(np.float32).view(np.int32),
        opcodes=(f"tcgen05.cp.cta_group::1.{form} ", "tcgen05.commit"),
    )


LANES = np.arange(128)

FEATURES = (
    copy_feature("cp_128x256b", "128x256b", 128, 8, LANES),
    copy_feature("cp_128x128b", "128x128b", 128, 4, LANES),
    copy_feature("cp_32x128b_warpx4", "warpx4.32x128b", 32, 4, LANES % 32),  # in Triton's order
    # Rows 0-31 go to warps 0 and 2, or to warps 0 and 1.
    copy_feature("cp_64x128b_02_13", "64x128b.warpx2::02_13", 64, 4, LANES % 64),
    copy_feature("cp_64x128b_01_23", "64x128b.warpx2::01_23", 64, 4, LANES % 32 + LANES // 64 * 32),
)
