"""Prints the fragment layouts of the DSL's MMA atoms as one JSON line: run as a script, in a process of its own."""

import json
import os

os.environ.update(CUTE_DSL_ARCH="sm_90a", CUTE_DSL_DRYRUN="1", CUTE_DSL_DISABLE_FILE_CACHING="1")

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warp, warpgroup

try:
    from cutlass.cute.nvgpu import OperandMajorMode
except ImportError:  # before the name moved, 4.4 among them
    from cutlass.cute.nvgpu.warpgroup import OperandMajorMode

K = OperandMajorMode.K
REGISTERS = warpgroup.OperandSource.RMEM
FOUND = {}


def note(name: str, op: object) -> None:
    atom = cute.make_mma_atom(op)
    FOUND[name] = [str(layout) for layout in (atom.tv_layout_A, atom.tv_layout_B, atom.tv_layout_C)]


@cute.jit
def collect() -> None:
    for n in cutlass.range_constexpr(16, 257, 16):
        note(
            f"wgmma m64n{n}k16",
            warpgroup.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (64, n, 16), REGISTERS, K, K),
        )
    note(
        "wgmma m64n32k32",
        warpgroup.MmaF8Op(cutlass.Float8E4M3FN, cutlass.Float8E5M2, cutlass.Float32, (64, 32, 32), REGISTERS, K, K),
    )
    for k in cutlass.range_constexpr(8, 17, 8):
        note(f"mma m16n8k{k}", warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, k)))


collect()
print("LAYOUTS " + json.dumps(FOUND))  # noqa: T201
