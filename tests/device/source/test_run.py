"""Kernels of CUDA C++ and PTX files without host code: results, findings with their lines, refusals."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from pytest_nvfp4.device.source import Array, Pointers, SourceError, TensorMap, Uninitialised, run_source
from pytest_nvfp4.device.worker.sim_findings import in_order
from pytest_nvfp4.finding import Finding
from tests.device.source.fill import fill
from tests.host.extension.sources import needs_nvcc

SOURCE = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
template <int N> __global__ void scale(const float *x, float *y, int32_t n, float by) {
    __shared__ float tile[64];
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    tile[threadIdx.x] = x[i];  // beyond
#ifndef RACY
    __syncthreads();
#endif
    y[i] = N * tile[threadIdx.x ^ 32] * by + n;  // of another warp
}
extern "C" __global__ void gather(const __grid_constant__ CUtensorMap map, __half *out, float *const *table) {
    __shared__ alignas(128) __half tile[8 * 64];
    __shared__ alignas(8) uint64_t barrier;
    uint32_t to = __cvta_generic_to_shared(tile), at = __cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(at));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                "r"(to), "l"(&map), "r"(0), "r"((int)blockIdx.x * 8), "r"(at) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }" ::"r"(at)
                 : "memory");
    for (int i = threadIdx.x; i < 512; i += blockDim.x) out[blockIdx.x * 512 + i] = tile[i];
    if (threadIdx.x == 0) table[blockIdx.x][0] = blockIdx.x + 1;
}
"""
GRID = r"""
#include <cooperative_groups.h>
extern "C" __global__ void rotate(int *x, int *y) {
    auto grid = cooperative_groups::this_grid();
    int last = gridDim.x - 1;
    for (int round = 0; round < 3; round++) {
        x[blockIdx.x * blockDim.x + threadIdx.x] = round + blockIdx.x;
#ifndef WITHOUT_SYNC
        grid.sync();  // all CTAs have written
#endif
        y[blockIdx.x * blockDim.x + threadIdx.x] = x[(last - blockIdx.x) * blockDim.x + threadIdx.x];  // of another CTA
        grid.sync();
    }
}
"""
PTX = fill("u32")
X = np.arange(128, dtype=np.float32)
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


def test_a_cooperative_launch_synchronises_its_grid() -> None:
    x, y = (Uninitialised((4, 64), "i32", name) for name in "xy")
    done = run_source(GRID, grid=4, block=64, args=[x, y], cooperative=True, races=True).check()
    assert np.array_equal(done.arrays["y"], np.repeat(2 + np.arange(4)[::-1, None], 64, axis=1))


def test_a_grid_barrier_that_is_missing() -> None:
    x, y = (Uninitialised((4, 64), "i32", name) for name in "xy")
    options = ["-DWITHOUT_SYNC"]
    done = run_source(GRID, grid=4, block=64, args=[x, y], cooperative=True, races=True, options=options)
    (finding,) = (each for each in done.findings if each.kind == "race")
    assert "no flag or counter with release and acquire orders the two CTAs" in finding.message
    order = re.search(
        r"after test_run.py:(\d+): a barrier of the CTA.* before test_run.py:(\d+): ld.acquire", finding.message
    )
    assert order is not None
    assert int(order[1]) < int(order[2])  # the write, then the read: there is no loop


def test_a_grid_barrier_without_a_cooperative_launch() -> None:
    done = run_source(GRID, grid=4, block=64, args=[Uninitialised((4, 64), "i32", name) for name in "xy"])
    (finding,) = done.findings
    assert finding.kind == "trap"
    assert "the launch is not cooperative" in finding.message
    assert finding.line == line_of("// all CTAs have written")


def test_a_template() -> None:
    y = Uninitialised((128,), "f32", "y")
    done = run_source(SOURCE, kernel="scale<3>", grid=2, block=64, args=[X, y, 1, 0.5], races=True).check()
    flipped = X.reshape(2, 2, 32)[:, ::-1].reshape(-1)
    assert np.array_equal(done.arrays["y"], 3 * flipped * 0.5 + 1)
    assert np.array_equal(done.arrays["arg0"], X)
    (launch,) = done.launches
    assert (launch.grid, launch.counters["instructions"] > 0) == ((2, 1, 1), True)


