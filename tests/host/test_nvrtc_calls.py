"""cuda-python programs: source through NVRTC, modules, attributes and launches, executed by the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

driver: Any = pytest.importorskip("cuda.bindings.driver")
nvrtc: Any = pytest.importorskip("cuda.bindings.nvrtc")

from pytest_nvfp4.device.worker.simulator import SimulatorSettings, new_session  # noqa: E402
from pytest_nvfp4.driver.launches import HostSideError, LaunchRejectedError  # noqa: E402
from pytest_nvfp4.host.device_side import local  # noqa: E402
from pytest_nvfp4.host.driver_calls import DriverCalls  # noqa: E402
from pytest_nvfp4.sim.fault import Fault  # noqa: E402

SOURCE = r"""
#include <cstdint>
#include <type_traits>
template <int N> __global__ void scale(float *x, int32_t n, float by) {
    extern __shared__ float tile[];
    static_assert(std::is_same<int32_t, int>::value, "the C++ library's headers");
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    tile[threadIdx.x] = x[i];  // beyond the end
    __syncthreads();
    x[i] = N * tile[threadIdx.x] * by + n;
}
extern "C" __global__ void ranks(int *out) {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) out[blockIdx.x] = rank;
}
"""
TARGET = b"--gpu-architecture=compute_100a"
BEYOND = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "// beyond the end" in line)


@pytest.fixture
def session() -> Iterator[Any]:
    session = new_session(SimulatorSettings())
    side = local(session.launch, memory=session.memory, streams=session.streams, variables=session.variables)
    calls = DriverCalls(session.machine.model, side)
    calls.install()
    yield session
    calls.remove()


def ok(result: tuple[Any, ...]) -> Any:
    assert result[0].value == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]


def compiled(*options: bytes, what: str = "PTX", source: str = SOURCE) -> tuple[bytes, bytes]:
    """Return the code and the lowered name of ``scale<3>``."""
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"scale.cu", 0, [], []))
    ok(nvrtc.nvrtcAddNameExpression(program, b"scale<3>"))
    ok(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * ok(getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    ok(getattr(nvrtc, f"nvrtcGet{what}")(program, code))
    return code, ok(nvrtc.nvrtcGetLoweredName(program, b"scale<3>"))


def upload(values: Any) -> Any:
    address = ok(driver.cuMemAlloc(values.nbytes))
    ok(driver.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes))
    return address


def download(address: Any, like: Any) -> Any:
    out = np.zeros_like(like)
    ok(driver.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
    return out


@pytest.mark.parametrize(
    ("what", "target"),
    [("PTX", TARGET), ("CUBIN", b"-arch=sm_100a"), ("PTX", b"--gpu-architecture=compute_90")],
)
def test_a_template_is_compiled_loaded_and_launched(session: Any, what: str, target: bytes) -> None:
    code, name = compiled(target, b"--std=c++17", what=what)
    kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(code)), name))
    x = np.arange(256, dtype=np.float32)
    address = upload(x)
    values = (address, 1, 0.5), (None, ctypes.c_int, ctypes.c_float)
    ok(driver.cuLaunchKernel(kernel, 4, 1, 1, 64, 1, 1, 256, 0, values, 0))
    assert np.array_equal(download(address, x), 3 * x * 0.5 + 1)
    assert session.findings == []


def test_a_fault_names_the_line_of_the_literal(session: Any) -> None:
    code, name = compiled(TARGET)
    kernel = ok(driver.cuLibraryGetKernel(ok(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0)), name))
    address = upload(np.arange(128, dtype=np.float32))
    with pytest.raises(Fault, match="after the end"):
        driver.cuLaunchKernel(
            kernel, 3, 1, 1, 64, 1, 1, 256, 0, ((address, 1, 0.5), (None, ctypes.c_int, ctypes.c_float)), 0
        )
    (fault,) = session.faults
    assert (fault.finding().where.source.file, fault.finding().where.source.line) == (__file__, BEYOND)


@pytest.mark.usefixtures("session")
def test_modules_of_a_file(tmp_path: Any) -> None:
    code, name = compiled(TARGET)
    (file := tmp_path / "scale.ptx").write_bytes(code)
    x = np.arange(128, dtype=np.float32)
    values = (upload(x), 1, 0.5), (None, ctypes.c_int, ctypes.c_float)
    of_module = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoad(bytes(file))), name))
    library = ok(driver.cuLibraryLoadFromFile(bytes(file), [], [], 0, [], [], 0))
    for kernel in (of_module, ok(driver.cuLibraryGetKernel(library, name))):
        ok(driver.cuLaunchKernel(kernel, 2, 1, 1, 64, 1, 1, 256, 0, values, 0))
    assert np.array_equal(download(values[0][0], x), 3 * (3 * x * 0.5 + 1) * 0.5 + 1)
    with pytest.raises(HostSideError, match=r"CUDA_ERROR_FILE_NOT_FOUND: .*missing\.cubin"):
        driver.cuModuleLoad(bytes(tmp_path / "missing.cubin"))


@pytest.mark.usefixtures("session")
def test_clusters_and_attributes() -> None:
    code, _ = compiled(TARGET)
    kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadDataEx(code, 0, [], [])), b"ranks"))
    out = np.full(4, -1, np.int32)
    address = upload(out)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 2, 1, 1
    config.attrs, config.numAttrs = [cluster], 1
    ok(driver.cuLaunchKernelEx(config, kernel, ((address,), (None,)), 0))
    assert download(address, out).tolist() == [0, 1, 0, 1]
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(kernel, attribute, 200_000))
    assert ok(driver.cuFuncGetAttribute(attribute, kernel)) == 200_000
    with pytest.raises(LaunchRejectedError, match="CUDA_ERROR_INVALID_VALUE: ranks requests 300000 bytes"):
        driver.cuFuncSetAttribute(kernel, attribute, 300_000)


@pytest.mark.usefixtures("session")
def test_a_failed_compile_returns_the_error_and_writes_the_line(capsys: Any) -> None:
    source = SOURCE.replace("= x[i];  //", "= missing[i];  //")
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"scale.cu", 0, [], []))
    ok(nvrtc.nvrtcAddNameExpression(program, b"scale<3>"))
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [TARGET])
    assert status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
    assert f'{__file__}({BEYOND}): error: identifier "missing" is undefined' in capsys.readouterr().err


@pytest.mark.usefixtures("session")
def test_an_empty_log_does_not_overwrite_the_blank_that_python_shares() -> None:
    program = ok(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"scale.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [TARGET]))
    log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
    ok(nvrtc.nvrtcGetProgramLog(program, log))
    assert bytes([0x20]) == b"\x20"
    assert b"a b".split(bytes([32]))[0] == b"a"


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_modules_that_cannot_run_are_refused() -> None:
    other, name = compiled(b"-arch=sm_90a")
    with pytest.raises(LaunchRejectedError, match=r"compiled for sm_90a, which .* does not run"):
        driver.cuModuleLoadData(other)
    code, _ = compiled(b"-arch=sm_100a", what="CUBIN")
    foreign = code + b"\0"  # another compile's: its PTX is unknown
    kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(foreign)), name))
    with pytest.raises(HostSideError, match="loaded from a CUBIN whose PTX is unknown"):
        driver.cuLaunchKernel(
            kernel, 1, 1, 1, 64, 1, 1, 0, 0, ((0, 1, 0.5), (ctypes.c_void_p, ctypes.c_int, ctypes.c_float)), 0
        )
    with pytest.raises(HostSideError, match="CUDA_ERROR_NOT_FOUND: kernel scale is not in the module"):
        driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(code)), b"scale")


def test_a_variable_of_a_module_lasts_from_launch_to_launch(session: Any) -> None:
    source = r"""
