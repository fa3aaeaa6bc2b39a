"""Prints, as JSON, the thread-value layouts that the DSL has for the shapes of ``tcgen05.ld``. Run as a script."""

import json

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

SHAPES = {
    "32x32b": (tcgen05.Ld32x32bOp, (1, 2, 16, 128)),
    "16x64b": (tcgen05.Ld16x64bOp, (1, 4, 128)),
    "16x128b": (tcgen05.Ld16x128bOp, (1, 8, 64)),
    "16x256b": (tcgen05.Ld16x256bOp, (1, 4, 32)),
    "16x32bx2": (tcgen05.Ld16x32bx2Op, (1, 8)),
}


@cute.jit
def layouts() -> None:
    found = []
    for shape, (op, repeats) in SHAPES.items():
        for repeat in repeats:
            plain = cute.make_copy_atom(op(tcgen05.Repetition(repeat)), cutlass.Float32)
            found.append((shape, repeat, False, str(plain.layout_dst_tv)))
            packed = op(tcgen05.Repetition(repeat), tcgen05.Pack.PACK_16b_IN_32b)
            packed = cute.make_copy_atom(packed, cutlass.Float16)
            found.append((shape, repeat, True, str(packed.layout_dst_tv)))
    print("LAYOUTS " + json.dumps(found))  # noqa: T201


layouts()
