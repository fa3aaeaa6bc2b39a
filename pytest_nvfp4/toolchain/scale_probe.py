"""Probe kernel with the scale-factor layouts of the installed CuTe DSL's helpers; it is traced, not imported.

The variable ``tile_256x128x256_v16`` holds the layouts ``(smem SFA, smem SFB, TMEM SFA, TMEM SFB)`` of an
MMA tile of 256x128 (two CTAs where M is 256) and 256 elements of k, 16 to a factor.
"""

# ruff: noqa: F841 - a variable is what a trace sees
# mypy: ignore-errors

import cutlass
import cutlass.utils.blockscaled_layout as helpers
from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

STAGES = 2


@cute.kernel
def nothing() -> None:
    """Do nothing: a compile without a kernel has no trace."""


def tiled_mma(m: int, n: int, vector: int) -> cute.TiledMma:
    """Return the MMA of one tile: NVFP4 with 16 elements to a factor, MXFP4 with 32."""
    group = tcgen05.CtaGroup.TWO if m == 256 else tcgen05.CtaGroup.ONE
    shape = (m, n, 64)
    if vector == 16:
        op = tcgen05.MmaMXF4NVF4Op(cutlass.Float8E4M3FN, shape, group, tcgen05.OperandSource.SMEM)
    else:
        op = tcgen05.MmaMXF4Op(shape, group, tcgen05.OperandSource.SMEM)
    return cute.make_tiled_mma(op)


def built(m: int, n: int, vector: int) -> tuple[cute.Layout, ...]:
    """Return the layouts of SFA and SFB in shared memory, then in TMEM."""
    mma, tiler = tiled_mma(m, n, vector), (m, n, 256)
    stage = (None, None, None, 0)
    sfa = helpers.make_smem_layout_sfa(mma, tiler, vector, STAGES)
    sfb = helpers.make_smem_layout_sfb(mma, tiler, vector, STAGES)
    tmem_sfa = helpers.make_tmem_layout_sfa(mma, tiler, vector, cute.slice_(sfa, stage))
    tmem_sfb = helpers.make_tmem_layout_sfb(mma, tiler, vector, cute.slice_(sfb, stage))
    return sfa, sfb, tmem_sfa, tmem_sfb


@cute.jit
def layouts(m: cutlass.Int32, k: cutlass.Int32) -> None:
    """Bind every layout to a name."""
    gmem_v16 = helpers.tile_atom_to_shape_SF((m, k, 1), 16)
    gmem_v32 = helpers.tile_atom_to_shape_SF((m, k, 1), 32)
    tile_128x64x256_v16 = built(128, 64, 16)
    tile_128x128x256_v16 = built(128, 128, 16)
    tile_128x192x256_v16 = built(128, 192, 16)
    tile_128x256x256_v16 = built(128, 256, 16)
    tile_256x64x256_v16 = built(256, 64, 16)
    tile_256x128x256_v16 = built(256, 128, 16)
    tile_256x192x256_v16 = built(256, 192, 16)
    tile_256x256x256_v16 = built(256, 256, 16)
    tile_128x64x256_v32 = built(128, 64, 32)
    tile_128x128x256_v32 = built(128, 128, 32)
    tile_128x192x256_v32 = built(128, 192, 32)
    tile_128x256x256_v32 = built(128, 256, 32)
    tile_256x64x256_v32 = built(256, 64, 32)
    tile_256x128x256_v32 = built(256, 128, 32)
    tile_256x192x256_v32 = built(256, 192, 32)
    tile_256x256x256_v32 = built(256, 256, 32)
    nothing().launch(grid=(1, 1, 1), block=(1, 1, 1))


def build() -> object:
    """Compile the probe."""
    return cute.compile(layouts, cutlass.Int32(1), cutlass.Int32(1))