WRAPPED = r"""
__device__ __forceinline__ void put(float *to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"((int)__cvta_generic_to_shared(to)), "f"(value) : "memory");  // wrapper
}
extern "C" __global__ void pass(float *y) {
    __shared__ float kept[64], passed[64];
    put(&kept[threadIdx.x], 1);  // own
    put(&passed[threadIdx.x], 2);  // to another
    y[threadIdx.x] = kept[threadIdx.x] + passed[threadIdx.x ^ 32];  // read
}
"""


def test_the_line_of_a_wrapper_has_its_call() -> None:
    done = run_source(WRAPPED, grid=1, block=64, args=[Uninitialised((64,), "f32", "y")], races=True)
    races = [finding for finding in done.findings if finding.kind == "race"]
    assert races
    wrapper, call, own = (line_of(f"// {text}") for text in ("wrapper", "to another", "own"))
    for finding in races:
        assert f"test_run.py:{wrapper} called at :{call} (st.shared" in finding.message
        assert finding.line in (call, line_of("// read")), "a wrapper's own line says nothing"
        assert f":{own} " not in finding.message
        assert f"test_run.py:{line_of('// read')} (ld.shared" in finding.message


@pytest.mark.slow
def test_a_number_is_of_its_parameters_type() -> None:
    whole, half = (
        run_source(SOURCE, kernel="scale<3>", grid=2, block=64, args=[X, Uninitialised((128,), "f32", "y"), n, by])
        for n, by in ((1.0, 2), (1, 2.0))
    )
    assert np.array_equal(whole.arrays["y"], half.arrays["y"])
    assert whole.arrays["y"].max() > 100


@pytest.mark.slow
def test_a_fault_and_a_race_name_the_line_of_the_literal() -> None:
    y = Uninitialised((192,), "f32", "y")
    done = run_source(SOURCE, kernel="scale<3>", grid=3, block=64, args=[Array(X, "x"), y, 1, 0.5])
    assert done.status == "error"
    (finding,) = done.findings
    assert (finding.file, finding.line) == (__file__, line_of("// beyond"))
    assert "0 bytes after the end of x" in finding.message
    with pytest.raises(AssertionError, match="after the end of x"):
        done.check()
    racy = run_source(
        SOURCE,
        kernel="scale<3>",
        grid=2,
        block=64,
        args=[X, y, 1, 0.5],
        races=True,
        options=["-DRACY"],
        schedule="lazy",
    )
    assert (
        {line_of("// beyond"), line_of("// of another warp")}
        >= {finding.line for finding in racy.findings if finding.kind == "race"}
        != set()
    )


def test_tensor_maps_and_tables_of_pointers() -> None:
    x = np.arange(1024).reshape(16, 64).astype(np.float16)
    done = run_source(
        SOURCE,
        kernel="gather",
        grid=2,
        block=64,
        args=[TensorMap("x", (64, 8)), Uninitialised((1024,), "f16", "out"), Pointers(("a", "b"))],
        arrays=[Array(x, "x"), Uninitialised((1,), "f32", "a"), Uninitialised((1,), "f32", "b")],
    ).check()
    assert np.array_equal(done.arrays["out"], x.reshape(-1))
    assert (done.arrays["a"].tolist(), done.arrays["b"].tolist()) == ([1], [2])


@pytest.mark.slow
def test_ptx(tmp_path: Path) -> None:
    file = tmp_path / "fill.ptx"
    file.write_text(PTX)
    done = run_source(file, grid=1, block=32, args=[Uninitialised((32,), "u32"), 7]).check()
    assert done.arrays["arg0"].tolist() == [7] * 32
    wrong = run_source(file, grid=1, block=64, args=[Uninitialised((32,), "u32"), 7])
    (finding,) = wrong.findings
    assert (finding.file, finding.line) == (str(file), PTX.splitlines().index("	st.global.u32 [%rd3], %r1;") + 1)


