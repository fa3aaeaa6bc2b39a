"""Launch features: programmatic dependent launch, ``setmaxnreg``, special registers, 2- and 3-dimensional blocks."""

from __future__ import annotations

import cutlass.cute as cute
import numpy as np
import torch
from cutlass.cute import arch
from cutlass.cute.runtime import from_dlpack

from .blocks import block_feature
from .feature import Feature, Tensors, integers, on_device


class Chain:
    """Two kernels on one stream, the second of which may start early and waits for the first (griddepcontrol)."""

    @cute.jit
    def __call__(self, x: cute.Tensor, middle: cute.Tensor, y: cute.Tensor) -> None:
        self.first(x, middle).launch(grid=(2, 1, 1), block=(64, 1, 1))
        self.second(middle, y).launch(grid=(2, 1, 1), block=(64, 1, 1), use_pdl=True)

    @cute.kernel
    def first(self, x: cute.Tensor, middle: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        arch.griddepcontrol_launch_dependents()
        i = block * 64 + thread
        middle[i] = x[i] * 2.0

    @cute.kernel
    def second(self, middle: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        arch.griddepcontrol_wait()
        i = block * 64 + thread
        y[i] = middle[127 - i] + 1.0


def chain_run(inputs: Tensors) -> Tensors:
    x = on_device(inputs)["x"]
    middle, y = torch.empty(128, device="cuda"), torch.empty(128, device="cuda")
    Chain()(from_dlpack(x), from_dlpack(middle), from_dlpack(y))
    return {"middle": middle, "y": y}


def chain_reference(inputs: Tensors) -> Tensors:
    return {"middle": inputs["x"] * 2, "y": (inputs["x"] * 2).flip(0) + 1}


@cute.jit
def register_counts(x: cute.Tensor, y: cute.Tensor) -> None:
    """One warpgroup gives registers away, the other takes them: 128 threads each."""
    thread, _, _ = arch.thread_idx()
    group = arch.make_warp_uniform(arch.warp_idx()) // 4
    if group == 0:
        arch.warpgroup_reg_dealloc(40)
        y[thread] = x[thread] + 1
    else:
        arch.warpgroup_reg_alloc(232)
        y[thread] = x[thread] - 1


@cute.jit
def coordinates(x: cute.Tensor, y: cute.Tensor) -> None:
    """All indices and extents of a 3-dimensional grid of 3-dimensional blocks in clusters."""
    tx, ty, tz = arch.thread_idx()
    bx, by, bz = arch.block_idx()
    nx, ny, nz = arch.block_dim()
    gx, gy, gz = arch.grid_dim()
    cx, cy, cz = arch.cluster_idx()
    ix, iy, iz = arch.block_in_cluster_idx()
    flat = tx + nx * (ty + ny * tz)
    row = (bx + gx * (by + gy * bz)) * 24 + flat
    y[row, 0] = tx + 100 * ty + 10000 * tz
    y[row, 1] = bx + 100 * by + 10000 * bz
    y[row, 2] = cx + 100 * cy + 10000 * cz
    y[row, 3] = ix + 100 * iy + 10000 * iz
    y[row, 4] = arch.block_idx_in_cluster() + 100 * arch.cluster_size()
    y[row, 5] = gz + 100 * nz
    y[row, 6] = x[flat] + arch.lane_idx()


def coordinates_reference(x: np.ndarray) -> np.ndarray:
    rows = []
    for bz, by, bx in np.ndindex(2, 2, 4):
        for tz, ty, tx in np.ndindex(2, 3, 4):
            flat = tx + 4 * (ty + 3 * tz)
            inside = (bx % 2, by % 2, bz % 1)
            cluster = (bx // 2, by // 2, bz)
            decimal = [a + 100 * b + 10000 * c for a, b, c in ((tx, ty, tz), (bx, by, bz), cluster, inside)]
            rows.append([*decimal, inside[0] + 2 * inside[1] + 400, 2 + 200, x[flat] + flat])
    return np.array(rows)


FEATURES = (
    Feature(
        "dependent_launch",
        lambda seed: {"x": integers(seed, (128,))},
        chain_run,
        chain_reference,
        opcodes=("griddepcontrol.launch_dependents", "griddepcontrol.wait"),
        launches=2,
    ),
    block_feature(
        "setmaxnreg",
        register_counts,
        lambda x: np.where(np.arange(256) < 128, x + 1, x - 1),
        shape=(256,),
        block=(256, 1, 1),
        opcodes=("setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32"),
    ),
    block_feature(
        "coordinates",
        coordinates,
        coordinates_reference,
        shape=(24,),
        out_shape=(16 * 24, 7),
        grid=(4, 2, 2),
        block=(4, 3, 2),
        cluster=(2, 2, 1),
        opcodes=("%clusterid.y", "%cluster_ctaid.x", "%cluster_ctarank", "%nctaid.x", "%tid.z"),
    ),
)
