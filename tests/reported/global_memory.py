"""State in global memory that CTAs share, and tensor maps."""

from __future__ import annotations

from collections.abc import Callable

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32, Int64, utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

from .launching import Body, launch
from .stages import bulk_atoms

CTAS = 3
BUCKETS = 32
ROUNDS = 3
TILE = (32, 32)
MAP_BYTES = 128


@cute.jit
def arrive_at_grid(counter: cute.Pointer, count: Int32) -> None:
    """All threads of all CTAs meet at a counter."""
    thread, _, _ = arch.thread_idx()
    arch.sync_threads()
    if thread == 0:
        arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")
        arrived = Int32(0)
        while arrived < count:
            arrived = arch.load(counter.llvm_ptr, Int32, sem="acquire", scope="gpu")
    arch.sync_threads()


def radix_rounds(mended: bool) -> Body:
    """Rounds of a histogram over all CTAs; the first CTA clears it for the next round. y: histogram, counter."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        histogram, counter = y.iterator, y.iterator + BUCKETS
        meetings = Int32(0)
        for row in cutlass.range(ROUNDS, unroll=1):
            bucket = (x[block, thread] + row) % BUCKETS
            arch.atomic_add(histogram + bucket, Int32(1), sem="relaxed", scope="gpu")
            meetings += CTAS
            arrive_at_grid(counter, meetings)
            below = Int32(0)
            for i in cutlass.range(BUCKETS // 2, unroll=1):
                below += y[0, i]
            y[2 + block, thread] = below
            arch.sync_warp()
            if cutlass.const_expr(mended):
                meetings += CTAS
                arrive_at_grid(counter, meetings)
            if block == 0:
                y[0, thread] = Int32(0)
            meetings += CTAS
            arrive_at_grid(counter, meetings)

    return body


def polled(mended: bool) -> Body:
    """A CTA writes a tile and raises a flag; another polls the flag and loads the tile by a bulk copy."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        smem = utils.SmemAllocator()
        tile = smem.allocate_tensor(Int32, cute.make_layout(32), byte_alignment=128)
        full = smem.allocate_array(Int64, 1)
        flag = y.iterator + 64
        if block == 0:
            y[0, thread] = x[0, thread]
            arch.sync_threads()
            if thread == 0:
                arch.store(flag.llvm_ptr, Int32(1), sem="release", scope="gpu")
        else:
            if thread == 0:
                arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
            arch.sync_threads()
            load, _ = bulk_atoms()
            if thread == 0:
                raised = Int32(0)
                while raised == 0:
                    raised = arch.load(flag.llvm_ptr, Int32, sem="acquire", scope="gpu")
                if cutlass.const_expr(mended):
                    arch.fence_proxy("async")
                arch.mbarrier_arrive_and_expect_tx(full, 128)
                cute.copy(load, *cpasync.group_bulk_copy_modes(y[0, None], tile), mbar_ptr=full)
            arch.mbarrier_wait(full, 0)
            y[1, thread] = tile[thread]

    return body


class Groups:
    """A pair of CTAs loads a tile of each of some matrices, with a tensor map that it rewrites for each.

    Args:
        slots: Number of maps: one for each CTA, or one for both.
        drains: Whether a CTA waits for its load before it rewrites the map.
    """

    def __init__(self, *, slots: int, drains: bool) -> None:
        self.slots, self.drains = slots, drains

    @cute.jit
    def __call__(self, table: cute.Tensor, maps: cute.Tensor, template: cute.Tensor, y: cute.Tensor) -> None:
        layout = cute.make_layout(TILE, stride=(TILE[1], 1))
        atom, coords = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), template, layout, TILE)
        self.kernel(atom, coords, table, maps, y).launch(grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1))

    @cute.kernel
    def kernel(
        self, atom: cute.CopyAtom, coords: cute.Tensor, table: cute.Tensor, maps: cute.Tensor, y: cute.Tensor
    ) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        smem = utils.SmemAllocator()
        tiles = smem.allocate_tensor(
            cutlass.Float32, cute.make_layout((*TILE, 2), stride=(TILE[1], 1, TILE[0] * TILE[1])), byte_alignment=128
        )
        full = smem.allocate_array(Int64, 2)
        if thread == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(full + 1, 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        manager = utils.TensorMapManager(utils.TensorMapUpdateMode.GMEM, MAP_BYTES)
        slot = maps[block % self.slots, None].iterator
        in_gmem = manager.get_tensormap_ptr(slot)
        descriptor = manager.get_tensormap_ptr(slot, cute.AddressSpace.generic)
        manager.init_tensormap_from_atom(atom, in_gmem, 0)
        manager.fence_tensormap_initialization()
        sX, gX = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2),
            cute.group_modes(cute.local_tile(coords, TILE, (None, None)), 0, 2),
        )  # fmt: skip
        for i in cutlass.range_constexpr(2):
            pointer = cute.make_ptr(cutlass.Float32, table[i, 0], cute.AddressSpace.gmem, assumed_align=16)
            matrix = cute.make_tensor(pointer, cute.make_layout(TILE, stride=(TILE[1], 1)))
            manager.update_tensormap((matrix,), (atom,), (in_gmem,), 0, (in_gmem,))
            manager.fence_tensormap_update(in_gmem)
            with arch.elect_one():
                arch.mbarrier_arrive_and_expect_tx(full + i, 4 * TILE[0] * TILE[1])
            cute.copy(atom, gX[None, 0, 0], sX[None, i], tma_bar_ptr=full + i, tma_desc_ptr=descriptor)
            if cutlass.const_expr(self.drains):
                arch.mbarrier_wait(full + i, 0)
        for i in cutlass.range_constexpr(2):
            arch.mbarrier_wait(full + i, 0)
            y[2 * block + i, thread] = tiles[thread, 0, i]


def grouped(make: Callable[[bool], Groups]) -> Callable[[bool], None]:
    """Return a function that launches a kernel of groups."""

    def run(mended: bool) -> None:
        matrices = [torch.full(TILE, float(i + 1)).cuda() for i in range(2)]
        table = torch.tensor([[matrix.data_ptr()] for matrix in matrices], dtype=torch.int64, device="cuda")
        maps = torch.zeros((2, MAP_BYTES // 8), dtype=torch.int64).cuda()
        y = torch.zeros((4, TILE[0])).cuda()
        template = from_dlpack(matrices[0], assumed_align=16).mark_layout_dynamic(leading_dim=1)
        make(mended)(
            from_dlpack(table, assumed_align=8), from_dlpack(maps, assumed_align=MAP_BYTES), template, from_dlpack(y)
        )

    return run


LAUNCHES = {
    "NVIDIA/cutlass#3165": grouped(lambda mended: Groups(slots=2 if mended else 1, drains=True)),
    "deepseek-ai/DeepGEMM#430": grouped(lambda mended: Groups(slots=2, drains=mended)),
    "flashinfer-ai/flashinfer#4126": launch(
        radix_rounds, rows=CTAS, columns=BUCKETS, ctas=CTAS, threads=BUCKETS, out_rows=2 + CTAS
    ),
    "deepseek-ai/DeepEP#642": launch(polled, rows=3, columns=32, ctas=2, threads=32),
}
