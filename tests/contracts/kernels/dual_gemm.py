"""A right kernel of nvfp4_dual_gemm."""

from tiles import compute


def custom_kernel(data):
    a, b1, b2, _, _, _, sfa, sfb1, sfb2, c = data
    return compute(a, [b1, b2], [sfa, sfb1, sfb2], c)
