"""Speed of the simulator on GPU MODE's shapes, beside numpy's product of the same FLOPs, and on scalar code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from pytest_nvfp4.cli import output
from pytest_nvfp4.problem import GPUMODE
from pytest_nvfp4.selfcheck.speed.figures import Figure, Kernel, timed

LARGEST = "gpumode-bench-0"
_SCALAR = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .b64 p0)
{
.reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %rd<3>;
ld.param.b64 %rd1, [p0];
mov.b32 %r5, 0; mov.b32 %r6, 1;
L: add.s32 %r5, %r5, 1; mul.lo.s32 %r6, %r6, 1664525; add.s32 %r6, %r6, 1013904223;
and.b32 %r7, %r6, 255; shl.b32 %r8, %r7, 3; mad.lo.s32 %r9, %r7, %r8, %r5; xor.b32 %r6, %r6, %r9;
setp.lt.s32 %p1, %r6, %r9; selp.b32 %r10, %r6, %r9, %p1; setp.lt.u32 %p2, %r5, 100000; @%p2 bra L;
st.global.b32 [%rd1], %r10;
ret;
}
"""


def figures(kernel: Kernel, rounds: int) -> Iterator[Figure]:
    """Measure a kernel on GPU MODE's ten tests and its largest shape, and scalar code.

    Raises:
        InputError: The kernel cannot be simulated.
    """
    with output.working("simulating GPU MODE's shapes"):
        tests = _run(kernel, [problem.name for problem in GPUMODE], rounds=rounds)
        largest = _run(kernel, [LARGEST], rounds=rounds)[0]
    totals = [sum(problem["seconds"][i] for problem in tests) for i in range(rounds)]
    yield Figure("simulate-tests", "simulating GPU MODE's ten tests, one process", "s", totals)
    yield Figure(
        "simulate-largest", f"simulating {LARGEST} ({largest['ctas']} CTAs), all cores", "s", largest["seconds"]
    )
    yield Figure("simulate-memory", "peak memory of that process", "MiB", [largest["peak_mib"]])
    with output.working("numpy's product of the same FLOPs"):
        product = [_product(largest["flops"]) for _ in range(rounds)]
    yield Figure("numpy-product", "numpy's fp32 product of the same FLOPs, all cores", "s", product)
    ratio = [simulated / numpy for simulated, numpy in zip(largest["seconds"], product, strict=True)]
    yield Figure("simulate-ratio", "the simulation as a multiple of that product", "times", ratio)
    with output.working("scalar code"):
        speeds = [_scalar() for _ in range(rounds)]
    yield Figure("simulate-scalar", "warp instructions of scalar code, one core", "a second", speeds)


def _run(kernel: Kernel, problems: list[str], *, rounds: int) -> list[dict[str, Any]]:
    module = "pytest_nvfp4.device.worker.simulator_speed"
    options = ("--arch", kernel.arch, "--rounds", str(rounds))
    _, text = timed([sys.executable, "-m", module, str(kernel.file), *problems, *options])
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _product(flops: int) -> float:
    import numpy as np

    rows, depth = 1024, 7168
    columns = max(1, flops // (2 * rows * depth))
    a = np.ones((rows, depth), np.float32)
    b = np.ones((depth, columns), np.float32)
    start = time.perf_counter()
    a @ b
    return time.perf_counter() - start


def _scalar() -> float:
    import ctypes

    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.machine import Machine
    from pytest_nvfp4.sim.run.programs import Programs

    machine = Machine()
    memory = ctypes.create_string_buffer(256)
    address = -(-ctypes.addressof(memory) // 64) * 64
    machine.memory.add(Region("out", address, 64))
    program = Programs().get(_SCALAR, "kernel")
    grid = Grid(machine, program, shape=(1, 1, 1), block=(32, 1, 1), parameters=(address.to_bytes(8, "little"),))
    start = time.perf_counter()
    grid.run()
    return grid.counters["instructions"] / (time.perf_counter() - start)
