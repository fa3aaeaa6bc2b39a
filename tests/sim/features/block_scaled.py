"""Block-scaled ``tcgen05.mma``: mxf8f6f4, mxf4 and mxf4nvf4; PTX ISA, "tcgen05.mma" and "Scale factor layout".

A, B and their scales come by TMA, the scales go to TMEM with ``tcgen05.cp`` and every instruction names the scales of
its part of K. In global memory the scales lie as 512-byte atoms of 128 rows by 4 scales, row r and scale j of an atom
at byte ``(r % 32) * 16 + (r // 32) * 4 + j``, and the atoms of a block of rows follow each other along K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
import numpy as np
import torch
from cutlass import pipeline, utils
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_ptr

from .feature import Feature, Tensors, on_device
from .gemm import K_MAJOR, SMEM, argument

ACC_BARRIER = 1
THREADS = 128
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


class ScaledGemm:
    """One tile of 128 x ``tile_n`` per CTA; a pair of CTAs shares one of 256 x ``tile_n`` where ``two_cta``.

    :param make_op: makes the MMA operation for an (M, N) instruction shape and CTA group.
    :param sf_type: DSL type of the scales, ``sf_vec`` elements along K to each.
    """

    def __init__(
        self,
        make_op: Callable[[tuple[int, int], tcgen05.CtaGroup], Any],
        *,
        sf_type: Any,
        sf_vec: int,
        tile_n: int,
        tile_k: int,
        two_cta: bool = False,
        stages: int = 2,
    ) -> None:
        self.make_op = make_op
        self.sf_type = sf_type
        self.sf_vec = sf_vec
        self.two_cta = two_cta
        self.group = tcgen05.CtaGroup.TWO if two_cta else tcgen05.CtaGroup.ONE
        self.tile = (256 if two_cta else 128, tile_n, tile_k)
        self.cluster = (2, 1) if two_cta else (1, 1)
        self.stages = stages

    @cute.jit
    def __call__(
        self,
        a_ptr: cute.Pointer,
        b_ptr: cute.Pointer,
        sfa_ptr: cute.Pointer,
        sfb_ptr: cute.Pointer,
        c: cute.Tensor,
        k: cutlass.Int32,
    ) -> None:
        self.a_type = a_ptr.value_type
        self.b_type = b_ptr.value_type
        self.c_type = c.element_type
        m, n = c.shape[0], c.shape[1]
        k = cute.assume(k, divby=32)
        a = cute.make_tensor(a_ptr, cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
        b = cute.make_tensor(b_ptr, cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
        sfa = cute.make_tensor(sfa_ptr, blockscaled_utils.tile_atom_to_shape_SF(a.shape, self.sf_vec))
        sfb = cute.make_tensor(sfb_ptr, blockscaled_utils.tile_atom_to_shape_SF(b.shape, self.sf_vec))
        tiled_mma = cute.make_tiled_mma(self.make_op(self.tile[:2], self.group))
        # Each CTA of a pair needs all scales of B: they are partitioned as those of one CTA with its own half of M.
        sfb_mma = cute.make_tiled_mma(self.make_op((128, self.tile[1]), tcgen05.CtaGroup.ONE))
        sfb_tile = (128, *self.tile[1:])
        a_layout = sm100_utils.make_smem_layout_a(tiled_mma, self.tile, self.a_type, self.stages)
        b_layout = sm100_utils.make_smem_layout_b(tiled_mma, self.tile, self.b_type, self.stages)
        sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, self.tile, self.sf_vec, self.stages)
        sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, self.tile, self.sf_vec, self.stages)
        shape = (*self.cluster, 1)
        cluster_layout = cute.tiled_divide(cute.make_layout(shape), (tiled_mma.thr_id.shape,))
        sfb_cluster_layout = cute.tiled_divide(cute.make_layout(shape), (sfb_mma.thr_id.shape,))
        a_op = sm100_utils.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id)
        b_op = sm100_utils.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id)
        sfb_op = sm100_utils.cluster_shape_to_tma_atom_SFB(self.cluster, tiled_mma.thr_id)
        stage = (None, None, None, 0)
        a_atom, a_coords = cute.nvgpu.make_tiled_tma_atom_A(
            a_op, a, cute.slice_(a_layout, stage), self.tile, tiled_mma, cluster_layout.shape
        )
        b_atom, b_coords = cute.nvgpu.make_tiled_tma_atom_B(
            b_op, b, cute.slice_(b_layout, stage), self.tile, tiled_mma, cluster_layout.shape
        )
        sfa_atom, sfa_coords = cute.nvgpu.make_tiled_tma_atom_A(
            a_op,
            sfa,
            cute.slice_(sfa_layout, stage),
            self.tile,
            tiled_mma,
            cluster_layout.shape,
            internal_type=cutlass.Int16,
        )
        sfb_atom, sfb_coords = cute.nvgpu.make_tiled_tma_atom_B(
            sfb_op,
            sfb,
            cute.slice_(sfb_layout, stage),
            sfb_tile,
            sfb_mma,
            sfb_cluster_layout.shape,
            internal_type=cutlass.Int16,
        )
        self.stage_bytes = (
            cute.size_in_bytes(self.a_type, cute.slice_(a_layout, stage))
            + cute.size_in_bytes(self.b_type, cute.slice_(b_layout, stage))
            + cute.size_in_bytes(self.sf_type, cute.slice_(sfa_layout, stage))
            + cute.size_in_bytes(self.sf_type, cute.slice_(sfb_layout, stage))
        ) * cute.size(tiled_mma.thr_id.shape)
        self.kernel(
            (tiled_mma, sfb_mma),
            (a_atom, b_atom, sfa_atom, sfb_atom),
            (a_coords, b_coords, sfa_coords, sfb_coords),
            c,
            (cluster_layout, sfb_cluster_layout),
            a_layout,
            b_layout,
            sfa_layout,
            sfb_layout,
        ).launch(
            grid=(m // 128, n // self.tile[1], 1),
            block=(THREADS, 1, 1),
            cluster=shape,
        )

    @cute.kernel
    def kernel(
        self,
        mmas: tuple[cute.TiledMma, ...],
        atoms: tuple[cute.CopyAtom, ...],
        coords: tuple[cute.Tensor, ...],
        mC: cute.Tensor,
        cluster_layouts: tuple[cute.Layout, ...],
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
        sfa_layout: cute.Layout,
        sfb_layout: cute.Layout,
    ) -> None:
        tiled_mma, sfb_mma = mmas
        cluster_layout, sfb_cluster_layout = cluster_layouts
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block_x, block_y, _ = cute.arch.block_idx()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        in_cluster = cluster_layout.get_flat_coord(rank)
        sfb_in_cluster = sfb_cluster_layout.get_flat_coord(rank)
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
        sSFA = smem.allocate_tensor(self.sf_type, sfa_layout, byte_alignment=128)
        sSFB = smem.allocate_tensor(self.sf_type, sfb_layout, byte_alignment=128)
        ab_producer, ab_consumer = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
            tx_count=self.stage_bytes,
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
        tmem.allocate(512)

        tile_x = block_x // peers
        slice_mma = tiled_mma.get_slice(peer)
        slice_sfb = sfb_mma.get_slice(0)
        gA = cute.local_tile(coords[0], self.tile, (tile_x, block_y, None, 0), proj=(1, None, 1))
        gB = cute.local_tile(coords[1], self.tile, (tile_x, block_y, None, 0), proj=(None, 1, 1))
        gSFA = cute.local_tile(coords[2], self.tile, (tile_x, block_y, None, 0), proj=(1, None, 1))
        gSFB = cute.local_tile(coords[3], self.tile, (tile_x, block_y, None, 0), proj=(None, 1, 1))
        gC = cute.local_tile(mC, self.tile, (tile_x, block_y, None, 0), proj=(1, 1, None))
        tCgC = slice_mma.partition_C(gC)
        a_ctas = cute.make_layout(cute.size(cluster_layout, mode=[2]))
        b_ctas = cute.make_layout(cute.size(cluster_layout, mode=[1]))
        sfb_ctas = cute.make_layout(cute.size(sfb_cluster_layout, mode=[1]))

        def partition(
            atom: cute.CopyAtom, coord: Any, ctas: cute.Layout, shared: cute.Tensor, tiles: cute.Tensor
        ) -> tuple[cute.Tensor, cute.Tensor]:
            sX, gX = cpasync.tma_partition(
                atom, coord, ctas, cute.group_modes(shared, 0, 3), cute.group_modes(tiles, 0, 3)
            )
            return cute.filter_zeros(sX), cute.filter_zeros(gX)

        tAsA, tAgA = partition(atoms[0], in_cluster[2], a_ctas, sA, slice_mma.partition_A(gA))
        tBsB, tBgB = partition(atoms[1], in_cluster[1], b_ctas, sB, slice_mma.partition_B(gB))
        tAsSFA, tAgSFA = partition(atoms[2], in_cluster[2], a_ctas, sSFA, slice_mma.partition_A(gSFA))
        tBsSFB, tBgSFB = partition(atoms[3], sfb_in_cluster[1], sfb_ctas, sSFB, slice_sfb.partition_B(gSFB))
        masks = [None, None, None, None]
        if cutlass.const_expr(self.two_cta):
            masks[0] = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=2)
            masks[1] = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=1)
            masks[2] = masks[0]
            masks[3] = cpasync.create_tma_multicast_mask(sfb_cluster_layout, sfb_in_cluster, mcast_mode=1)

        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtAcc = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2]))
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
        tCtAcc = cute.make_tensor(tmem_ptr, tCtAcc.layout)
        one_stage = (None, None, None, 0)
        sfa_ptr = cute.recast_ptr(tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc), dtype=self.sf_type)
        tCtSFA = cute.make_tensor(
            sfa_ptr,
            blockscaled_utils.make_tmem_layout_sfa(
                tiled_mma, self.tile, self.sf_vec, cute.slice_(sfa_layout, one_stage)
            ),
        )
        sfb_ptr = cute.recast_ptr(
            tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc) + tcgen05.find_tmem_tensor_col_offset(tCtSFA),
            dtype=self.sf_type,
        )
        tCtSFB = cute.make_tensor(
            sfb_ptr,
            blockscaled_utils.make_tmem_layout_sfb(
                tiled_mma, self.tile, self.sf_vec, cute.slice_(sfb_layout, one_stage)
            ),
        )
        k_tiles = cute.size(gA, mode=[2])

        if warp == 0:
            for k_tile in cutlass.range(k_tiles, unroll=1):
                empty = ab_producer.acquire_and_advance()
                for i, (source, target) in enumerate(((tAgA, tAsA), (tBgB, tBsB), (tAgSFA, tAsSFA), (tBgSFB, tBsSFB))):
                    cute.copy(
                        atoms[i],
                        source[None, k_tile],
                        target[None, empty.index],
                        tma_bar_ptr=empty.barrier,
                        mcast_mask=masks[i],
                    )
            ab_producer.tail()

        if warp == 1 and leads:
            s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(self.group), self.sf_type)

            def scales_to_tmem(shared: cute.Tensor, columns: cute.Tensor) -> tuple[cute.TiledCopy, Any, cute.Tensor]:
                compact = cute.filter_zeros(columns)
                copy = tcgen05.make_s2t_copy(s2t_atom, compact)
                thread_copy = copy.get_slice(0)
                source = thread_copy.partition_S(cute.filter_zeros(shared))
                return copy, tcgen05.get_s2t_smem_desc_tensor(copy, source), thread_copy.partition_D(compact)

            copy_sfa, tSsSFA, tStSFA = scales_to_tmem(sSFA, tCtSFA)
            copy_sfb, tSsSFB, tStSFB = scales_to_tmem(sSFB, tCtSFB)
            acc_empty = acc_producer.acquire_and_advance()
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(k_tiles, unroll=1):
                full = ab_consumer.wait_and_advance()
                cute.copy(copy_sfa, tSsSFA[None, None, None, None, full.index], tStSFA)
                cute.copy(copy_sfb, tSsSFB[None, None, None, None, full.index], tStSFB)
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, None, k_block].iterator)
                    tiled_mma.set(tcgen05.Field.SFB, tCtSFB[None, None, k_block].iterator)
                    block = (None, None, k_block, full.index)
                    cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            acc_empty.commit()

        tmem.relinquish_alloc_permit()
        load_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), cutlass.Float32)
        epilogue_tile = ((cute.size(tCtAcc, mode=[0, 0]), 64),)
        tiles = cute.zipped_divide(tCtAcc, epilogue_tile)
        tiled_load = tcgen05.make_tmem_copy(load_atom, tiles[None, 0])
        slice_load = tiled_load.get_slice(thread)
        tDtAcc = slice_load.partition_S(tiles)
        tDgC = slice_load.partition_D(cute.zipped_divide(tCgC, epilogue_tile))
        values = cute.make_rmem_tensor(tDgC[None, None, 0].shape, cutlass.Float32)
        acc_full = acc_consumer.wait_and_advance()
        for tile in cutlass.range(cute.size(tDtAcc, mode=[2]), unroll=1):
            cute.copy(tiled_load, tDtAcc[None, None, tile], values)
            cute.autovec_copy(values, tDgC[None, None, tile])
        cute.arch.fence_view_async_tmem_load()
        acc_full.release()
        if warp == 1 and leads:
            acc_producer.tail()
        pipeline.sync(barrier_id=ACC_BARRIER)
        tmem.free(tmem_ptr)


def in_atoms(scales: np.ndarray) -> np.ndarray:
    """Bytes of scales (rows, blocks of K) in the order of the 512-byte atoms; both extents divide into atoms."""
    rows, blocks = scales.shape
    atoms = scales.reshape(rows // 128, 4, 32, blocks // 4, 4)  # (atom row, r // 32, r % 32, atom column, j)
    return np.ascontiguousarray(atoms.transpose(0, 3, 2, 1, 4)).reshape(-1)


def scaled_feature(
    name: str,
    make: Callable[[], ScaledGemm],
    *,
    mnk: tuple[int, int, int],
    elements: tuple[str, str],
    sf_type: str,
    sf_vec: int,
    opcodes: tuple[str, ...],
    needs: tuple[str, ...] = (),
) -> Feature:
    """The feature whose kernel is ``make()``. Scales are 0.5, 1 or 2, so that every sum is exact in float32.

    :param elements: DSL types of A and B: "Float4E2M1FN" (two to a byte) or an 8-bit float of torch's.
    """
    m, n, k = mnk
    torch_types = {"Float8E4M3FN": torch.float8_e4m3fn, "Float8E5M2": torch.float8_e5m2}
    scale_bytes = np.array({"Float8E8M0FNU": [126, 127, 128], "Float8E4M3FN": [0x30, 0x38, 0x40]}[sf_type], np.uint8)

    def kernel_inputs(seed: int) -> Tensors:
        random = np.random.default_rng(seed)
        drawn = {}
        for key, rows, element in (("a", m, elements[0]), ("b", n, elements[1])):
            if element == "Float4E2M1FN":
                drawn[key] = torch.from_numpy(random.integers(0, 256, (rows, k // 2), dtype=np.uint8))
            else:
                values = torch.from_numpy(random.integers(-4, 5, (rows, k)).astype(np.float32))
                drawn[key] = values.to(torch_types[element]).view(torch.uint8)
            drawn[f"sf{key}"] = torch.from_numpy(random.choice(scale_bytes, (rows, k // sf_vec)))
        return drawn

    def run(inputs: Tensors) -> Tensors:
        device = on_device({key: tensor for key, tensor in inputs.items() if not key.startswith("sf")})
        for key in ("sfa", "sfb"):
            device[key] = torch.from_numpy(in_atoms(inputs[key].numpy())).cuda()
        c = torch.empty((m, n, 1), dtype=torch.float32, device="cuda")

        def pointer(key: str, element: str) -> Any:
            address = device[key].data_ptr()
            return make_ptr(getattr(cutlass, element), address, cute.AddressSpace.gmem, assumed_align=32)

        pointers = [pointer("a", elements[0]), pointer("b", elements[1])]
        make()(*pointers, pointer("sfa", sf_type), pointer("sfb", sf_type), argument(c), k)
        return {"c": c}

    def reference(inputs: Tensors) -> Tensors:
        scales_of = dict(zip(scale_bytes.tolist(), (0.5, 1.0, 2.0), strict=True))
        wide = {}
        for key, element in zip("ab", elements, strict=True):
            data = inputs[key].numpy()
            if element == "Float4E2M1FN":
                values = E2M1[np.stack([data & 15, data >> 4], axis=-1)].reshape(len(data), k)
            else:
                values = inputs[key].view(torch_types[element]).double().numpy()
            scales = np.vectorize(scales_of.__getitem__)(inputs[f"sf{key}"].numpy())
            wide[key] = values * np.repeat(scales, sf_vec, axis=1)
        return {"c": torch.from_numpy((wide["a"] @ wide["b"].T)[..., None].astype(np.float32))}

    return Feature(name, kernel_inputs, run, reference, opcodes, needs=needs)


def mxf8(tile_n: int = 128, *, two_cta: bool = False) -> ScaledGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaMXF8Op(cutlass.Float8E4M3FN, (*shape, 32), group, SMEM, K_MAJOR, K_MAJOR)

    return ScaledGemm(op, sf_type=cutlass.Float8E8M0FNU, sf_vec=32, tile_n=tile_n, tile_k=128, two_cta=two_cta)


def mxf8_mixed() -> ScaledGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaMXF8F6F4Op(
            cutlass.Float8E4M3FN, cutlass.Float8E5M2, (*shape, 32), group, SMEM, K_MAJOR, K_MAJOR
        )

    return ScaledGemm(op, sf_type=cutlass.Float8E8M0FNU, sf_vec=32, tile_n=128, tile_k=128)


def mxf4() -> ScaledGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaMXF4Op((*shape, 64), group, SMEM)

    return ScaledGemm(op, sf_type=cutlass.Float8E8M0FNU, sf_vec=32, tile_n=128, tile_k=256)


def nvf4(sf_type: str, *, tile_n: int = 128, two_cta: bool = False) -> ScaledGemm:
    scale = getattr(cutlass, sf_type)

    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaMXF4NVF4Op(scale, (*shape, 64), group, SMEM)

    return ScaledGemm(op, sf_type=scale, sf_vec=16, tile_n=tile_n, tile_k=256, two_cta=two_cta)


FP4 = ("Float4E2M1FN", "Float4E2M1FN")
E4M3 = ("Float8E4M3FN", "Float8E4M3FN")
COPY = "tcgen05.cp.cta_group::1.32x128b.warpx4"

FEATURES = (
    scaled_feature(
        "mma_mxf8",
        mxf8,
        mnk=(128, 128, 640),
        elements=E4M3,
        sf_type="Float8E8M0FNU",
        sf_vec=32,
        opcodes=("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.(block32|scale_vec::1X)", COPY),
    ),
    scaled_feature(
        "mma_mxf8_mixed",
        mxf8_mixed,
        mnk=(128, 128, 640),
        elements=("Float8E4M3FN", "Float8E5M2"),
        sf_type="Float8E8M0FNU",
        sf_vec=32,
        opcodes=("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.(block32|scale_vec::1X)", COPY),
        needs=("cute.nvgpu.tcgen05.MmaMXF8F6F4Op",),
    ),
    scaled_feature(
        "mma_mxf8_two_cta",
        lambda: mxf8(256, two_cta=True),
        mnk=(256, 256, 640),
        elements=E4M3,
        sf_type="Float8E8M0FNU",
        sf_vec=32,
        opcodes=(
            "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.(block32|scale_vec::1X)",
            "tcgen05.cp.cta_group::2.32x128b.warpx4",
        ),
    ),
    scaled_feature(
        "mma_mxf4",
        mxf4,
        mnk=(128, 128, 1280),
        elements=FP4,
        sf_type="Float8E8M0FNU",
        sf_vec=32,
        opcodes=(r"tcgen05.mma.cta_group::1.kind::mxf4(nvf4)?.block_scale.(block32|scale_vec::2X)", COPY),
    ),
    scaled_feature(
        "mma_nvf4",
        lambda: nvf4("Float8E4M3FN"),
        mnk=(256, 256, 1280),
        elements=FP4,
        sf_type="Float8E4M3FN",
        sf_vec=16,
        opcodes=(r"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.(block16|scale_vec::4X)", COPY),
    ),
    scaled_feature(
        "mma_nvf4_ue8m0",
        lambda: nvf4("Float8E8M0FNU", tile_n=256),
        mnk=(128, 256, 1280),
        elements=FP4,
        sf_type="Float8E8M0FNU",
        sf_vec=16,
        opcodes=(r"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.(block16|scale_vec::4X)", COPY),
    ),
    scaled_feature(
        "mma_nvf4_two_cta",
        lambda: nvf4("Float8E4M3FN", two_cta=True),
        mnk=(512, 256, 1280),
        elements=FP4,
        sf_type="Float8E4M3FN",
        sf_vec=16,
        opcodes=(
            r"tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.(block16|scale_vec::4X)",
            "tcgen05.cp.cta_group::2.32x128b.warpx4",
        ),
    ),
)
