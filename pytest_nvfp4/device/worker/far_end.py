"""The far end of a C of more than 2^32 bytes: offsets that a kernel computes in 32 bits overflow there.

C is address space without memory behind it, and of each launch only the last cluster runs, so that the call costs as
little as that of a small problem. The kernel's real address arithmetic runs on a problem that its host code accepts. If
the cluster accesses memory outside every tensor, the smallest m that does so is searched where C's size passes 2^31 or
2^32 bytes or elements: there, and nowhere else, an offset overflows. Kernels that launch few clusters (persistent ones)
are not run, because each of their CTAs has hundreds of tiles, nor are those that allocate as much or fill C with torch,
because that would take the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.session import Session

M, N, K = 57_345, 57_344, 256
"""Not powers of two, so that products which wrap around do not land at 0 again. N is a multiple of 256."""
_LEAST_CLUSTERS = 1024
_MOST_BYTES = 1 << 30
_LEAST_TILE, _MOST_TILE = 64, 256
"""Rows of a tile of C."""
_ROWS = 128
"""Rows of a tile of scale factors, of 16 bytes each for k = 256."""
_HALF = K // 2


class CallableKernel(Protocol):
    """What is needed of the kernel and of the memory that it is called on."""

    @property
    def prepares(self) -> bool:
        """See ``called_kernel.CalledKernel``."""

    def prepare(self, sizes: Sequence[tuple[int, int, int, int]]) -> None:
        """See ``called_kernel.CalledKernel``."""

    def empty(self, size: int) -> Any:
        """Return a new tensor of as many bytes in device memory."""

    def call_on(self, data: Any) -> object:
        """Call the kernel with an argument."""

    def limited_to(self, most: int) -> AbstractContextManager[None]:
        """Return a context in which no allocation, and no operand of torch's operators, has more bytes."""


class FarEnd:
    """The tensors of the problem, which problems of fewer rows share."""

    def __init__(self, torch: Any, session: Session, kernel: CallableKernel) -> None:
        self._torch = torch
        self._session = session
        self._kernel = kernel
        self._tiles = -(-M // _ROWS)
        self._a, self._b, self._sfa, self._sfb = (
            kernel.empty(size).zero_() for size in (M * _HALF, N * _HALF, self._tiles * _ROWS * 16, N * 16)
        )
        self._c = kernel.empty(2 * M * N).view(torch.float16)

    def findings(self) -> list[Finding]:
        """Return the overflow of an offset, with the smallest m that shows it."""
        before = self._session.prepare
        self._session.prepare = _last_cluster
        try:
            with self._kernel.limited_to(_MOST_BYTES):
                if self._kernel.prepares:
                    self._kernel.prepare([(M, N, K, 1)])
                if self._fault(M) is None:
                    return []
                for limit, rows in _limits():
                    if found := self._smallest(rows):
                        return [_finding(*found, limit)]
        except Exception:  # a kernel may refuse the sizes
            return []
        finally:
            self._session.prepare = before
        return []

    def _smallest(self, rows: int) -> tuple[Finding, int] | None:
        """Return the first m beyond ``rows`` whose last cluster leaves C, with the access.

        An offset overflows at the row that passes the limit, or at the first row of the next tile.
        """
        if self._fault(rows) is not None:
            return None
        tiles = range(-(-rows // _LEAST_TILE) * _LEAST_TILE + 1, min(rows + _MOST_TILE + 2, M), _LEAST_TILE)
        for m in sorted({rows + 1, *tiles}):
            if (found := self._fault(m)) is not None:
                return found, m
        return None

    def _fault(self, m: int) -> Finding | None:
        """Call the kernel on the first m rows; return the access outside every tensor, if there is one."""
        session = self._session
        session.faults.clear()
        session.memory.name(self._c.data_ptr(), "C of group 0", size=2 * m * N)
        before = len(session.launches)
        try:
            self._kernel.call_on(self._data(m))
        except Exception:
            if not session.faults:
                raise
        found = [finding for record in session.launches[before:] for finding in record.findings]
        found += [fault.finding() for fault in session.faults]
        return next((finding for finding in found if finding.kind == "out-of-bounds"), None)

    def _data(self, m: int) -> tuple[Any, ...]:
        torch = self._torch

        def packed(flat: Any, rows: int) -> Any:
            return flat[: rows * _HALF].view(1, rows, _HALF).view(torch.float4_e2m1fn_x2).permute(1, 2, 0)

        def reordered(flat: Any, tiles: int) -> Any:
            shaped = flat[: tiles * _ROWS * 16].view(torch.float8_e4m3fn).view(1, tiles, 4, 32, 4, 4)
            return shaped.permute(3, 4, 1, 5, 2, 0)

        def plain(rows: int) -> Any:
            scales = torch.zeros(1, rows, K // 16, dtype=torch.uint8)
            return scales.view(torch.float8_e4m3fn).permute(1, 2, 0)

        c = self._c[: m * N].view(1, m, N).permute(1, 2, 0)
        abc = [(packed(self._a, m), packed(self._b, N), c)]
        scales = [(reordered(self._sfa, -(-m // _ROWS)), reordered(self._sfb, N // _ROWS))]
        return abc, [(plain(m), plain(N))], scales, [(m, N, K, 1)]


def _last_cluster(grid: Grid) -> None:
    count = grid.clusters_left
    grid.select(range(count - 1, count) if count >= _LEAST_CLUSTERS else range(0))


def _limits() -> list[tuple[str, int]]:
    """Return the limits of 32-bit offsets below the size of C, each with the number of rows that it holds."""
    limits = [
        (f"2^{power} {what}", (1 << power) // (N * size))
        for power in (31, 32)
        for what, size in (("bytes", 2), ("elements", 1))
    ]
    return [(limit, rows) for limit, rows in limits if rows + 1 < M]


def _finding(finding: Finding, m: int, limit: str) -> Finding:
    # An absolute address differs from run to run.
    access = finding.message.partition(" at global address")[0].partition(", outside")[0]
    return replace(
        finding,
        kind="overflow",
        message=f"an offset in C is computed in 32 bits and overflows: from {m}x{N}x{K} on (m n k; the smallest m with "
        f"this n), where C extends past {limit}; {access} outside C",
        hint="a 64-bit stride or index in the layout or the pointer arithmetic of C, such as cutlass.Int64(n), or "
        "rows.to(tl.int64) in Triton",
    )
