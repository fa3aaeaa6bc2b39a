"""Copies of the shipped kernel that do the same, slower."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.toolchain.module_constants import with_constants

KERNEL = Path(__file__).parents[2] / "kernels/nvfp4_group_gemm/steps/map_updates.py"
SOURCE = KERNEL.read_text()


@dataclass(frozen=True)
class Slowed:
    """A slower copy.

    Attributes:
        source: Its text.
        role: Role of the warps that take longer.
        lines: Texts of lines on which they do, one of which the report must name.
    """

    source: str
    role: str
    lines: tuple[str, ...]


def edited(role: str, old: str, new: str, *lines: str) -> Slowed:
    """Return the kernel with one text replaced."""
    assert SOURCE.count(old) == 1, old
    return Slowed(SOURCE.replace(old, new), role, lines)


_COPY_A = (
    "            cute.copy(tma_atom_a, tAgA[None, k_tile], tAsA[None, stage], tma_bar_ptr=mbar, "
    "tma_desc_ptr=descriptor[0])\n"
)
_REFILLED = "            mbar = full_mbar + stage\n"
_FILLED = "            cute.arch.mbarrier_wait(full_mbar + stage, parity)\n"
_BARRIER = "            cute.arch.barrier(barrier_id=2, number_of_threads=64)\n"
_EXPECT = "mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES)"
_EPILOGUE = """\
        cute.copy(t2r, tDtAcc, tDrAcc)
        cute.arch.fence_view_async_tmem_load()
        tDrC.store(tDrAcc.load().to(C_DTYPE))
        if x * TILE_M + thread < m:
            cute.autovec_copy(tDrC, tDgC)
"""
_SERIAL = """\
        for turn in cutlass.range_constexpr(EPILOGUE_WARPS):
            if warp == turn:
                cute.copy(t2r, tDtAcc, tDrAcc)
                cute.arch.fence_view_async_tmem_load()
                tDrC.store(tDrAcc.load().to(C_DTYPE))
                if x * TILE_M + thread < m:
                    cute.autovec_copy(tDrC, tDgC)
            cute.arch.barrier(barrier_id=1, number_of_threads=32 * EPILOGUE_WARPS)
"""
SLOWED = {
    "a fence a k-tile": edited(
        "load",
        "            mbar = full_mbar + stage\n",
        "            mbar = full_mbar + stage\n            cute.arch.fence_acq_rel_gpu()\n",
        "fence_acq_rel_gpu()",
    ),
    "a barrier a k-tile": Slowed(
        edited("load", _REFILLED, f"{_REFILLED}{_BARRIER}").source.replace(_FILLED, f"{_BARRIER}{_FILLED}"),
        "load",
        ("barrier(barrier_id=2",),
    ),
    "half of the box": Slowed(
        with_constants(SOURCE, {"TILE_K": 128, "NUM_STAGES": 3}),
        "load",
        ("mbarrier_wait(empty_mbar + stage, parity)", "cute.copy("),
    ),
    "one stage less": Slowed(
        with_constants(SOURCE, {"NUM_STAGES": 2}),
        "load",
        ("mbarrier_wait(empty_mbar + stage, parity)", "cute.copy("),
    ),
    "a copy twice": Slowed(
        edited("load", _COPY_A, 2 * _COPY_A).source.replace(_EXPECT, f"{_EXPECT[:-1]} + TILE_M * TILE_K // 2)"),
        "load",
        ("cute.copy(tma_atom_a", "cute.copy(", _EXPECT[:-1]),
    ),
    "serial epilogue": edited(
        "tmem",
        _EPILOGUE,
        _SERIAL,
        "barrier(barrier_id=1",
        "fence_view_async_tmem_load()",
        "cute.copy(t2r",
        "autovec_copy(tDrC",
    ),
}
