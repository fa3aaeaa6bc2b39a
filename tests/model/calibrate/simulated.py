"""Micro-benchmarks in the simulator, with the race detector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.model.calibrate.benchmark import Benchmark, Machine
from pytest_nvfp4.model.calibrate.kernel import ENTRY, RECORD_WORDS, Body
from pytest_nvfp4.model.calibrate.plan import plan
from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.machine import Machine as SimulatedMachine
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.maps import Geometry

DATA_BYTES = 1 << 18


def machine(arch: str, *, length: float = 0.001) -> Machine:
    """A GPU of two SMs with little memory, on which each benchmark executes a few operations."""
    return Machine(arch, 2, DATA_BYTES // 2, DATA_BYTES, shared_bytes=230_000, length=length)


def benchmarks(arch: str) -> dict[str, Benchmark]:
    """All benchmarks; rings go round more than once, and the one of the clock does no more than the others."""
    found = {benchmark.name: benchmark for benchmark in plan(machine(arch))}
    found |= {item.name: item for item in plan(machine(arch, length=1e-6)) if item.name.startswith("clock")}
    longer = {item.name: item for item in plan(machine(arch, length=0.02))}
    found |= {
        name: longer[name] for name in found if name.startswith(("tma.issue.8", "tma.multicast", "store.rate.8192"))
    }
    return found


@dataclass(frozen=True)
class Launched:
    """What a launch left.

    Attributes:
        counts: Operations that each counting CTA counted.
        findings: Messages of the simulator and of the race detector.
        ordered: Whether each CTA's clocks are in order.
        samples: Words behind the first record.
        units: What the simulator's units counted.
    """

    counts: list[int]
    findings: list[str]
    ordered: bool
    samples: NDArray[np.uint32]
    units: dict[str, int]


def launch(
    benchmark: Benchmark, arch: str, *, body: Body | None = None, point: int = -1, recorder: Recorder | None = None
) -> Launched:
    """Launch a point of a benchmark, with another body if one is given. Raises Fault as the simulator does.

    With a recorder the launch is recorded, and races are not looked for.
    """
    simulated = SimulatedMachine(model=for_arch(arch))
    simulated.monitor = recorder or Detector()
    tensor, chosen = benchmark.tensor, benchmark.points[point]
    size = max(DATA_BYTES, tensor.rows * tensor.pitch if tensor else 0)

    def prepare(grid: Any) -> None:
        if recorder is not None:
            recorder.launched(grid)
        if tensor is None:
            return
        regions = {region.name: region for region in grid.machine.memory}
        geometry = Geometry(ElementType.U16, (64, tensor.rows), (tensor.pitch,), (64, tensor.box_rows), swizzle=3)
        regions["maps"].data[:] = np.frombuffer(geometry.encode(regions["data"].start), np.uint8)

    ran = run_ptx(
        (body or benchmark.body).module(arch).replace(f"entry {ENTRY}", "entry kernel"),
        raw=True,
        machine=simulated,
        buffers={
            "out": np.zeros(benchmark.ctas * RECORD_WORDS + -(-benchmark.samples // 2), np.uint64),
            "data": np.random.default_rng(0).integers(0, 1 << 32, size // 4, np.uint32),
            "maps": np.zeros(128, np.uint8),
        },
        values=(1 if benchmark.launches != "one" else chosen.n, chosen.a, chosen.b),
        grid=(benchmark.ctas, 1, 1),
        block=(benchmark.threads, 1, 1),
        cluster=(benchmark.cluster, 1, 1),
        shared=benchmark.shared,
        arch=arch,
        prepare=prepare,
    )
    records = ran["out"][: benchmark.ctas * RECORD_WORDS].reshape(-1, RECORD_WORDS)
    return Launched(
        counts=records[:: benchmark.counting, 4].tolist(),
        findings=[finding.message for finding in ran.grid.findings],
        ordered=bool((records[:, 0] < records[:, 1]).all() and (records[:, 2] < records[:, 3]).all()),
        samples=ran["out"].view(np.uint32)[2 * RECORD_WORDS :][: benchmark.samples],
        units=dict(ran.grid.counters),
    )


def without(body: Body, text: str) -> Body:
    """A body without the first line that contains a text, wherever it is."""
    for name in ("before", "timed", "after"):
        lines = getattr(body, name).split("\n")
        for at, line in enumerate(lines):
            if text in line:
                return replace(body, **{name: "\n".join([*lines[:at], *lines[at + 1 :]])})
    raise AssertionError(f"no line contains {text!r}")
