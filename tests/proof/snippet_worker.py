"""Runs emitted CTA maps in the simulator: ``python -m tests.proof.snippet_worker PROBLEMS SNIPPET...``.

A SNIPPET is a file that ``nvfp4 prove cta-indexing --emit-snippet`` wrote; PROBLEMS a JSON list of lists of (m, n, k).
One JSON is written: by snippet and problem, what ``find_tile`` gave each CTA, and how often that CTA ran.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cutlass
import torch
from cutlass import Int32, cute

from pytest_nvfp4.device.worker.simulator import simulate


def load(path: str) -> ModuleType:
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


EMITTED = {str(number): load(path) for number, path in enumerate(sys.argv[2:])}


@cute.kernel
def kernel(table: cute.Tensor, out: cute.Tensor, num_groups: Int32, which: cutlass.Constexpr) -> None:
    thread, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    group, x, y = EMITTED[which].find_tile(table, num_groups, b)
    if thread == 0:
        out[b, 0] = group
        out[b, 1] = x
        out[b, 2] = y
        out[b, 3] = out[b, 3] + 1


@cute.jit
def launch(
    table_ptr: cute.Pointer, out_ptr: cute.Pointer, num_groups: Int32, num_tiles: Int32, which: cutlass.Constexpr
) -> None:
    table = cute.make_tensor(table_ptr, cute.make_layout((num_groups + 1, 2), stride=(2, 1)))
    out = cute.make_tensor(out_ptr, cute.make_layout((num_tiles, 4), stride=(4, 1)))
    kernel(table, out, num_groups, which).launch(grid=(num_tiles, 1, 1), block=(32, 1, 1))


def pointer(address: int) -> cute.Pointer:
    return cute.runtime.make_ptr(Int32, address, cute.AddressSpace.gmem, assumed_align=16)


def run(which: str, problems: list[Any]) -> Iterator[dict[str, Any]]:
    """What every CTA of every problem was given."""
    compiled = None
    for problem in problems:
        rows, grid = EMITTED[which].tile_table(problem)
        if not grid:
            yield {"grid": 0, "tiles": []}
            continue
        table = torch.tensor(rows, dtype=torch.int32, device="cuda")
        out = torch.zeros((grid, 4), dtype=torch.int32, device="cuda")
        arguments = (pointer(table.data_ptr()), pointer(out.data_ptr()), Int32(len(rows) - 1), Int32(grid))
        compiled = compiled or cute.compile(launch, *arguments, which)
        compiled(*arguments)
        yield {"grid": grid, "tiles": out.cpu().tolist()}


def main() -> None:
    problems = json.loads(Path(sys.argv[1]).read_text())
    with simulate(arch="sm_100a") as sim:
        runs = [list(run(which, problems)) for which in EMITTED]
        findings = [str(finding) for finding in sim.findings]
    sys.stdout.write("EMITTED " + json.dumps({"runs": runs, "findings": findings}) + "\n")


if __name__ == "__main__":
    main()
