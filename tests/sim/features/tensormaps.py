"""Tensor maps that kernels rewrite for each problem, in shared or global memory; PTX ISA, "tensormap.replace".

Every CTA takes problems one after another: it replaces address, extents and stride of its own tensor map, publishes it
to the tensormap proxy and loads the problem's matrix tile by tile. What lies outside of a matrix arrives as zeros.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

from .feature import Feature, Tensors, integers

TILE = (64, 32)
PADDED = (128, 64)
EXTENTS = ((128, 64), (37, 36), (100, 20), (64, 32), (1, 4))
CTAS = 2
BYTES = 128
THREADS = 64


class GroupedCopy:
    """Copies matrices of different extents, zero-padded, into equal blocks of one output."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode

    @cute.jit
    def __call__(self, table: cute.Tensor, maps: cute.Tensor, template: cute.Tensor, y: cute.Tensor) -> None:
        smem_layout = cute.make_layout(TILE, stride=(TILE[1], 1))
        atom, coords = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), template, smem_layout, TILE)
        self.kernel(atom, coords, table, maps, y).launch(grid=(CTAS, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(
        self, atom: cute.CopyAtom, coords: cute.Tensor, table: cute.Tensor, maps: cute.Tensor, y: cute.Tensor
    ) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        staged = smem.allocate_tensor(cutlass.Int64, cute.make_layout(BYTES // 8), byte_alignment=BYTES)
        shared = smem.allocate_tensor(cutlass.Float32, cute.make_layout(TILE, stride=(TILE[1], 1)), byte_alignment=128)
        barrier = smem.allocate_array(cutlass.Int64, 1)
        manager = utils.TensorMapManager(self.mode, BYTES)
        in_gmem = manager.get_tensormap_ptr(maps[block, None].iterator)
        descriptor = manager.get_tensormap_ptr(maps[block, None].iterator, cute.AddressSpace.generic)
        target = staged.iterator if self.mode == utils.TensorMapUpdateMode.SMEM else in_gmem
        if thread == 0:
            arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        if cutlass.const_expr(self.mode == utils.TensorMapUpdateMode.SMEM):  # noqa: SIM102 (decided when tracing)
            # The template may be shorter than the 128 bytes that are published.
            if thread < BYTES // 8:
                staged[thread] = cutlass.Int64(0)
        arch.sync_threads()
        manager.init_tensormap_from_atom(atom, target, 0)
        manager.fence_tensormap_initialization()
        tiles = cute.local_tile(coords, TILE, (None, None))
        sX, gX = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        parity = cutlass.Int32(0)
        for problem in cutlass.range(block, len(EXTENTS), CTAS, unroll=1):
            pointer = cute.make_ptr(cutlass.Float32, table[problem, 0], cute.AddressSpace.gmem, assumed_align=16)
            rows, columns = cutlass.Int32(table[problem, 1]), cutlass.Int32(table[problem, 2])
            columns = cute.assume(columns, divby=4)
            real = cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, 1)))
            manager.update_tensormap((real,), (atom,), (in_gmem,), 0, (target,))
            if warp == 0:
                manager.fence_tensormap_update(in_gmem)
            for i in cutlass.range_constexpr(PADDED[0] // TILE[0]):
                for j in cutlass.range_constexpr(PADDED[1] // TILE[1]):
                    if warp == 0:
                        with arch.elect_one():
                            arch.mbarrier_arrive_and_expect_tx(barrier, 4 * TILE[0] * TILE[1])
                        cute.copy(atom, gX[None, i, j], sX, tma_bar_ptr=barrier, tma_desc_ptr=descriptor)
                    arch.mbarrier_wait(barrier, parity)
                    parity ^= 1
                    for column in cutlass.range_constexpr(TILE[1]):
                        y[problem, i * TILE[0] + thread, j * TILE[1] + column] = shared[thread, column]
                    arch.sync_threads()


def grouped_feature(name: str, mode: str, *opcodes: str) -> Feature:
    def kernel_inputs(seed: int) -> Tensors:
        return {f"x{i}": integers(seed, extents, low=-99, high=100, stream=i) for i, extents in enumerate(EXTENTS)}

    def run(inputs: Tensors) -> Tensors:
        matrices = [inputs[f"x{i}"].cuda() for i in range(len(EXTENTS))]
        rows = [[matrix.data_ptr(), *matrix.shape] for matrix in matrices]
        table = torch.tensor(rows, dtype=torch.int64, device="cuda")
        maps = torch.empty((CTAS, BYTES // 8), dtype=torch.int64, device="cuda")
        y = torch.empty((len(EXTENTS), *PADDED), device="cuda")
        template = from_dlpack(matrices[0], assumed_align=16).mark_layout_dynamic(leading_dim=1)
        template = template.mark_compact_shape_dynamic(mode=1, stride_order=(0, 1), divisibility=4)
        kernel = GroupedCopy(getattr(utils.TensorMapUpdateMode, mode))
        kernel(
            from_dlpack(table, assumed_align=16),
            from_dlpack(maps, assumed_align=BYTES),
            template,
            from_dlpack(y, assumed_align=16),
        )
        return {"y": y}

    def reference(inputs: Tensors) -> Tensors:
        y = torch.zeros((len(EXTENTS), *PADDED))
        for i, (rows, columns) in enumerate(EXTENTS):
            y[i, :rows, :columns] = inputs[f"x{i}"]
        return {"y": y}

    return Feature(name, kernel_inputs, run, reference, opcodes)


REPLACED = ("global_address", "global_dim", "global_stride")

FEATURES = (
    grouped_feature(
        "tensormap_in_shared",
        "SMEM",
        *(f"tensormap.replace.tile.{field}.shared::cta" for field in REPLACED),
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
        "fence.proxy.tensormap::generic.acquire.gpu",
    ),
    grouped_feature(
        "tensormap_in_global",
        "GMEM",
        *(f"tensormap.replace.tile.{field}.global" for field in REPLACED),
        "fence.proxy.tensormap::generic.release.gpu",
        "fence.proxy.tensormap::generic.acquire.gpu",
    ),
)
