"""``torch.utils.cpp_extension.load`` with several source files and headers below the kernel."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.host.extension import sources

pytestmark = [pytest.mark.slow, sources.needs_nvcc]

# The module is written with Python's own headers, because torch's take minutes.
FILES = {
    "kernel.py": """from pathlib import Path

from torch.utils.cpp_extension import load

HERE = Path(__file__).parent
module = load(
    name="filler",
    sources=[str(HERE / "csrc" / name) for name in ("module.cpp", "filler.cu", "marks.cu")],
    extra_include_paths=[str(HERE / "include")],
    extra_cuda_cflags=["-O3", "-DVALUE=1.0f", "-arch=sm_100a"],
)


def custom_kernel(data):
    abc, _, _, sizes = data
    for _, _, c in abc:
        assert module.run(c.data_ptr(), c.numel()) == 0
    return [c for _, _, c in abc]
""",
    "csrc/module.cpp": """#include <Python.h>
#include "filler.h"
static PyObject* run(PyObject*, PyObject* args) {
    unsigned long long c; int count;
    if (!PyArg_ParseTuple(args, "Ki", &c, &count)) return nullptr;
    mark();
    return PyLong_FromLong(fill(c, count));
}
static PyMethodDef methods[] = {{"run", run, METH_VARARGS, "fill"}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "filler", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_filler() { return PyModule_Create(&module); }
""",
    "include/filler.h": """#pragma once
#define EXTRA 1
int fill(unsigned long long c, int count);
void mark();
""",
    "csrc/filler.cu": """#include <cuda_fp16.h>
#include "filler.h"
static __global__ void filler(__half* c, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count + EXTRA)
        c[i] = __float2half(VALUE);
}
int fill(unsigned long long c, int count) {
    filler<<<(count + 128) / 128, 128>>>((__half*)c, count);
    return cudaGetLastError();
}
""",
    "csrc/marks.cu": """#include "filler.h"
__device__ int marks;
static __global__ void marked() { ++marks; }
void mark() { marked<<<1, 1>>>(); }
""",
}


def test_sources_and_headers_are_built_and_built_again_when_one_changes(cli: Any, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def findings(*, builds: bool = True) -> list[tuple[str, int, str]]:
        shown = cli("run", str(tmp_path / "kernel.py"), "--problem", "96x128x256", "--device", "sim", "--json")
        assert ("building the C++ and CUDA extension of kernel.py" in shown.err) == builds
        (run,) = json.loads(shown.out)["runs"]
        return [(str(one["file"]), one["line"], one["kind"]) for one in run["findings"]]

    place = ("csrc/filler.cu", 6, "out-of-bounds")
    for builds in (True, False):
        found = findings(builds=builds)
        assert [(file[-len(place[0]) :], line, kind) for file, line, kind in found].count(place) == 1
    header = tmp_path / "include/filler.h"
    header.write_text(header.read_text().replace("EXTRA 1", "EXTRA 0"))
    assert "out-of-bounds" not in [kind for _, _, kind in findings()]
    header.write_text(header.read_text().replace("EXTRA 0", "EXTRA missing"))
    assert any(file.endswith(("include/filler.h", "csrc/filler.cu")) and line for file, line, _ in findings())