def test_errors_of_the_compiler_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text("__global__ void k(float *x) {\n    x[0] = missing;\n}\n")
    done = run_source(file, grid=1, block=1)
    (finding,) = done.findings
    assert (finding.kind, finding.file, finding.line, finding.text) == ("compile", str(file), 2, "x[0] = missing;")
    assert 'identifier "missing" is undefined' in finding.message


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"kernel": "gather", "args": [1]}, "gather takes 3 parameters of .128, 8, 8. bytes, got 1"),
        ({"kernel": "scale<2>", "args": [X, X, np.int64(1), 0.5]}, "argument 2 of .* has 8 bytes, and its parameter 4"),
        ({"kernel": "scale<2>", "args": [X, X, 1.5, 0.5]}, "argument 2 of .* 1.5 is no integer, as its parameter .u32"),
        ({"kernel": "scale<2>", "args": [X, X, 1, 0.5], "block": 2048}, "X must be 1 to 1024"),
        ({"kernel": "scale<2>", "args": [X, X, 1, 0.5], "smem": 300_000}, "requests 300000 bytes"),
    ],
)
def test_impossible_launches(arguments: dict[str, object], problem: str) -> None:
    given: dict[str, object] = {"grid": 1, "block": 64, **arguments}
    done = run_source(SOURCE, **given)  # type: ignore[arg-type]
    assert done.status == "error"
    with pytest.raises(AssertionError, match=problem):
        done.check()


HEADERS = """
#include <cstddef>
struct Two { int a, b; };
static_assert(offsetof(Two, b) == 4, "a constant");
__global__ void copy(const float *x, float *y, const __grid_constant__ CUtensorMap map) {
    cudaGridDependencySynchronize();
    y[threadIdx.x] = x[threadIdx.x] + sizeof(map) + (&map == nullptr);
    cudaTriggerProgrammaticLaunchCompletion();
}
"""


@pytest.mark.parametrize("headers", [("cuda.h", "cuda/barrier"), ("cuda/barrier", "cuda.h")], ids=" ".join)
def test_the_runtime_s_headers_declare_what_nvcc_does(headers: tuple[str, ...]) -> None:
    source = "".join(f"#include <{name}>\n" for name in (*headers, "cuda_runtime.h")) + HEADERS
    x = np.arange(32, dtype=np.float32)
    args = [x, Uninitialised((32,), "f32", "y"), TensorMap("m", (64, 8))]
    done = run_source(source, grid=1, block=32, args=args, arrays=[Array(np.zeros((8, 64), np.float16), "m")]).check()
    assert (done.arrays["y"] == x + 128).all()
    assert "warning" not in done.log


WITH_HOST_CODE = """
#include <cstdio>
#include <vector>
#include <cuda_runtime.h>
__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];  // the sum
}
int main() {
    std::vector<float> h(100, 1.f);
    float *a;
    if (cudaMalloc(&a, 400) != cudaSuccess) return 1;
    cudaMemcpy(a, h.data(), 400, cudaMemcpyHostToDevice);
    add<<<1, 128>>>(a, a, a, 100);
    printf("%d\\n", cudaDeviceSynchronize());
}
"""


@needs_nvcc
def test_a_file_with_host_code_is_compiled_by_nvcc(tmp_path: Path) -> None:
    file = tmp_path / "whole.cu"
    file.write_text(WITH_HOST_CODE)
    x = np.arange(100, dtype=np.float32)
    out = Uninitialised((100,), "f32", "c")
    for kernel in (None, "add"):
        done = run_source(file, kernel=kernel, grid=1, block=128, args=[x, x, out, 100]).check()
        assert (done.arrays["c"] == 2 * x).all()
    (beyond,) = run_source(file, grid=1, block=128, args=[x[:90], x, out, 100]).findings
    assert (beyond.kind, beyond.file, beyond.line) == ("out-of-bounds", str(file), 7)
    file.write_text(WITH_HOST_CODE.replace("= a[i]", "= d[i]"))
    (wrong,) = run_source(file, grid=1, block=128, args=[x, x, out, 100]).findings
    assert (wrong.kind, wrong.file, wrong.line) == ("compile", str(file), 7)
    assert 'identifier "d" is undefined' in wrong.message


BOUNDED = """
extern "C" __global__ void __launch_bounds__(64) bounded(float *y) { y[threadIdx.x] = 1; }
extern "C" __global__ void many(volatile float *y) {
    float a[150];
#pragma unroll
    for (int i = 0; i < 150; i++) a[i] = y[i];
#pragma unroll
    for (int i = 0; i < 150; i++) y[i] = a[149 - i];
}
"""


