"""A right, slow kernel in CuTe DSL: a thread computes one output by fused multiply-adds. The programs import it."""

import functools

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.base_dsl.typing import T
from cutlass.cute.runtime import make_ptr

THREADS = 128
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
    return cutlass.Float32(
        llvm.inline_asm(
            T.f32(), values, code, constraints, has_side_effects=True, is_align_stack=False, asm_dialect=dialect
        )
    )


@cute.kernel
def gemm(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
    """a, b: words of 8 elements, (rows, k / 8); sfa, sfb: words of 4 scale factors, (rows, k / 64); c: fp16 (m, n)."""
    lane, _, _ = cute.arch.thread_idx()
    tile, row, _ = cute.arch.block_idx()
    column = tile * THREADS + lane
    total = cutlass.Float32(0.0)
    for word in cutlass.range(cute.size(a, mode=[1]) // 8):
        left, right = sfa[row, word], sfb[column, word]
        for block in cutlass.range_constexpr(4):
            part = cutlass.Float32(0.0)
            for half in cutlass.range_constexpr(2):
                at = word * 8 + block * 2 + half
                part = inline(DOT8, "=f,r,r,f", a[row, at], b[column, at], part)
            scales = [inline(SCALE, "=f,r", (word_ >> (8 * block)) & 255) for word_ in (left, right)]
            total += part * scales[0] * scales[1]
    c[row, column] = cutlass.Float16(total)


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
):
    """Compute one group."""
    words, blocks = k // 8, k // 64

    def operand(pointer, rows):
        return cute.make_tensor(pointer, cute.make_layout((rows, words), stride=(words, 1)))

    def scale_factors(pointer, rows):
        # 128 rows and 4 scale factors of k are 512 bytes: (32 rows, 4 quarters, 4 of k), the word the last
        tiles = cute.ceil_div(rows, 128)
        layout = cute.make_layout(((32, 4, tiles), blocks), stride=((4, 1, 128 * blocks), 128))
        return cute.make_tensor(pointer, layout)

    output = cute.make_tensor(c, cute.make_layout((m, n), stride=(n, 1)))
    gemm(operand(a, m), operand(b, n), scale_factors(sfa, m), scale_factors(sfb, n), output).launch(
        grid=(n // THREADS, m, 1), block=(THREADS, 1, 1)
    )


def pointer(kind, tensor):
    """Return a run-time argument: a pointer to global memory."""
    return make_ptr(
        kind, tensor if isinstance(tensor, int) else tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=4
    )


@functools.cache
def compiled():
    """Compile the launcher once."""
    words = [pointer(cutlass.Int32, 16) for _ in range(4)]
    return cute.compile(launch, *words, pointer(cutlass.Float16, 16), *[cutlass.Int32(1)] * 3)


def compute(data):
    """Launch the kernel for each group with rows, and return the outputs."""
    abc, _, reordered, sizes = data
    for (a, b, c), (sfa, sfb), (m, n, k, _) in zip(abc, reordered, sizes, strict=True):
        if m:
            words = [pointer(cutlass.Int32, tensor) for tensor in (a, b, sfa, sfb)]
            compiled()(*words, pointer(cutlass.Float16, c), m, n, k)
    return [c for _, _, c in abc]


custom_kernel = compute
