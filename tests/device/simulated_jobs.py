"""Kernels and cases for the action ``simulate``."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.problem import parse_shape

KERNEL = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.kernel
def clear(c: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    c[cta, lane] = cutlass.Float16(0.0)


@cute.kernel
def talk(number: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    if lane == 0:
        cute.printf("number %d", number)


@cute.jit
def go(start: cute.Pointer, m: cutlass.Int32):
    talk(m).launch(grid=(1, 1, 1), block=(32, 1, 1))
    clear(cute.make_tensor(start, cute.make_layout((40, 128), stride=(128, 1)))).launch(
        grid=(m, 1, 1), block=(128, 1, 1)
    )


def custom_kernel(data):
    abc, _, _, sizes = data
    m = sizes[0][0]
    print("host: m is", m)
    if m == 13:
        import os
        os._exit(3)
    go(make_ptr(cutlass.Float16, abc[0][2].data_ptr(), cute.AddressSpace.gmem, assumed_align=16), cutlass.Int32(m))
    return [c for _, _, c in abc]
"""


def cases(*shapes: str) -> list[JobCase]:
    return [JobCase(problem=ProblemSpec.of(parse_shape(shape)), family="gpumode") for shape in shapes]


def spec_of(folder: Path, source: str) -> tuple[KernelSpec, Path]:
    path = folder / "kernel.py"
    path.write_text(source)
    return KernelSpec.from_files(path, arch="sm_100a")
