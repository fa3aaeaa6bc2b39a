"""A submission in Triton, and ways to break it."""

from __future__ import annotations

TRITON = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BM": 256, "BN": 256, "BK": 1024}, num_stages=8),
        triton.Config({"BM": 128, "BN": 128, "BK": 128}),
    ],
    key=["N"],
)
@triton.jit
def gemm(a, b, sfa, sfb, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    columns = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    pairs = tl.arange(0, BK // 2)
    blocks = tl.arange(0, BK // 16)
    tiles = tl.cdiv(K, 64)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * (K // 2) + (k // 2 + pairs)[None, :], (rows < M)[:, None], other=0)
        y = tl.load(b + columns[:, None] * (K // 2) + (k // 2 + pairs)[None, :], (columns < N)[:, None], other=0)
        block = (k // 16 + blocks)[None, :]
        of_x = (rows // 128 * tiles * 512 + rows % 32 * 16 + rows % 128 // 32 * 4)[:, None] + block // 4 * 512
        of_y = (columns // 128 * tiles * 512 + columns % 32 * 16 + columns % 128 // 32 * 4)[:, None] + block // 4 * 512
        x_scale = tl.load(sfa + of_x + block % 4)
        y_scale = tl.load(sfb + of_y + block % 4)
        acc = tl.dot_scaled(x, x_scale, "e2m1", y.T, y_scale, "e2m1", acc)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(tl.float16), inside)


def custom_kernel(data):
    abc, _, scales, sizes = data
    for (a, b, c), (sfa, sfb), (m, n, k, _) in zip(abc, scales, sizes):
        grid = lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))
        gemm[grid](a.view(torch.uint8), b.view(torch.uint8), sfa, sfb, c, m, n, k)
    return [c for _, _, c in abc]
"""
"""NVFP4 on the tensor core. The first configuration needs more shared memory than there is."""

BEYOND = ("acc.to(tl.float16), inside)", "acc.to(tl.float16))")
"""Without a mask, rows behind M are written."""
WRONG = ("x_scale = tl.load(sfa + of_x + block % 4)", "x_scale = tl.load(sfa + of_x + block % 2)")
"""Two of four scale factors are used twice."""

GEMM = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BN": 128, "BK": 256}, num_stages=3),
        triton.Config({"BM": 128, "BN": 64, "BK": 128}, num_stages=2),
    ],
    key=["N"],
)
@triton.jit
def gemm(a, b, sfa, sfb, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    pairs, blocks = tl.arange(0, BK // 2), tl.arange(0, BK // 16)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * (K // 2) + (k // 2 + pairs)[None, :])
        y = tl.load(b + columns[:, None] * (K // 2) + (k // 2 + pairs)[None, :])
        x_scale = tl.load(sfa + rows[:, None] * (K // 16) + (k // 16 + blocks)[None, :])
        y_scale = tl.load(sfb + columns[:, None] * (K // 16) + (k // 16 + blocks)[None, :])
        acc = tl.dot_scaled(x, x_scale, "e2m1", y.T, y_scale, "e2m1", acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(tl.float16))


def custom_kernel(data):
    a, b, sfa, sfb, _, _, c = data
    (m, n, l), k = c.shape, 2 * a.shape[1]
    for at in range(l):
        grid = lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))
        packed = a[:, :, at].view(torch.uint8), b[:, :, at].view(torch.uint8)
        gemm[grid](*packed, sfa[:, :, at], sfb[:, :, at], c[:, :, at], n, k)
    return c
"""
"""``nvfp4_gemm``: batches of a product, with plain scale factors."""

NEIGHBOURS = ("tl.load(sfb + columns[:, None]", "tl.load(sfb + (columns ^ 1)[:, None]")
"""Each column of B has the scale factors of its neighbour."""
