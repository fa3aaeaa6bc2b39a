"""Measures the Hopper points of the validation on a GPU, and writes their times into the tables.

``python -m tests.model.measure_hopper [--rounds N] [--folder FOLDER] [TABLE ...]`` needs an H200 that does nothing
else, torch, the DSL and this package; no CUDA toolkit. Every result is compared with torch before it is timed. A round
is one call between two events, behind a gate, with L2 cleared (``device.worker.clock``); ``measured_us`` is the median
of the rounds that the host was in time for, less that of rounds without a call.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from pytest_nvfp4.device.worker.clock import Round
from pytest_nvfp4.problem import parse_shape
from tests.model.tables import DATA, read_table, write_table

KERNELS = Path(__file__).parents[2] / "kernels"
WARMUP = 3
Row = dict[str, str]


class Clock(Protocol):
    """What is needed of ``DeviceClock``."""

    def device_round(self, call: Callable[[], Any], *, cold: bool, expected_call_us: float) -> Round:
        """Time one call."""


def load(name: str) -> Any:
    """A kernel of the tree as a module."""
    task = types.ModuleType("task")
    task.input_t = task.output_t = Any  # type: ignore[attr-defined]
    sys.modules.setdefault("task", task)
    spec = importlib.util.spec_from_file_location(f"measured_{name}", KERNELS / name / "sm90.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gemm_calls(rows: Sequence[Row], *, checked: bool = True) -> Iterator[tuple[Row, Callable[[], Any]]]:
    """Calls of the family of GEMMs, each compiled and made once, and right if ``checked``."""
    from tests.model.kernels import gemm_inputs
    from tests.model.kernels.hopper_gemm import HopperGemm

    for row in rows:
        tile = int(row["tile_m"]), int(row["tile_n"]), int(row["tile_k"])
        cluster = int(row["cluster_m"]), int(row["cluster_n"])
        gemm = HopperGemm(row["kind"], tile, int(row["stages"]), cluster, row["schedule"])
        launch = gemm_inputs.compile_gemm(gemm)
        m, n, k = (int(row[name]) for name in "mnk")
        plain = gemm_inputs.PLAIN[row["kind"]]
        values = [torch.randint(-2, 3, (rows_of, k), device="cuda").float() for rows_of in (m, n)]
        a, b = (value.to(plain).view(torch.uint8) for value in values)
        operands = gemm_inputs.Operands(a, b, a, a, *gemm_inputs.NO_VALUES)
        c = torch.empty((m, n), dtype=gemm_inputs.TORCH[gemm.c_type], device="cuda")

        def call(launch: Any = launch, arguments: Any = (operands, c, m, n, k, int(row["clusters"]))) -> None:
            launch(*arguments)

        call()
        if checked and not torch.equal(c, (values[0] @ values[1].t()).to(c.dtype)):
            raise AssertionError(f"{row} is wrong")
        yield row, call


def group_gemm_calls(rows: Sequence[Row], *, checked: bool = True) -> Iterator[tuple[Row, Callable[[], Any]]]:
    """Calls of the grouped GEMM, each made once. (Its results are the matter of other tests.)"""
    del checked
    module = load("nvfp4_group_gemm")
    for row in rows:
        sizes = [(group.m, group.n, group.k, 1) for group in parse_shape(row["problem"].replace("+", ",")).groups]
        abc, scales = [], []
        for m, n, k, _ in sizes:
            a, b = (torch.randint(0, 256, (r, k // 2, 1), dtype=torch.uint8, device="cuda") for r in (m, n))
            abc.append((a, b, torch.empty((m, n, 1), dtype=torch.float16, device="cuda")))
            # 0.5 to 2: no result overflows.
            scales.append(
                tuple(
                    torch.randint(0x30, 0x41, (-(-r // 128) * 128, k // 16), dtype=torch.uint8, device="cuda")
                    for r in (m, n)
                )
            )

        def call(data: Any = (abc, None, scales, sizes)) -> None:
            module.custom_kernel(data)

        call()
        yield row, call


def transpose_calls(rows: Sequence[Row], *, checked: bool = True) -> Iterator[tuple[Row, Callable[[], Any]]]:
    """Calls of the transpose, each made once, and right if ``checked``."""
    module = load("copy_transpose")
    for row in rows:
        dtype = getattr(torch, row["dtype"])
        x = torch.randint(-(2**15), 2**15, (int(row["m"]), int(row["n"])), dtype=dtype, device="cuda")
        out = torch.empty((x.shape[1], x.shape[0]), dtype=dtype, device="cuda")

        def call(x: Any = x, out: Any = out) -> None:
            module.transpose_into(x, out)

        call()
        if checked and not torch.equal(out, x.t().contiguous()):
            raise AssertionError(f"{row} is wrong")
        yield row, call


TABLES = {
    "hopper_gemm": gemm_calls,
    "hopper_group_gemm": group_gemm_calls,
    "hopper_transpose": transpose_calls,
}


def times(clock: Clock, call: Callable[[], Any], rounds: int) -> list[float]:
    """Microseconds of the rounds that the host was in time for, ascending. Raises RuntimeError if these are too few."""
    began = time.perf_counter()
    for _ in range(WARMUP):
        call()
    torch.cuda.synchronize()
    expected_us = (time.perf_counter() - began) / WARMUP * 1e6
    done = [clock.device_round(call, cold=True, expected_call_us=expected_us) for _ in range(rounds)]
    in_time = sorted(one.device_us for one in done if not one.late)
    if len(in_time) < rounds / 2:
        raise RuntimeError(f"the host was late in {rounds - len(in_time)} of {rounds} rounds")
    return in_time


def measure(table: Path, clock: Clock, *, rounds: int) -> None:
    """Fill in the times of a table."""
    rows = read_table(table)
    empty_us = statistics.median(times(clock, lambda: None, rounds))
    for row, call in TABLES[table.stem](rows):
        measured = times(clock, call, rounds)
        tenth = len(measured) // 10
        for name, value in (
            ("measured_us", statistics.median(measured)),
            ("p10_us", measured[tenth]),
            ("p90_us", measured[-1 - tenth]),
        ):
            row[name] = f"{value - empty_us:.2f}"
    write_table(table, rows)


def main() -> None:
    """Measure all tables, or those that are named."""
    from pytest_nvfp4.device.worker.clock import DeviceClock
    from pytest_nvfp4.device.worker.memory import CudaMemory

    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=DATA)
    options = parser.parse_args()
    torch.zeros(1, device="cuda")  # makes the context that the clock uses
    properties = torch.cuda.get_device_properties(0)
    clock = DeviceClock(CudaMemory(), l2_bytes=properties.L2_cache_size)
    for name in options.tables:
        measure(options.folder / f"{name}.csv", clock, rounds=options.rounds)
        print(f"{name}: measured on {properties.name}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
