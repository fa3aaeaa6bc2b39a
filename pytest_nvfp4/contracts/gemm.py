"""GPU MODE's ``nvfp4_gemm``: ``C[m, n, l] = A B^T`` for each batch; see ``block_scaled`` for ``data``."""

from __future__ import annotations

from pytest_nvfp4.contracts.block_scaled import BlockScaled
from pytest_nvfp4.contracts.tables import cases


class Gemm(BlockScaled):
    """The contract of ``nvfp4_gemm``."""

    name = "nvfp4_gemm"
    tests = cases(
        "gpumode",
        name,
        (128, 256, 256),
        (128, 1536, 7168),
        (128, 3072, 1536),
        (256, 7168, 256),
        (256, 7168, 2048),
        (2304, 4608, 7168),
        (384, 7168, 2304),
        (512, 512, 7168),
        (512, 4096, 512),
        (512, 1536, 7168),
    )
    benchmarks = cases("gpumode-bench", name, (128, 7168, 16384), (128, 4096, 7168), (128, 7168, 2048))