@pytest.mark.parametrize(
    ("kernel", "fits", "block", "problem"),
    [
        ("bounded", 64, 96, "cudaErrorInvalidValue: bounded is compiled for blocks of at most 64 threads"),
        ("many", 256, 512, "cudaErrorLaunchOutOfResources: .* many has .* registers a thread, so that a block has"),
    ],
)
def test_more_threads_than_a_kernel_is_compiled_for(kernel: str, fits: int, block: int, problem: str) -> None:
    args = [np.zeros(150, np.float32)]
    run_source(BOUNDED, kernel=kernel, grid=1, block=fits, args=args).check()
    with pytest.raises(AssertionError, match=problem):
        run_source(BOUNDED, kernel=kernel, grid=1, block=block, args=args).check()


MESSAGES = """
#include <cooperative_groups.h>
#include <cuda/std/span>
#include <cuda/std/ratio>
__device__ float table[32];
__global__ void load(const float *x, float *y, unsigned back) { y[threadIdx.x] = x[threadIdx.x - back] + table[0]; }
"""


@pytest.mark.parametrize(
    ("x", "back", "message"),
    [
        (0, 0, "reads 4 bytes at a null pointer"),
        (8, 0, "reads 4 bytes at a null pointer plus 8 bytes"),
        (np.zeros(32, np.float32), 1, "nearest tensor: .* bytes after the end of (y|variable table) "),
        (np.zeros(32, np.float32), 1 << 30, "nearest tensor: .* bytes after the end of "),
    ],
)
def test_what_is_said_of_a_wrong_address(x: object, back: int, message: str) -> None:
    args = [x, Uninitialised((32,), "f32", "y"), back]
    finding = run_source(MESSAGES, grid=1, block=32, args=args).findings[0]  # type: ignore[list-item]
    assert re.search(message, finding.message)
    assert "variable _ZN" not in finding.message


def test_ptx_for_one_architecture_runs_there() -> None:
    text = PTX.replace(".target sm_100a", ".target sm_90a")
    done = run_source(text, grid=1, block=32, args=[Uninitialised((32,), "u32"), 7]).check()
    assert done.model == "NVIDIA H200"


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("barrr.sync 0;", "barrr.sync: PTX has no instruction barrr, so ptxas refuses it"),
        ("wmma.load.a.sync 0;", "wmma.load.a.sync is not modelled"),
    ],
)
def test_a_misspelt_instruction_is_told_from_one_that_is_not_modelled(instruction: str, message: str) -> None:
    text = PTX.replace("ret;", f"{instruction}\nret;", 1)
    (finding,) = run_source(text, grid=1, block=32, args=[Uninitialised((32,), "u32"), 7]).findings
    assert message in finding.message


def test_a_kernel_is_named_by_its_function() -> None:
    done = run_source(MESSAGES, grid=1, block=2048, args=[0, 0, 0])
    assert "Configuration: load: block" in done.findings[0].message


def test_kernels_are_listed_unless_one_is_meant() -> None:
    two = PTX + PTX.partition(".visible")[2].join(["\n.visible", ""]).replace("entry fill", "entry other")
    done = run_source(two, grid=1, block=32)
    assert done.entries == ("fill", "other")
    assert "has several kernels: it has fill, other; name one with --kernel" in done.findings[0].message


def test_another_device() -> None:
    done = run_source(PTX, grid=1, block=32, args=[Uninitialised((32,), "u32"), 7], arch="sm_90a")
    assert "compiled for sm_100a" in done.findings[0].message
    with pytest.raises(SourceError, match="write it as sm_100a"):
        run_source(PTX, grid=1, block=32, arch="hopper")
    with pytest.raises(SourceError, match="cannot be read"):
        run_source(Path("none.cu"), grid=1, block=1)


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    """Which waits for a writer where it is opened as a file."""
    os.mkfifo(tmp_path / "kernel.cu")
    with pytest.raises(SourceError, match="is a pipe, not a file"):
        run_source(tmp_path / "kernel.cu", grid=1, block=1)


def test_a_kernel_that_does_not_end_is_stopped() -> None:
    spin = PTX.replace(
        "	st.global.u32", "W:	setp.eq.u32 %p1, %r1, %r1;\n	@%p1 bra W;\n	st.global.u32"
    ).replace("	.reg .b32 %r<3>;", "	.reg .b32 %r<3>;\n	.reg .pred %p<2>;")
    done = run_source(spin, grid=1, block=32, args=[Uninitialised((32,), "u32"), 7], deadline_s=6)
    assert done.status in ("timeout", "error")  # the simulator may see that nothing can change
    assert done.findings


