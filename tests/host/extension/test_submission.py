import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_nvfp4.problem import GPUMODE
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.tracer import Tracer
from tests.host.extension import sources

pytestmark = [pytest.mark.slow, sources.needs_nvcc]

_KERNEL = (
    """
import torch
from torch.utils.cpp_extension import load_inline

"""
    + sources.FILL
    + '''CUDA = r"""
#include <cuda_fp16.h>

__constant__ float value;

__global__ void filler(__half* c, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count + 1)
        c[i] = __float2half(value);
}

extern "C" int fill(unsigned long long c, int count) {
    float one = 1, back = 0;
    if (cudaMemcpyToSymbol(value, &one, 4) || cudaMemcpyFromSymbol(&back, value, 4) || back != one) return 7;
    filler<<<(count + 128) / 128, 128>>>((__half*)c, count);
    return cudaGetLastError();
}
"""
module = load_inline(
    name="filler", cpp_sources=[CPP], cuda_sources=["#include <cuda_runtime.h>", CUDA],
    extra_cuda_cflags=["-O3", "-arch=sm_100a"], no_implicit_headers=True,
)


def custom_kernel(data):
    abc, _, _, sizes = data
    for _, _, c in abc:
        assert module.run(c.data_ptr(), c.numel()) == 0
    return [c for _, _, c in abc]
'''
)

_INCLUDED = "extra_include_paths=[__file__.rpartition('/')[0]]"


def test_a_fault_names_the_line_of_the_literal(tmp_path: Path) -> None:
    (tmp_path / "filler.py").write_text(_KERNEL)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nnvfp4_kernels = ["filler.py"]\n')
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "filler.py",
        "-k",
        "verify and gpumode-0",
    ]
    environ = {**os.environ, "NVFP4_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    line = 1 + _KERNEL[: _KERNEL.index("c[i] = ")].count("\n")
    assert done.returncode == 1, done.stdout[-3000:]
    assert f"filler.py:{line}: simulated, out-of-bounds: st.global" in done.stdout
    assert "outputs wrong" in done.stdout
    assert done.stdout.count("nvfp4: building the C++ and CUDA extension of filler.py") == 1


def test_an_extension_is_built_once_for_all_problems_of_a_kernel(tmp_path: Path) -> None:
    kernel, header = tmp_path / "filler.py", tmp_path / "extra.h"
    dated = 'CUDA = r"""\n#include "extra.h"\nextern "C" const char* built() { return __TIME__; }\n'
    kernel.write_text(_KERNEL.replace('CUDA = r"""\n', dated).replace("no_implicit", f"{_INCLUDED}, no_implicit"))
    header.write_text("// one\n")
    cache = TraceCache(tmp_path / "cache")

    def libraries(*problems: int) -> set[bytes]:
        """What the traces of some problems have built; they begin at once."""
        tracer = Tracer(root=tmp_path, cache=cache)
        requests = [TraceRequest(kernel, GPUMODE[problem]) for problem in problems]
        with ThreadPoolExecutor(len(requests)) as pool:
            traces = list(pool.map(tracer.trace, requests))
        assert all(trace.ok for trace in traces), [trace.findings for trace in traces]
        return {path.read_bytes() for trace in traces for path in Path(trace.folder or "").glob("*/*/filler.so")}

    built = libraries(0, 1)
    assert len(built) == 1
    assert libraries(2) == built
    header.write_text("// two\n")
    after = libraries(3)
    assert len(after) == 1
    assert after != built
    kernel.write_text(kernel.read_text() + "# another kernel\n")
    assert libraries(4).isdisjoint(built | after)
