"""GPU MODE's ``nvfp4_dual_gemm``: ``C[m, n, l] = silu(A B1^T) * (A B2^T)``; see ``block_scaled`` for ``data``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.contracts.block_scaled import BlockScaled
from pytest_nvfp4.contracts.tables import cases

if TYPE_CHECKING:
    from pytest_nvfp4.numerics.judge import Reference
    from pytest_nvfp4.numerics.oracle import Exact


class DualGemm(BlockScaled):
    """The contract of ``nvfp4_dual_gemm``."""

    name = "nvfp4_dual_gemm"
    operands = ("B1", "B2")
    # The smallest and the largest operands give a c of zeros and infinities alone.
    input_families = ("gpumode", "pow2_exact", "all_scale", "gauss_quantised", "nan_pad", "nan_isolated")
    tests = cases(
        "gpumode",
        name,
        (1536, 512, 7168),
        (256, 512, 256),
        (1536, 512, 7168),
        (3072, 1024, 1536),
        (7168, 1024, 256),
        (7168, 2304, 2048),
        (4608, 384, 7168),
        (7168, 384, 2304),
        (512, 768, 7168),
        (4096, 768, 512),
    )
    benchmarks = cases(
        "gpumode-bench", name, (256, 4096, 7168), (512, 4096, 7168), (256, 3072, 4096), (512, 3072, 7168)
    )

    def reference(self, products: Sequence[Exact]) -> Reference:
        """See ``BlockScaled``: ``numerics.silu``."""
        from pytest_nvfp4.numerics.silu import gated

        gate, up = products
        return gated(gate, up)
