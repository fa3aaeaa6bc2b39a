"""Probe kernel that lays out the TMEM of tiles with the DSL's own helpers, to check the formula.

It is traced as any kernel, so its layouts are those that the installed DSL gives to a kernel of that tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.measures import tmem_columns
from pytest_nvfp4.tmem.columns import LANES, MMA_K, WIDEST_N, Columns, MmaTile
from pytest_nvfp4.toolchain.trace import Trace

ENTRY = "build"

_SOURCE = '''"""Lays out the TMEM of some tiles."""

import cutlass
import cutlass.cute as cute
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass.cute.nvgpu import tcgen05

# M, N, K of the tile, M, N of the instruction, CTAs, accumulator stages, elements a scale factor
TILES = {tiles}


def make_mma(shape, ctas, vector):
    group = tcgen05.CtaGroup.ONE if ctas == 1 else tcgen05.CtaGroup.TWO
    if vector == 16:
        op = tcgen05.MmaMXF4NVF4Op(cutlass.Float8E4M3FN, shape, group, tcgen05.OperandSource.SMEM)
        return cute.make_tiled_mma(op), cutlass.Float8E4M3FN
    op = tcgen05.MmaMXF4Op(shape, group, tcgen05.OperandSource.SMEM)
    return cute.make_tiled_mma(op), cutlass.Float8E8M0FNU


@cute.kernel
def probe():
    accumulators, sfa, sfb = [], [], []
    for m, n, k, mma_m, mma_n, ctas, stages, vector in TILES:
        mma, scales = make_mma((mma_m, mma_n, {mma_k}), ctas, vector)
        tiler = (m, n, k)
        pointer = cute.make_ptr(cutlass.Float32, 0, cute.AddressSpace.tmem, assumed_align=16)
        fragment = mma.make_fragment_C(cute.append(mma.partition_shape_C((m, n)), stages))
        accumulators.append(cute.make_tensor(pointer, fragment.layout))
        one = (None, None, None, 0)
        smem_a = blockscaled_utils.make_smem_layout_sfa(mma, tiler, vector, 1)
        smem_b = blockscaled_utils.make_smem_layout_sfb(mma, tiler, vector, 1)
        tmem_a = blockscaled_utils.make_tmem_layout_sfa(mma, tiler, vector, cute.slice_(smem_a, one))
        tmem_b = blockscaled_utils.make_tmem_layout_sfb(mma, tiler, vector, cute.slice_(smem_b, one))
        sfa.append(cute.make_tensor(cute.recast_ptr(pointer, dtype=scales), tmem_a))
        sfb.append(cute.make_tensor(cute.recast_ptr(pointer, dtype=scales), tmem_b))


@cute.jit
def launch():
    probe().launch(grid=(1, 1, 1), block=(32, 1, 1))


def build():
    return cute.compile(launch)
'''


class ProbeError(RuntimeError):
    """The DSL has no layout for a tile; the message contains its error."""


def write_probe(folder: Path, tiles: Sequence[MmaTile]) -> Path:
    """Write the probe of these tiles; its entry function is `ENTRY`."""
    rows = [
        (
            *(tile.m, tile.n, tile.k, min(tile.m, LANES * tile.ctas), min(tile.n, WIDEST_N)),
            *(tile.ctas, tile.stages, tile.sf_vector),
        )
        for tile in tiles
    ]
    path = folder / "tmem_probe.py"
    path.write_text(_SOURCE.format(tiles=rows, mma_k=MMA_K), encoding="utf-8")
    return path


def read_probe(trace: Trace, tiles: Sequence[MmaTile]) -> list[Columns]:
    """Return the columns of each tile from the layouts of the probe's tensors.

    Raises:
        ProbeError: the probe did not compile, or a layout cannot be read.
    """
    if not trace.ok:
        raise ProbeError("; ".join(finding.message for finding in trace.errors))
    types = {value.name: value.type for value in trace.values}
    found = []
    for at, tile in enumerate(tiles):
        names = [f"probe.{name}[{at}]" for name in ("accumulators", "sfa", "sfb")]
        try:
            acc, sfa, sfb = (tmem_columns(parse_type(types[name])) for name in names)
        except (KeyError, LayoutError) as error:
            raise ProbeError(f"the layout of {tile} cannot be read: {error}") from error
        if acc is None or sfa is None or sfb is None or acc % tile.stages:
            raise ProbeError(f"the layouts of {tile} have no columns: {', '.join(types[name] for name in names)}")
        found.append(Columns(acc // tile.stages, tile.stages, sfa, sfb))
    return found
