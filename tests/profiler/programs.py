"""Programs with an instrumented kernel, for `nvfp4 exec`; each prints JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.remote.base import PythonProgram
from tests.waiting import LONGEST_S

IMPORT = "\n" * 4 + "from pytest_nvfp4.profiler import region, region_mark, region_start, region_stop"
"""As many lines as `FALLBACK`, because PTX names lines."""
FALLBACK = """try:
    from no_such_package.profiler import region, region_mark, region_start, region_stop
except ImportError:
    from contextlib import nullcontext
    region = region_mark = region_start = region_stop = lambda *_, **__: nullcontext()"""
"""The import of the guide on a machine without this package."""

KERNEL = """
import json, os, sys
import torch
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
{imports}


@cute.jit
def helper(total: Float32, i: Int32) -> Float32:
    with region("helper", value=i):
        twice = total + total
    return twice


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor, rounds: Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    total = Float32(0.0)
    with region("whole"):
        inside = x[thread]
        for i in cutlass.range(rounds, unroll=1):
            region_start("round", value=i)
            total = total + inside
            if warp == 1:
                with region("second warp"):
                    total = helper(total, i)
                region_mark("seen", value=-3)
            region_stop("round")
        with region("block", scope="block"):
            behind = total + 1.0
        with cute.arch.elect_one():
            with region("elected", scope="elected"):
                y[64 + 2 * block + warp] = behind
    y[thread] = behind + inside


@cute.jit
def launch(x_pointer: cute.Pointer, y_pointer: cute.Pointer, rounds: Int32):
    x = cute.make_tensor(x_pointer, cute.make_layout((64,)))
    y = cute.make_tensor(y_pointer, cute.make_layout((128,)))
    kernel(x, y, rounds).launch(grid=(2, 1, 1), block=(64, 1, 1))


def pointer(address):
    return cute.runtime.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=16)


def compiled():
    return cute.compile(launch, pointer(0), pointer(0), Int32(1))


def ptx():
    (file,) = sorted(p for p in os.listdir(os.environ["CUTE_DSL_DUMP_DIR"]) if p.endswith(".ptx"))
    path = os.path.join(os.environ["CUTE_DSL_DUMP_DIR"], file)
    text = open(path).read().replace("\\0", "")
    os.remove(path)
    return text


def call(function, rounds):
    x, y = torch.ones(64, device="cuda"), torch.zeros(128, device="cuda")
    function(pointer(x.data_ptr()), pointer(y.data_ptr()), rounds)
    torch.cuda.synchronize()
    return y.cpu().tolist()
"""
"""Two CTAs of two warps; all scopes, a loop, a branch, a function, and values made inside and used behind."""


def run_program(folder: Path, source: str, *, environ: Mapping[str, str] | None = None) -> Any:
    """Run a program on the simulator, and return the JSON of its last line."""
    dump = folder / "dump"
    dump.mkdir(exist_ok=True)
    written: list[bytes] = []
    program = PythonProgram(
        source=source,
        arguments=(),
        files={},
        environ={"CUTE_DSL_ARCH": "sm_90a", **(environ or {})},
        stdin=b"",
        deadline_s=LONGEST_S,
    )
    done = execute(program, backend="sim", on_output=lambda _, piece: written.append(piece))
    text = b"".join(written).decode()
    assert done.exit_status == 0, text
    return json.loads(text.splitlines()[-1])
