"""Kernels of a CUBIN, and functions that are none."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver import cubin
from pytest_nvfp4.host import nvrtc

SOURCE = """
__device__ __noinline__ float twice(float x) { return 2 * x; }
extern "C" __global__ void first(float *y) { y[threadIdx.x] = twice(y[threadIdx.x]); }
extern "C" __global__ void second(float *y, int n) { y[n] = twice(n); }
"""


@pytest.mark.parametrize("options", [[], ["-G"]], ids=["optimised", "debug"])
def test_a_function_is_no_kernel(options: list[str]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    made = nvrtc.compile_source(SOURCE, name="k.cu", options=nvrtc.options_for(options, arch="sm_100a"))
    assert b".nv.info.first" in made.cubin
    found = cubin.parse(made.cubin)
    assert {name: len(kernel.params) for name, kernel in found.items()} == {"first": 1, "second": 2}