__device__ int calls = 5;
extern "C" __global__ void count(int *out) { if (threadIdx.x == 0) out[0] = atomicAdd(&calls, 1); }
"""
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"count.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [TARGET]))
    code = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
    ok(nvrtc.nvrtcGetPTX(program, code))
    kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(code)), b"count"))
    out = np.zeros(1, np.int32)
    address = upload(out)
    seen = []
    for _ in range(3):
        ok(driver.cuLaunchKernel(kernel, 2, 1, 1, 32, 1, 1, 0, 0, ((address,), (None,)), 0))
        seen.append(int(download(address, out)[0]))
    assert [value in (5 + 2 * i, 6 + 2 * i) for i, value in enumerate(seen)] == [True] * 3
    assert session.findings == []


@pytest.mark.usefixtures("session")
def test_tensor_maps() -> None:
    types = driver.CUtensorMapDataType
    encoded = ok(
        driver.cuTensorMapEncodeTiled(
            types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, 0x1000, [64, 32], [128], [64, 8], [1, 1],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )  # fmt: skip
    from pytest_nvfp4.driver import tensormap

    decoded = tensormap.decode(ctypes.string_at(encoded.getPtr(), 128))
    assert (decoded.address, list(decoded.box)) == (0x1000, [64, 8])


VARIABLES = r"""
extern "C" {
__constant__ int table[4] = {1, 2, 4, 8};
__device__ int calls = 7;
__device__ int pair[2] = {3, 4};
__device__ int *where[2] = {&calls, pair + 1};
__global__ void count(int *out) {
    out[threadIdx.x] = table[threadIdx.x];
    if (threadIdx.x < 2) atomicAdd(where[threadIdx.x], 1);
}
__global__ void write(int *at) { *at = 1; }
}
template <int N> __global__ void scale(float *x) { x[0] = N; }
"""


def looked_up(module: Any, out: Any) -> list[int]:
    function = ok(driver.cuModuleGetFunction(module, b"count"))
    ok(driver.cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, 0, ((out,), (ctypes.c_void_p,)), 0))
    return numbers(out, 4)


def numbers(address: Any, count: int) -> list[int]:
    found = (ctypes.c_int * count)()
    ok(driver.cuMemcpyDtoH(ctypes.addressof(found), address, 4 * count))
    return list(found)


def variable(module: Any, name: bytes, count: int = 1) -> list[int]:
    address, size = ok(driver.cuModuleGetGlobal(module, name))
    assert size == 4 * count
    return numbers(address, count)


@pytest.mark.usefixtures("session")
def test_variables_of_a_module_have_addresses_and_contents() -> None:
    code, _ = compiled(TARGET, source=VARIABLES)
    out = upload(np.zeros(4, np.int32))
    module, other = ok(driver.cuModuleLoadData(code)), ok(driver.cuModuleLoadData(code))
    assert looked_up(module, out) == [1, 2, 4, 8]
    table, _ = ok(driver.cuModuleGetGlobal(module, b"table"))
    ok(driver.cuMemcpyHtoD(int(table) + 4, np.array([5, 6], np.int32).ctypes.data, 8))
    assert looked_up(module, out) == [1, 5, 6, 8]
    assert (variable(module, b"calls"), variable(module, b"pair", 2)) == ([9], [3, 6])
    # Each load has variables of its own, with their initial values.
    assert looked_up(other, out) == [1, 2, 4, 8]
    assert variable(other, b"calls") == [8]
    ok(driver.cuModuleUnload(module))
    again = ok(driver.cuModuleLoadData(code))
    assert variable(again, b"calls") == [7]
    assert looked_up(again, out) == [1, 2, 4, 8]
    assert (variable(again, b"calls"), variable(again, b"pair", 2)) == ([8], [3, 5])
    with pytest.raises(HostSideError, match=r"CUDA_ERROR_NOT_FOUND: variable missing .* has .*calls.*, .*table"):
        driver.cuModuleGetGlobal(again, b"missing")


def test_a_kernel_keeps_to_variables_that_it_may_write(session: Any) -> None:
    module = ok(driver.cuModuleLoadData(compiled(TARGET, source=VARIABLES)[0]))
    function = ok(driver.cuModuleGetFunction(module, b"write"))

    def write(name: bytes, offset: int) -> None:
        address, _ = ok(driver.cuModuleGetGlobal(module, name))
        values = ((int(address) + offset,), (ctypes.c_void_p,))
        ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, values, 0))

    write(b"calls", 0)
    assert (variable(module, b"calls"), session.findings) == ([1], [])
    write(b"calls", 4)
    assert "0 bytes after the end of variable calls (4 bytes)" in session.findings[0].message
    with pytest.raises(Fault, match="writes variable table at byte 0, which is read-only"):
        write(b"table", 0)
