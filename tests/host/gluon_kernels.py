"""A GEMM in Gluon, whose wait for its copies can be left out."""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

M, N, K, BK = 128, 128, 192, 64


@gluon.jit
def product(a, b, c, K: gl.constexpr, BK: gl.constexpr, WAIT: gl.constexpr):
    of_a = gl.allocate_shared_memory(a.dtype, a.block_type.shape, a.layout)
    of_b = gl.allocate_shared_memory(b.dtype, b.block_type.shape, b.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout([128, 128], col_stride=1))
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(loaded, a.block_type.nbytes + b.block_type.nbytes)
        tma.async_load(a, [0, k], loaded, of_a)
        tma.async_load(b, [k, 0], loaded, of_b)
        if WAIT:
            mbarrier.wait(loaded, phase)
        tcgen05_mma(of_a, of_b, acc, use_acc=(k > 0))
        tcgen05_commit(done)
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(loaded)
    mbarrier.invalidate(done)
    of_c = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    of_c.store(acc.load().to(gl.float16))
    fence_async_shared()
    tma.async_store(c, [0, 0], of_c)
    tma.store_wait(pendings=0)


def run(*, wait: bool) -> bool:
    """Launch the kernel; return whether the product is exact."""
    torch.manual_seed(0)
    a, b = torch.randint(-4, 5, (M, K)).half(), torch.randint(-4, 5, (K, N)).half()
    c = torch.zeros(M, N, dtype=torch.float16, device="cuda")

    def of(tensor: Any, block: list[int]) -> Any:
        return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))

    product[(1,)](of(a.cuda(), [M, BK]), of(b.cuda(), [BK, N]), of(c, [M, N]), K, BK, wait)
    return torch.equal(c.cpu(), (a.float() @ b.float()).half())
