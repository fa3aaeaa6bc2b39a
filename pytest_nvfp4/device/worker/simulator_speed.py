"""Measure the speed of the simulator: ``python -m pytest_nvfp4.device.worker.simulator_speed KERNEL PROBLEM...``.

Prints one JSON line for each problem: seconds of each of ``--rounds`` calls without compiling, warp instructions and
CTAs of a call, and the peak memory so far. The first call of a kernel also parses its PTX and compiles its blocks. The
figures do not indicate a kernel's speed on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Run the measurement named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", type=Path)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--arch", default="sm_100a")
    parser.add_argument("--family", default="gpumode")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=0, help="0: as many as this machine has cores")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pytest-nvfp4-speed-") as folder:
        _measure(arguments, Path(folder))


def _measure(arguments: argparse.Namespace, folder: Path) -> None:
    from pytest_nvfp4.host import redirect
    from pytest_nvfp4.isolation import blas

    os.environ.update(redirect.environment(folder, arch=arguments.arch))
    os.environ.update(blas.variables())
    from pytest_nvfp4.cores import cores
    from pytest_nvfp4.device.worker.buffers import CallBuffers
    from pytest_nvfp4.device.worker.memory import HostMemory
    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.numerics.families import family
    from pytest_nvfp4.problem import GPUMODE, GPUMODE_BENCH
    from pytest_nvfp4.toolchain.worker import contract
    from pytest_nvfp4.toolchain.worker.loading import load

    known = {problem.name: problem for problem in (*GPUMODE, *GPUMODE_BENCH)}
    processes = arguments.processes or cores()
    with simulate(arch=arguments.arch, processes=processes) as session:
        import torch

        contract.provide_task()
        module = load(arguments.kernel.resolve())
        for name in arguments.problems:
            inputs = family(arguments.family).generate(known[name])
            buffers = CallBuffers(torch, inputs)
            buffers.fill(HostMemory(), inputs)
            if callable(prepare := getattr(module, "compile_kernel", None)):
                contract.prepare(prepare, inputs.problem.sizes)
            seconds, before = [], len(session.launches)
            for _ in range(arguments.rounds):
                given, _outputs = buffers.arguments()
                start = time.perf_counter()
                module.custom_kernel(*given)
                seconds.append(round(time.perf_counter() - start, 4))
            launches = session.launches[before:]
            per_call = len(launches) // arguments.rounds
            sys.stdout.write(
                json.dumps(
                    {
                        "problem": name,
                        "seconds": seconds,
                        "instructions": sum(record.counters["instructions"] for record in launches[:per_call]),
                        "ctas": sum(record.counters["ctas"] for record in launches[:per_call]),
                        "flops": sum(2 * m * n * k for m, n, k, _ in inputs.problem.sizes),
                        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                    }
                )
                + "\n"
            )


if __name__ == "__main__":
    main()
