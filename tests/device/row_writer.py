"""A kernel that writes rows of C, and its simulation with later calls."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.problem import parse_shape

HEAD = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr
"""
WRITE = (
    HEAD
    + """

@cute.kernel
def write(c: cute.Tensor, first: cutlass.Int32, shift: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    c[row + first, lane] = cutlass.Float16(lane)
    if shift > 0:
        c[(row + shift) % 3, lane] = cutlass.Float16(lane)


@cute.jit
def go(start: cute.Pointer, first: cutlass.Int32, rows: cutlass.Int32, shift: cutlass.Int32):
    c = cute.make_tensor(start, cute.make_layout((3, 128), stride=(128, 1)))
    write(c, first, shift).launch(grid=(rows, 1, 1), block=(128, 1, 1))
"""
)
"""``go(pointer, first, rows, shift)`` writes rows of a C of 3 x 128; with a shift, each of them to a second one."""


def simulated(text: str, folder: Path, *, races: bool = False) -> SimulationResult:
    """Simulate a call of ``custom_kernel`` on 3x128x64 and later ones."""
    path = folder / "kernel.py"
    path.write_text(text)
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("3x128x64")), family="pow2_exact")
    (done,) = simulate(SimDevice(), kernel, [case], folder=folder / "jobs", base=base, races=races, later_calls=True)
    return done