def test_where_a_kernel_is_that_changes_memory_for_ever() -> None:
    """Which is no deadlock: a value of the flag might end the loop."""
    source = """extern "C" __global__ void spin(int *flag, int last) {
    if (threadIdx.x == 0)
        while (atomicAdd(flag, 1) != last) {}  // for ever
    __syncthreads();
    flag[1 + threadIdx.x] = 1;
}
"""
    arguments = {"grid": 1, "block": 64, "args": [np.zeros(65, np.int32)]}
    done = run_source(source, **{**arguments, "args": [*arguments["args"], -5]}, deadline_s=8)
    (finding,) = done.findings
    assert (done.status, finding.kind) == ("timeout", "timeout")
    assert (finding.file, finding.line) == (__file__, line_of("// for ever"))
    words = r"spin had not ended when its time was over: 1 CTA of 1 runs, \d+\.\d s after the launch began"
    assert re.search(words, finding.message), finding.message
    assert "waits for barrier 0, 32 of 64 threads arrived" in finding.message
    assert run_source(source, **{**arguments, "args": [*arguments["args"], 5]}).check()


@pytest.mark.slow
def test_an_index_that_overflows_in_an_array_of_more_than_2_gib() -> None:
    source = """extern "C" __global__ void fill(signed char *y) {
    int at = blockIdx.x * (1u << 30) + threadIdx.x;
    y[at] = 1;  // overflow
}
"""
    done = run_source(source, grid=3, block=32, args=[Uninitialised(((1 << 31) + 32,), "i8", "y")])
    assert done.status == "error"
    assert "2147483648 bytes before y" in done.findings[0].message
    assert (done.findings[0].file, done.findings[0].line) == (__file__, line_of("// overflow"))
    assert done.arrays["y"].size == (1 << 31) + 32
    assert done.arrays["y"][:32].all()
    assert not (done.arrays["y"][-32:] == 1).any()


MOVING = r"""
extern "C" __global__ void __launch_bounds__(384, 1) moving(float *y, unsigned long long descriptor) {
    if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 248;");
    float a[32] = {};
#ifdef WIDE  // 32 registers in code that the warps with 24 can reach
#define EIGHT(i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]), \
        "+f"(a[i + 6]), "+f"(a[i + 7])
    if (descriptor)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
                     "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                     "%30, %31}, %32, %32, 1, 1, 1, 0, 0;"
                     : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24) : "l"(descriptor));
#endif
    __syncthreads();
    for (int i = 0; i < 32; i++) y[threadIdx.x] = a[i];
}
"""


@pytest.mark.parametrize(("options", "found"), [([], ["deadlock"]), (["-DWIDE"], [])], ids=["kept", "dropped"])
def test_setmaxnreg_that_ptxas_drops_waits_for_no_registers(options: list[str], found: list[str]) -> None:
    args = [Uninitialised((384,), "f32"), 0]
    done = run_source(MOVING, grid=1, block=384, args=args, arch="sm_90a", options=options)
    assert [finding.kind for finding in done.findings] == found


EARLY = r"""
extern "C" __global__ void early(unsigned *out) {
    __shared__ unsigned place;
    unsigned at = (unsigned)__cvta_generic_to_shared(&place), taddr, value;
    if (threadIdx.x >= 32)
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(at) : "memory");
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(taddr) : "r"(at) : "memory");  // without a barrier
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(value) : "r"(taddr));
        out[threadIdx.x] = value;
    }
}
"""


def test_an_address_that_is_read_too_early_comes_before_the_fault_that_it_causes() -> None:
    done = run_source(EARLY, kernel="early", grid=1, block=64, args=[Uninitialised((32,), "u32", "out")])
    assert [finding.kind for finding in done.findings] == ["uninitialised", "lane-quadrant"]
    assert done.findings[0].line == line_of("// without a barrier")


def test_what_cannot_have_caused_a_fault_comes_behind_it() -> None:
    fault, *found = (Finding(kind, "") for kind in ("deadlock", "race-warning", "race", "setmaxnreg"))
    assert [one.kind for one in in_order([fault], found)] == ["race", "deadlock", "race-warning", "setmaxnreg"]
    assert in_order([], found) == found
