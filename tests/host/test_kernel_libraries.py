"""cuda.core, cupy and torch.cuda._compile_kernel on the simulator, in a process with torch's stand-ins."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.kernel_objects import arguments

PROGRAM = r'''
import ctypes, json
import numpy as np
import torch

SOURCE = r"""
template <typename T> __global__ void axpy(T *y, const T *x, float a, size_t n) {
    extern __shared__ T tile[];
    size_t i = threadIdx.x + size_t(blockIdx.x) * blockDim.x;
    if (i < n) y[i] += a * x[i];  // the store
}
extern "C" __global__ void axpy_int(float *y, const float *x, double a, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) y[i] += a * x[i];
}
__constant__ float table[4] = {1, 2, 4, 8};
__device__ int calls;
extern "C" __global__ void looked_up(float *out) {
    out[threadIdx.x] = table[threadIdx.x];
    if (threadIdx.x == 0) ++calls;
}
extern "C" __global__ void rank(int *out) {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    out[blockIdx.x] = rank;
}
"""
said = {}
x = torch.arange(128, dtype=torch.float32, device="cuda")
want = 1 + 2 * torch.arange(128, dtype=torch.float32)


def fresh():
    return torch.ones(128, dtype=torch.float32, device="cuda")


def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def cupy_():
    import cupy as cp

    y = fresh()
    module = cp.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=["axpy<float>"])
    kernel = module.get_function("axpy<float>")
    kernel.max_dynamic_shared_size_bytes = 100000
    kernel((2,), (64,), (cp.from_dlpack(y), x, np.float32(2), 128), shared_mem=90000)
    raw = cp.RawKernel(SOURCE, "axpy_int")
    z = fresh()
    raw((2, 1, 1), (64, 1, 1), (z.data_ptr(), x.data_ptr(), 2.0, np.int32(128)))
    said["cupy"] = [torch.equal(y.cpu(), want), torch.equal(z.cpu(), want)]
    module = cp.RawModule(code=SOURCE, name_expressions=["&table", "&calls", "looked_up"])
    table, calls = module.get_global("&table"), module.get_global("&calls")
    seen = torch.empty(4, device="cuda")
    module.get_function("looked_up")((1,), (4,), (seen,))
    found = [seen.tolist(), table.mem.size]
    row = (ctypes.c_float * 4)(5, 6, 7, 8)
    table.copy_from_host(ctypes.c_void_p(ctypes.addressof(row)), 16)
    module.get_function("looked_up")((1,), (4,), (seen,))
    count = ctypes.c_int()
    calls.copy_to_host(ctypes.c_void_p(ctypes.addressof(count)), 4)
    said["cupy_globals"] = [*found, seen.tolist(), count.value]
    said["cupy_refused"] = [
        refused(lambda: raw((2,), (64,), (z, x, 2.0, np.int64(128)))),
        refused(lambda: kernel((2,), (64,), (y, x, 2.0, 128))),
        refused(lambda: cp.zeros(4)),
        refused(lambda: raw((2,), (2048,), (z, x, 2.0, 128))),
        refused(lambda: module.get_global("missing")),
        refused(lambda: table.memset(0, 17)),
    ]


def core():
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch
    import cuda.core

    device = Device()
    device.set_current()
    stream = device.create_stream(torch.cuda.current_stream())
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}a")
    code = Program(SOURCE, code_type="c++", options=options).compile("cubin", name_expressions=("axpy<float>",))
    y = fresh()
    kernel = code.get_kernel("axpy<float>")
    launch(stream, LaunchConfig(grid=2, block=64), kernel, y.data_ptr(), x.data_ptr(), np.float32(2), 128)
    out = torch.empty(4, dtype=torch.int32, device="cuda")
    launch(stream, LaunchConfig(grid=2, cluster=2, block=32), code.get_kernel("rank"), out.data_ptr())
    device.sync()
    from cuda.bindings import driver

    made = Program(SOURCE, code_type="c++").compile("cubin", name_expressions=("table",))
    status, address, size = driver.cuLibraryGetGlobal(driver.CUlibrary(int(made.handle)), b"table")
    row = (ctypes.c_float * 4)()
    driver.cuMemcpyDtoH(ctypes.addressof(row), address, size)
    said["core_globals"] = [int(status), list(row)]
    said["core"] = [torch.equal(y.cpu(), want), out.cpu().tolist(), kernel.attributes.num_regs() > 0]
    said["core_refused"] = [
        refused(lambda: launch(stream, LaunchConfig(grid=2, block=64), kernel, y.data_ptr(), x.data_ptr(), 2.0, 128)),
        refused(lambda: cuda.core.Linker),
        refused(lambda: Program("__global__ void k() { missing; }", "c++").compile("ptx")),
    ]


def torch_():
    kernel = torch.cuda._compile_kernel(SOURCE, "axpy_int")
    y = fresh()
    kernel(grid=(2, 1, 1), block=(64, 1, 1), args=[y, x, 2.0, 128])
    said["torch"] = torch.equal(y.cpu(), want)


cupy_()
core()
if hasattr(torch.cuda, "_compile_kernel"):
    torch_()
print("SAID", json.dumps(said))
'''


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.remote.base import PythonProgram

    written: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def collect(stream: str, piece: bytes) -> None:
        written[stream] += piece

    program = PythonProgram(source=PROGRAM, arguments=(), files={}, environ={}, stdin=b"", deadline_s=300)
    execute(program, backend="sim", on_output=collect)
    _, mark, line = written["stdout"].decode().partition("SAID ")
    assert mark, written["stderr"].decode()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.slow
def test_kernels_of_each_library(said: dict[str, Any]) -> None:
    assert said["cupy"] == [True, True]
    assert said["cupy_globals"] == [[1, 2, 4, 8], 16, [5, 6, 7, 8], 2]
    assert said["core_globals"] == [0, [1, 2, 4, 8]]
    assert said["core"] == [True, [0, 1, 0, 1], True]
    assert said.get("torch", True)


@pytest.mark.slow
def test_what_a_library_would_pass_wrongly_or_has_not_is_refused(said: dict[str, Any]) -> None:
    too_long, double, missing, threads, unknown, beyond = said["cupy_refused"]
    assert "argument 3 of axpy_int is a int64 of 8 bytes, and its parameter has 4" in too_long
    assert "argument 2 of axpy<float> is a float of 8 bytes, and its parameter has 4" in double
    assert "cupy.zeros has no stand-in" in missing
    assert "X must be 1 to 1024" in threads
    assert "variable missing is not in the module, which has ['calls', 'table']" in unknown
    assert "a copy of 17 bytes, and the variable has 16" in beyond
    double, linker, compiled = said["core_refused"]
    assert "is a float of 8 bytes" in double
    assert "cuda.core.Linker has no stand-in" in linker
    assert "program.py(" in compiled
    assert 'error: identifier "missing" is undefined' in compiled


def test_numbers_of_python_have_the_library_s_size() -> None:
    assert arguments([-1, 2], (4, 8), kernel="k", integer_bytes=8) == [b"\xff" * 4, (2).to_bytes(8, "little")]
    with pytest.raises(HostSideError, match="argument 0 of k is a int of 4 bytes, and its parameter has 8"):
        arguments([1], (8,), kernel="k", integer_bytes=4)
    with pytest.raises(HostSideError, match="takes 1 parameters, got 2"):
        arguments([1, 2], (8,), kernel="k", integer_bytes=8)
