"""TMA without MMA: every swizzle, reductions, prefetch and multicast; PTX ISA, "cp.async.bulk.tensor"."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from cutlass import utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import from_dlpack

from .feature import Feature, Tensors, on_device

ROWS = 16
THREADS = 32


class TileMover:
    """Each CTA loads tiles of ``ROWS`` by ``columns`` from x, adds one, and stores or reduces them into y.

    Extents need not divide into tiles: what lies outside arrives as zeros and is not stored.

    :param swizzle: CuTe's (bits, base, shift) of the shared tile, of byte addresses; ``None`` for none.
    :param reduction: name of a ``ReductionKind``; ``None`` stores.
    :param cluster: CTAs along rows, each of which loads its part of every tile and sends it to all of them.
    """

    def __init__(
        self,
        columns: int,
        *,
        swizzle: tuple[int, int, int] | None = None,
        reduction: str | None = None,
        cluster: int = 1,
    ) -> None:
        self.columns = columns
        self.swizzle = swizzle or (0, 4, 3)
        self.reduction = reduction
        self.cluster = cluster

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor) -> None:
        self.type = x.element_type
        layout = cute.make_layout((ROWS, self.columns), stride=(self.columns, 1))
        swizzle = cute.make_swizzle(*self.swizzle)
        staged = cute.make_composed_layout(swizzle, 0, layout)
        load_op = cpasync.CopyBulkTensorTileG2SOp()
        if cutlass.const_expr(self.cluster > 1):
            load_op = cpasync.CopyBulkTensorTileG2SMulticastOp(tcgen05.CtaGroup.ONE)
        store_op = cpasync.CopyBulkTensorTileS2GOp()
        if cutlass.const_expr(self.reduction is not None):
            store_op = cpasync.CopyReduceBulkTensorTileS2GOp(reduction_kind(self.reduction))
        tile = (ROWS, self.columns)
        load, source = cpasync.make_tiled_tma_atom(load_op, x, staged, tile, num_multicast=self.cluster)
        store, target = cpasync.make_tiled_tma_atom(store_op, y, staged, tile)
        grid = (*cute.ceil_div(x.shape, tile), 1)
        self.kernel(load, source, store, target, staged).launch(
            grid=(grid[0] * self.cluster, grid[1], 1), block=(THREADS, 1, 1), cluster=(self.cluster, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        load: cute.CopyAtom,
        source: cute.Tensor,
        store: cute.CopyAtom,
        target: cute.Tensor,
        staged: cute.ComposedLayout,
    ) -> None:
        thread, _, _ = arch.thread_idx()
        block_x, block_y, _ = arch.block_idx()
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        barrier = smem.allocate_array(cutlass.Int64, 1)
        shared = smem.allocate_tensor(self.type, staged.outer, byte_alignment=1024, swizzle=staged.inner)
        tile = (ROWS, self.columns)
        where = (block_x // self.cluster, block_y)
        parts = cute.make_layout(self.cluster)
        sX, gX = cpasync.tma_partition(
            load,
            rank,
            parts,
            cute.group_modes(shared, 0, 2),
            cute.group_modes(cute.local_tile(source, tile, where), 0, 2),
        )
        sY, gY = cpasync.tma_partition(
            store,
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 2),
            cute.group_modes(cute.local_tile(target, tile, where), 0, 2),
        )
        cpasync.prefetch_descriptor(load)
        cute.prefetch(load, gX)
        if thread == 0:
            arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        arch.cluster_arrive_relaxed()
        arch.cluster_wait()
        with arch.elect_one():
            arch.mbarrier_arrive_and_expect_tx(barrier, ROWS * self.columns * self.type.width // 8)
        if cutlass.const_expr(self.cluster > 1):
            cute.copy(load, gX, sX, tma_bar_ptr=barrier, mcast_mask=cutlass.Int16((1 << self.cluster) - 1))
        else:
            cute.copy(load, gX, sX, tma_bar_ptr=barrier)
        arch.mbarrier_wait(barrier, 0)
        for row in cutlass.range_constexpr(ROWS):
            if thread < self.columns:
                shared[row, thread] = shared[row, thread] + self.type(rank + 1)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        cute.copy(store, sY, gY)
        arch.cp_async_bulk_commit_group()
        arch.cp_async_bulk_wait_group(0)


def reduction_kind(name: str) -> Any:
    """The DSL's enumeration of TMA reductions, which 4.8 moved."""
    enumeration = getattr(cpasync.copy, "ReductionKind", None) or cpasync.copy.ReductionOp
    return getattr(enumeration, name)


