"""``nvfp4 exec`` keeps the extensions that a program has built, for runs of the same program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import Result
from tests.cli.test_exec import run
from tests.host.extension import sources

pytestmark = [pytest.mark.slow, sources.needs_nvcc]

PROGRAM = (
    """
import pathlib, sys, torch
from torch.utils.cpp_extension import load_inline

"""
    + sources.FILL
    + '''CUDA = r"""
__global__ void filler(float* c, int count) {
    if (threadIdx.x < count) c[threadIdx.x] = 1;  // the store
}
extern "C" int fill(unsigned long long c, int count) {
    filler<<<1, 128>>>((float*)c, count);
    return cudaGetLastError();
}
"""
module = load_inline(
    name="filler", cpp_sources=[CPP], cuda_sources=["#include <cuda_runtime.h>", CUDA], no_implicit_headers=True
)
c = torch.zeros(64, device="cuda")
print(pathlib.Path(module.__file__).parts[-3], flush=True)
module.run(c.data_ptr(), int(sys.argv[1]))
print(int(c.sum()))
'''
)


def test_an_extension_is_built_once_for_the_same_program(tmp_path: Path) -> None:
    """The line of a finding is one of the program that runs; a damaged entry, and another program, build anew."""
    (program := tmp_path / "program.py").write_text(PROGRAM)
    cache = tmp_path / "cache"

    def done(count: int, *options: str) -> Result:
        return run("--device", "sim", *options, program, count, NVFP4_CACHE_DIR=str(cache))

    def reused(count: int, *options: str) -> bool:
        finished = done(count, *options)
        place, total = finished.out.split()
        assert (finished.code, total) == (0, str(count)), finished.err
        return place == "built"

    assert not reused(64)
    assert reused(60)
    line = PROGRAM.split("\n").index("    if (threadIdx.x < count) c[threadIdx.x] = 1;  // the store") + 1
    failed = done(65)
    assert failed.out == "built\n64\n"
    assert f"program.py:{line}: simulated, out-of-bounds: " in failed.err
    assert "// the store\n" in failed.err
    assert not reused(64, "--arch", "sm_90a")
    assert reused(64)
    entries = [path for path in (cache / "sealed/programs").glob("*/*") if path.is_file()]
    assert len(entries) == 2
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert not reused(64)
    program.write_text(PROGRAM + "# another program\n")
    assert not reused(64)
