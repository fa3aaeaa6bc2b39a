"""A right kernel of nvfp4_gemv: a warp computes one row of c: [m, 1, l], by fused multiply-adds."""

import functools

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.base_dsl.typing import T
from cutlass.cute.runtime import make_ptr

WARPS = 4
PAIR = """
    mov.b32 {{ {x}0, {x}1, {x}2, {x}3 }}, ${operand};
    cvt.rn.f16x2.e2m1x2 h, {x}{byte}; mov.b32 {{ l, u }}, h; cvt.f32.f16 {x}l, l; cvt.f32.f16 {x}u, u;"""
STEPS = "".join(
    PAIR.format(x="a", operand=1, byte=byte)
    + PAIR.format(x="b", operand=2, byte=byte)
    + "\n    fma.rn.f32 t, al, bl, t; fma.rn.f32 t, au, bu, t;"
    for byte in range(4)
)
DOT8 = "{ .reg .b8 a0, a1, a2, a3, b0, b1, b2, b3; .reg .b16 l, u; .reg .b32 h; .reg .f32 al, au, bl, bu, t;"
DOT8 += "\n    mov.f32 t, $3;" + STEPS + "\n    mov.f32 $0, t; }"
SCALE = "{ .reg .b16 l, u; .reg .b32 h; cvt.u16.u32 l, $1; cvt.rn.f16x2.e4m3x2 h, l; mov.b32 { l, u }, h; "
SCALE += "cvt.f32.f16 $0, l; }"


def inline(code, constraints, *operands):
    """Return the fp32 result ``$0`` of PTX text."""
    values = [operand.ir_value() for operand in operands]
    dialect = llvm.AsmDialect.AD_ATT
    made = llvm.inline_asm(
        T.f32(), values, code, constraints, has_side_effects=False, is_align_stack=False, asm_dialect=dialect
    )
    return cutlass.Float32(made)


@cute.kernel
def gemv(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
    """a, b: words of 8 elements (rows, k / 8, l); sfa, sfb: plain scale factors (rows, k / 16, l); c: fp16 (m, l)."""
    thread, _, _ = cute.arch.thread_idx()
    block, batch, _ = cute.arch.block_idx()
    row, lane = block * WARPS + thread // 32, thread % 32
    total = cutlass.Float32(0.0)
    for at in cutlass.range(lane, cute.size(sfa, mode=[1]), 32):
        part = cutlass.Float32(0.0)
        for half in cutlass.range_constexpr(2):
            word = 2 * at + half
            part = inline(DOT8, "=f,r,r,f", a[row, word, batch], b[0, word, batch], part)
        left = inline(SCALE, "=f,r", cutlass.Uint32(sfa[row, at, batch]))
        right = inline(SCALE, "=f,r", cutlass.Uint32(sfb[0, at, batch]))
        total += part * left * right
    for offset in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=1 << offset)
    if lane == 0:
        c[row, batch] = cutlass.Float16(total)


@cute.jit
def launch(
    a: cute.Pointer,
    b: cute.Pointer,
    sfa: cute.Pointer,
    sfb: cute.Pointer,
    c: cute.Pointer,
    m: cutlass.Int32,
    n: cutlass.Int32,
    k: cutlass.Int32,
    batches: cutlass.Int32,
):
    """Launch a warp for each row of each batch; ``n`` is the number of rows that B has in memory."""

    def matrix(pointer, rows, columns):
        return cute.make_tensor(
            pointer, cute.make_layout((rows, columns, batches), stride=(columns, 1, rows * columns))
        )

    words, blocks = k // 8, k // 16
    output = cute.make_tensor(c, cute.make_layout((m, batches), stride=(1, m)))
    gemv(matrix(a, m, words), matrix(b, n, words), matrix(sfa, m, blocks), matrix(sfb, n, blocks), output).launch(
        grid=(m // WARPS, batches, 1), block=(32 * WARPS, 1, 1)
    )


def pointer(kind, tensor):
    """Return a run-time argument: a pointer to global memory."""
    address = 512 if tensor is None else tensor.data_ptr()
    return make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=4 if kind is cutlass.Uint32 else 2)


KINDS = (cutlass.Uint32, cutlass.Uint32, cutlass.Uint8, cutlass.Uint8, cutlass.Float16)


@functools.cache
def compiled():
    """Compile the launcher once."""
    return cute.compile(launch, *(pointer(kind, None) for kind in KINDS), *[cutlass.Int32(1)] * 4)


def custom_kernel(data):
    a, b, sfa, sfb, _, _, c = data
    m, half, batches = a.shape
    addresses = [pointer(kind, one) for kind, one in zip(KINDS, (a, b, sfa, sfb, c), strict=True)]
    compiled()(*addresses, m, b.shape[0], 2 * half, batches)
    return c