def mover_feature(
    name: str,
    mover: TileMover,
    extents: tuple[int, int],
    dtype: type,
    *opcodes: str,
    combine: Any = None,
    needs: tuple[str, ...] = (),
) -> Feature:
    """y begins as a ramp where ``combine(old, new)`` reduces into it, and as zeros otherwise."""

    def kernel_inputs(seed: int) -> Tensors:
        random = np.random.default_rng(seed)
        old = np.arange(extents[0] * extents[1]).reshape(extents) % 97 if combine else np.zeros(extents)
        return {
            "x": torch.from_numpy(random.integers(0, 90, extents).astype(dtype)),
            "y": torch.from_numpy(old.astype(dtype)),
        }

    def run(inputs: Tensors) -> Tensors:
        device = on_device(inputs)
        mover(*(from_dlpack(device[key], assumed_align=16) for key in "xy"))
        return {"y": device["y"]}

    def reference(inputs: Tensors) -> Tensors:
        x, old = inputs["x"].numpy(), inputs["y"].numpy()
        y = old
        for rank in range(mover.cluster):
            y = combine(y, (x + rank + 1).astype(dtype)) if combine else x + rank + 1
        return {"y": torch.from_numpy(np.ascontiguousarray(y.astype(dtype)))}

    return Feature(name, kernel_inputs, run, reference, opcodes, needs=needs)


LOAD = "cp.async.bulk.tensor.2d.shared::(cta|cluster).global.tile.mbarrier::complete_tx::bytes"
MULTICAST = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
PREFETCH = "cp.async.bulk.prefetch.tensor.2d.L2.global"


def reduced(kind: str, dtype: type, combine: Any) -> Feature:
    opcode = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{kind}.tile.bulk_group"
    name = f"tma_reduce_{kind}_{np.dtype(dtype).name}"
    # DSL 4.4 names only the first three.
    needs = () if kind in ("add", "min", "max") else ("cute.nvgpu.cpasync.copy.ReductionKind",)
    return mover_feature(
        name, TileMover(32, reduction=kind.upper()), (40, 40), dtype, opcode, combine=combine, needs=needs
    )


FEATURES = (
    mover_feature("tma_swizzle_none", TileMover(32), (40, 40), np.float32, LOAD, STORE, PREFETCH, "prefetch.tensormap"),
    mover_feature("tma_swizzle_128b", TileMover(32, swizzle=(3, 4, 3)), (40, 40), np.float32, LOAD, STORE, PREFETCH),
    mover_feature("tma_swizzle_64b", TileMover(32, swizzle=(2, 4, 3)), (40, 40), np.float16, LOAD, STORE, PREFETCH),
    mover_feature("tma_swizzle_32b", TileMover(8, swizzle=(1, 4, 3)), (20, 20), np.float32, LOAD, STORE, PREFETCH),
    mover_feature(
        "tma_multicast_reduce",  # four CTAs hold the same tile, each adds another number to it
        TileMover(32, reduction="ADD", cluster=4),
        (32, 64),
        np.float32,
        MULTICAST,
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group",
        combine=np.add,
    ),
    reduced("add", np.float16, np.add),
    reduced("add", np.int32, np.add),
    reduced("min", np.int32, np.minimum),
    reduced("max", np.int32, np.maximum),
    reduced("and", np.int32, np.bitwise_and),
    reduced("or", np.int32, np.bitwise_or),
    reduced("xor", np.int32, np.bitwise_xor),
)
