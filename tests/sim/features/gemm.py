"""A tensor-core GEMM with one output tile per CTA or CTA pair, of which many features are one setting.

C[m, n] = sum over k of A[m, k] * B[n, k]. Warp 0 loads with TMA, warp 1 issues the MMAs, and all four warps store the
accumulator. The K loop goes through a ring of stages that wraps at least twice in every feature that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import torch
from cutlass import pipeline, utils
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import from_dlpack

from .feature import Feature, Tensors, integers, on_device

try:
    from cutlass.cute.nvgpu import OperandMajorMode
except ImportError:  # DSL 4.4
    from cutlass.cute.nvgpu.tcgen05 import OperandMajorMode

K_MAJOR = OperandMajorMode.K
SMEM = tcgen05.OperandSource.SMEM
ACC_BARRIER = 1
THREADS = 128


class TileGemm:
    """The kernel for one choice of instruction, tile, cluster and number of stages.

    :param make_op: makes the MMA operation for an (M, N) instruction shape and CTA group.
    :param tile: (M, N, K) of the tile of one MMA: of both CTAs together where ``two_cta``.
    :param cluster: CTAs of a cluster along M and N.
    :param load_op: the ``tcgen05.ld`` of the epilogue, which reads ``columns`` columns of the accumulator at a time.
    """

    def __init__(
        self,
        make_op: Callable[[tuple[int, int], tcgen05.CtaGroup], Any],
        *,
        tile: tuple[int, int, int],
        cluster: tuple[int, int] = (1, 1),
        two_cta: bool = False,
        stages: int = 2,
        accumulator: Any = cutlass.Float32,
        load_op: Any = None,
        columns: int = 32,
    ) -> None:
        self.make_op = make_op
        self.tile = tile
        self.cluster = cluster
        self.group = tcgen05.CtaGroup.TWO if two_cta else tcgen05.CtaGroup.ONE
        self.two_cta = two_cta
        self.stages = stages
        self.accumulator = accumulator
        self.load_op = load_op or tcgen05.Ld32x32bOp(tcgen05.Repetition(columns))
        self.columns = columns

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor) -> None:
        self.a_type = a.element_type
        self.b_type = b.element_type
        self.c_type = c.element_type
        tiled_mma = cute.make_tiled_mma(self.make_op(self.tile[:2], self.group))
        a_layout = sm100_utils.make_smem_layout_a(tiled_mma, self.tile, a.element_type, self.stages)
        b_layout = sm100_utils.make_smem_layout_b(tiled_mma, self.tile, b.element_type, self.stages)
        cluster_layout = cute.tiled_divide(cute.make_layout((*self.cluster, 1)), (tiled_mma.thr_id.shape,))
        a_op = sm100_utils.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id)
        b_op = sm100_utils.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id)
        stage = (None, None, None, 0)
        tf32 = cutlass.TFloat32 if a.element_type is cutlass.Float32 else None
        a_atom, a_coords = cute.nvgpu.make_tiled_tma_atom_A(
            a_op, a, cute.slice_(a_layout, stage), self.tile, tiled_mma, cluster_layout.shape, internal_type=tf32
        )
        b_atom, b_coords = cute.nvgpu.make_tiled_tma_atom_B(
            b_op, b, cute.slice_(b_layout, stage), self.tile, tiled_mma, cluster_layout.shape, internal_type=tf32
        )
        ctas_per_tile = cute.size(tiled_mma.thr_id.shape)
        grid = cute.round_up(
            cute.ceil_div((*c.shape[:2], 1), (self.tile[0] // ctas_per_tile, self.tile[1], 1)), (*self.cluster, 1)
        )
        self.kernel(tiled_mma, a_atom, a_coords, b_atom, b_coords, c, cluster_layout, a_layout, b_layout).launch(
            grid=grid, block=(THREADS, 1, 1), cluster=(*self.cluster, 1)
        )

    @cute.kernel
    def kernel(
        self,
        tiled_mma: cute.TiledMma,
        a_atom: cute.CopyAtom,
        mA: cute.Tensor,
        b_atom: cute.CopyAtom,
        mB: cute.Tensor,
        mC: cute.Tensor,
        cluster_layout: cute.Layout,
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block_x, block_y, _ = cute.arch.block_idx()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        in_cluster = cluster_layout.get_flat_coord(rank)
        peers = cute.size(tiled_mma.thr_id.shape)
        peer = block_x % peers
        leads = peer == 0

        @cute.struct
        class Storage:
            ab_barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            acc_barriers: cute.struct.MemRange[cutlass.Int64, 2]
            dealloc_barrier: cute.struct.MemRange[cutlass.Int64, 1]
            tmem_address: cute.struct.MemRange[cutlass.Int32, 1]

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sA = smem.allocate_tensor(self.a_type, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(self.b_type, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)

        if warp == 0:
            cpasync.prefetch_descriptor(a_atom)
            cpasync.prefetch_descriptor(b_atom)

        stage = (None, None, None, 0)
        stage_bytes = cute.size_in_bytes(self.a_type, cute.slice_(a_layout, stage))
        stage_bytes += cute.size_in_bytes(self.b_type, cute.slice_(b_layout, stage))
        receivers = cute.size(cluster_layout, mode=[1]) + cute.size(cluster_layout, mode=[2]) - 1
        ab_producer, ab_consumer = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, receivers),
            tx_count=stage_bytes * peers,
            barrier_storage=storage.ab_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
        ).make_participants()
        acc_producer, acc_consumer = pipeline.PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS * peers),
            barrier_storage=storage.acc_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
        ).make_participants()
        tmem = utils.TmemAllocator(
            storage.tmem_address.data_ptr(),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=ACC_BARRIER, num_threads=THREADS),
            is_two_cta=self.two_cta,
            two_cta_tmem_dealloc_mbar_ptr=storage.dealloc_barrier.data_ptr(),
        )

        coord = (block_x // peers, block_y, None)
        gA = cute.local_tile(mA, self.tile, (*coord, 0), proj=(1, None, 1))
        gB = cute.local_tile(mB, self.tile, (*coord, 0), proj=(None, 1, 1))
        gC = cute.local_tile(mC, self.tile, (*coord, 0), proj=(1, 1, None))
        slice_mma = tiled_mma.get_slice(peer)
        tCgA = slice_mma.partition_A(gA)
        tCgB = slice_mma.partition_B(gB)
        tCgC = slice_mma.partition_C(gC)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtAcc = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2]))
        tmem.allocate(utils.get_num_tmem_alloc_cols(tCtAcc))

        tAsA, tAgA = cpasync.tma_partition(
            a_atom,
            in_cluster[2],
            cute.make_layout(cute.size(cluster_layout, mode=[2])),
            cute.group_modes(sA, 0, 3),
            cute.group_modes(tCgA, 0, 3),
        )
        tBsB, tBgB = cpasync.tma_partition(
            b_atom,
            in_cluster[1],
            cute.make_layout(cute.size(cluster_layout, mode=[1])),
            cute.group_modes(sB, 0, 3),
            cute.group_modes(tCgB, 0, 3),
        )
        a_mask = None
        b_mask = None
        if cutlass.const_expr(self.cluster != (1, 1)):
            a_mask = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=2)
            b_mask = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=1)
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(self.accumulator)
        tCtAcc = cute.make_tensor(tmem_ptr, tCtAcc.layout)
        k_tiles = cute.size(gA, mode=[2])

        if warp == 0:
            for k_tile in cutlass.range(k_tiles, unroll=1):
                empty = ab_producer.acquire_and_advance()
                cute.copy(
                    a_atom, tAgA[None, k_tile], tAsA[None, empty.index], tma_bar_ptr=empty.barrier, mcast_mask=a_mask
                )
                cute.copy(
                    b_atom, tBgB[None, k_tile], tBsB[None, empty.index], tma_bar_ptr=empty.barrier, mcast_mask=b_mask
                )
            ab_producer.tail()

        if warp == 1 and leads:
            acc_empty = acc_producer.acquire_and_advance()
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(k_tiles, unroll=1):
                full = ab_consumer.wait_and_advance()
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    block = (None, None, k_block, full.index)
                    cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            acc_empty.commit()

        tmem.relinquish_alloc_permit()
        load_atom = cute.make_copy_atom(self.load_op, self.accumulator)
        epilogue_tile = ((cute.size(tCtAcc, mode=[0, 0]), self.columns),)
        tiles = cute.zipped_divide(tCtAcc, epilogue_tile)
        tiled_load = tcgen05.make_tmem_copy(load_atom, tiles[None, 0])
        slice_load = tiled_load.get_slice(thread)
        tDtAcc = slice_load.partition_S(tiles)
        tDgC = slice_load.partition_D(cute.zipped_divide(tCgC, epilogue_tile))
        accumulators = cute.make_rmem_tensor(tDgC[None, None, 0].shape, self.accumulator)
        values = cute.make_rmem_tensor(tDgC[None, None, 0].shape, self.c_type)
        acc_full = acc_consumer.wait_and_advance()
        for tile in cutlass.range(cute.size(tDtAcc, mode=[2]), unroll=1):
            cute.copy(tiled_load, tDtAcc[None, None, tile], accumulators)
            values.store(accumulators.load().to(self.c_type))
            cute.autovec_copy(values, tDgC[None, None, tile])
        cute.arch.fence_view_async_tmem_load()
        acc_full.release()
        if warp == 1 and leads:
            acc_producer.tail()
        pipeline.sync(barrier_id=ACC_BARRIER)
        tmem.free(tmem_ptr)


def f16_op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
    """fp16 times fp16 into fp32, both K-major in shared memory."""
    return tcgen05.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (*shape, 16), group, SMEM, K_MAJOR, K_MAJOR)


def argument(tensor: torch.Tensor, element_type: Any = None) -> Any:
    """A DSL argument with dynamic extents; ``element_type`` names a type that torch holds as bytes."""
    converted = from_dlpack(tensor, assumed_align=16)
    if element_type is not None:
        converted.element_type = element_type
    leading = next(mode for mode in range(tensor.ndim) if tensor.stride(mode) == 1 and tensor.shape[mode] > 1)
    return converted.mark_layout_dynamic(leading_dim=leading)


def gemm_feature(
    name: str,
    gemm: Callable[[], TileGemm],
    *,
    mnk: tuple[int, int, int],
    a_type: torch.dtype,
    b_type: torch.dtype | None = None,
    c_type: torch.dtype = torch.float32,
    elements: tuple[str, str] | None = None,
    bounds: tuple[int, int] = (-3, 4),
    opcodes: tuple[str, ...],
    needs: tuple[str, ...] = (),
    transposed: bool = False,
) -> Feature:
    """The feature whose kernel is ``gemm()``, on A (M, K, 1) and B (N, K, 1) of small integers.

    :param transposed: A and B have M and N as their contiguous modes, instead of K.

    :param elements: DSL names of the types of A and B where DLPack cannot carry torch's (8-bit floats).
    """
    m, n, k = mnk
    b_torch = b_type or a_type

    def kernel_inputs(seed: int) -> Tensors:
        low, high = bounds
        return {
            "a": integers(seed, (m, k, 1), low=low, high=high, stream=0).to(a_type),
            "b": integers(seed, (n, k, 1), low=low, high=high, stream=1).to(b_torch),
        }

    def run(inputs: Tensors) -> Tensors:
        device = on_device(inputs)
        if transposed:
            device = {key: tensor.transpose(0, 1).contiguous().transpose(0, 1) for key, tensor in device.items()}
        c = torch.empty((m, n, 1), dtype=c_type, device="cuda")
        if elements is None:
            a, b = argument(device["a"]), argument(device["b"])
        else:
            types = [getattr(cutlass, element) for element in elements]
            a, b = (argument(device[key].view(torch.int8), element) for key, element in zip("ab", types, strict=True))
        gemm()(a, b, argument(c))
        return {"c": c}

    def reference(inputs: Tensors) -> Tensors:
        a, b = (inputs[key][..., 0].double() for key in "ab")
        return {"c": (a @ b.T)[..., None].to(c_type)}

    return Feature(name, kernel_inputs, run, reference, opcodes, needs=needs)
