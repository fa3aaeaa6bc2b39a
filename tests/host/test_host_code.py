"""CUDA C++ with host code: what has it, and what is missing to compile it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.driver.launches import NoCompilerError
from pytest_nvfp4.host import host_code
from pytest_nvfp4.host.extension import compilers
from pytest_nvfp4.sim.ptx.parser import parse
from tests.host.extension import sources

KERNEL = "__global__ void k(float *y) { y[0] = 1; }\n"


@pytest.mark.parametrize(
    ("more", "has"),
    [
        ("", False),
        ("// k<<<1, 1>>>(y) launches it, from main()\n", False),
        ('/* cudaMalloc(&y, 4); */\n__device__ const char *text = "std::vector";\n', False),
        ("__device__ void wait() { cudaGridDependencySynchronize(); }\n", False),
        ("void launch(float *y) { k<<<1, 1>>>(y); }\n", True),
        ("int main() {}\n", True),
        ("float *made() { float *y; cudaMalloc(&y, 4); return y; }\n", True),
        ("std::vector<float> h;\n", True),
    ],
)
def test_what_has_host_code(more: str, has: bool) -> None:
    assert host_code.has_host_code(KERNEL + more) == has


def test_without_nvcc_the_way_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compilers, "_nvccs", lambda: iter(()))
    with pytest.raises(NoCompilerError, match=r"nvcc .* compiles a CUDA C\+\+ file with host code: pip install"):
        host_code.ptx(KERNEL, name="k.cu", options=(), arch="sm_100a", folder=tmp_path)


@sources.needs_nvcc
@pytest.mark.slow
def test_an_instruction_of_assembly_may_go_on_in_the_next_line(tmp_path: Path) -> None:
    """nvcc writes a ``.loc`` into it, which ptxas refuses."""
    text = host_code.ptx(sources.SPLIT + "int main() {}\n", name="k.cu", options=(), arch="sm_100a", folder=tmp_path)
    (kernel,) = parse(text).kernels.values()
    lines = {ins.opcode: ins.location.line for ins in kernel.instructions if ins.location}
    assert lines["not.b32"] == 3
    assert lines["st.global.b32"] == 4
