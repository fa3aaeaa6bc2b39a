"""GPU MODE's ``nvfp4_gemv``: ``C[m, 1, l] = A b^T`` for each batch; see ``block_scaled`` for ``data``.

B has 128 rows in memory, and its scale factors too, so that an operator for matrices takes it; b is the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.contracts.block_scaled import BlockScaled
from pytest_nvfp4.contracts.tables import cases

if TYPE_CHECKING:
    from pytest_nvfp4.problem import Group, Problem

_PADDED = 128


class Gemv(BlockScaled):
    """The contract of ``nvfp4_gemv``."""

    name = "nvfp4_gemv"
    multiples = (128, 1, 64)
    # A kernel has no matrix instruction to use, and the simulator takes longer for scalar ones.
    most = 2**20
    tests = cases(
        "gpumode",
        name,
        (128, 1, 256),
        (128, 1, 1536),
        (128, 1, 3072),
        (256, 1, 7168),
        (256, 1, 7168),
        (2432, 1, 4608, 2),
        (384, 1, 7168, 2),
        (512, 1, 512, 2),
        (512, 1, 4096, 2),
        (512, 1, 1536, 2),
    )
    benchmarks = cases("gpumode-bench", name, (7168, 1, 16384), (4096, 1, 7168, 8), (7168, 1, 2048, 4))

    def fitted(self, groups: Sequence[Group]) -> Problem:
        """See ``Contract``: as many times 128 rows as there are tiles."""
        from pytest_nvfp4.problem import Group, Problem

        tiles = sum(-(-group.m // _PADDED) * -(-group.n // _PADDED) for group in groups)
        sizes = Group(tiles * _PADDED, 1, max(group.k for group in groups))
        return Problem(str(sizes), (sizes,), contract=self.name)

    def columns(self, n: int) -> int:  # noqa: ARG002 - the same for all sizes
        """See ``BlockScaled``."""
        return 1

    def rows_of_b(self, sizes: Group) -> int:  # noqa: ARG002 - the same for all sizes
        """See ``BlockScaled``."""
        return _PADDED

    def violation(self, problem: Problem) -> str | None:
        """See ``Contract``: n is 1."""
        if (reason := super().violation(problem)) is not None:
            return reason
        (sizes,) = problem.groups
        return None if sizes.n == 1 else f"{sizes}: n must be 1"

    def spec(self, problem: Problem) -> Mapping[str, object]:
        """See ``Contract``: ``m: 128; k: 256; l: 1``."""
        return {name: size for name, size in super().spec(problem).items() if name != "n"}
