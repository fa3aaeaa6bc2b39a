"""Readings of a GPU whose laws are known, for the fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pytest_nvfp4.model.calibrate.benchmark import Benchmark, Machine
from pytest_nvfp4.model.calibrate.estimates import Measurements
from pytest_nvfp4.model.calibrate.plan import LINES, plan
from pytest_nvfp4.model.calibrate.readings import MARKER, Gpu, Line, Reading, State, by_name

REPEATS = 7
ROW, KIB, ISSUE, LATENCY, BARRIER = 2.5, 4.0, 6.0, 500.0, 15.0
HOPPER = Gpu(
    name="NVIDIA H200", capability=(9, 0), driver="580.1", sms=132, l2_bytes=60_000_000,
    free_bytes=140 << 30, shared_bytes=232_448, clusters={"2": 66, "4": 31, "8": 15, "16": 0},
)  # fmt: skip
BLACKWELL = HOPPER.model_copy(update={"name": "NVIDIA B200", "capability": (10, 0), "sms": 148})


@dataclass
class Truth:
    """A GPU at a constant clock.

    Attributes:
        ghz: SM clock.
        start: Cycles of each launch besides its operations.
        noise: Relative deviation of the readings of a launch.
        per: Cycles of one operation by benchmark; 10 for others.
        samples: Samples by benchmark.
    """

    ghz: float = 2.0
    start: float = 5_000.0
    noise: float = 0.0
    per: dict[str, float] = field(default_factory=dict)
    samples: Mapping[str, list[float]] = field(default_factory=dict)

    def readings(self, machine: Machine, *, without: tuple[str, ...] = ()) -> list[Reading]:
        """Readings of all benchmarks but some."""
        random = np.random.default_rng(1)
        made = []
        for benchmark in plan(machine):
            for index, count in enumerate(operations(benchmark)):
                factor = np.abs(1 + self.noise * random.standard_normal(REPEATS))
                cycles = (self.start + self.per.get(benchmark.name, 10.0) * count) * factor
                reading = Reading(
                    benchmark=benchmark.name, point=index, cycles=tuple(cycles.tolist()),
                    ns=tuple((cycles / self.ghz).tolist()), operations=(count,),
                    samples=tuple(self.samples.get(benchmark.name, ())),
                )  # fmt: skip
                made += [] if benchmark.name in without else [reading]
        return made

    def measured(self, machine: Machine, *, without: tuple[str, ...] = ()) -> Measurements:
        """What the fits take."""
        readings = by_name(self.readings(machine, without=without))
        return Measurements(readings, {item.name: operations(item) for item in plan(machine) if item.name in readings})

    def report(self, gpu: Gpu) -> bytes:
        """What the process of a calibration prints."""
        lines: list[Line] = [State(when="before"), gpu, *self.readings(gpu.machine()), State(when="after")]
        return b"".join(f"{MARKER}{line.model_dump_json()}\n".encode() for line in lines)


def operations(benchmark: Benchmark) -> list[int]:
    """Operations of each point, or launches."""
    return [point.operations if benchmark.launches == "one" else point.n for point in benchmark.points]


def lines(near: float, far: float) -> list[float]:
    """Latencies of lines of which every second is far."""
    return [near, far] * (LINES // 2)


def known_gpu(noise: float = 0.0) -> Truth:
    """A GPU at 2 GHz, with the constants above and others."""
    # A loop of 150 cycles, which a full ring hides.
    per = {"tma.loop": 150.0} | {f"tma.issue.{boxes}": 150 + ISSUE * boxes for boxes in (8, 32)}
    per |= {f"tma.rate.{boxes}": 256 * ROW * boxes for boxes in (2, 3)}
    per |= {f"tma.latency.{rows}": 150 - BARRIER + ISSUE + LATENCY + (ROW + KIB / 8) * rows for rows in (8, 32, 128)}
    per |= {
        "mbarrier.arrive": 8.0,
        "mbarrier.handover": 2 * (8 + 2 * BARRIER),
        "mbarrier.remote": 2 * (8 + 180 + BARRIER),
    }
    per |= {f"store.rate.{size}": 40 + size / 20 for size in (8192, 32768)}
    per |= {f"store.latency.{size}": 706 + size / 20 for size in (8192, 32768)}
    per |= {"shared.load.16": 16 * 512 / 128, "global.load": 16 * 512 / 64, "shared.latency": 30.0}
    per |= {
        "map.replace": 40.0,
        "map.change": 370.0,
        "shared.store": 6.0,
        "map.load": 700.0,
        "map.load.acquired": 730.0,
        "map.load.changed": 1430.0,
        "fence.none": 6.0,
        "fence.gpu": 606.0,
        "fence.near": 36.0,
    }
    per |= {"issue.alu.dependent": 4.0, "issue.fma.dependent": 4.5, "issue.special.dependent": 18.0}
    # Of sixteen warps on four schedulers.
    per |= {"issue.alu.independent": 4.0, "issue.fma.independent": 6.0, "issue.special.independent": 32.0}
    per |= {"issue.convert.dependent": 5.0, "issue.convert.independent": 8.0}
    # 132 SMs, 32 KiB: 8 TB/s and 4 TB/s, and stores at 5 TB/s, in cycles at 2 GHz.
    tile = 132 * 32768
    per |= {"l2.read": tile / 8e3 * 2, "dram.read": tile / 4e3 * 2, "l2.write": tile / 4 / 5e3 * 2}
    per |= {"l2.shared": tile / 16e3 * 2, "dram.write": tile / 3.2e3 * 2, "launch.alone": 2 * (2900 + 310)}
    per |= {"launch.plain": 5000.0, "launch.programmatic": 3400.0, "launch.graph": 2600.0}
    per |= {"tmem.loop": 15.0} | {f"tmem.load.{columns}": 55 + 1.25 * columns for columns in (8, 32, 64, 128)}
    per |= {"tmem.allocate": 360.0, "tmem.copy.rate": 4.0}
    for kind in ("f16", "f8f6f4", "mxf4nvf4"):
        for n in (64, 128, 256):
            for shape in (f"ss.1.64.{n}", f"ts.1.64.{n}", f"ss.1.128.{n}", f"ss.2.256.{n}"):
                # Of each of two warpgroups, where there is wgmma.
                rate = n if ".1.64." in shape else n / 2
                per |= {f"mma.{kind}.{shape}.rate": rate, f"mma.{kind}.{shape}.latency": n / 2 + 30}
    per |= {"l2.latency": 600.0}
    samples = {"l2.latency": lines(250, 410), "dram.latency": lines(700, 860), "cta.start": [600.0, 620.0, 640.0],
               "launch.plain": [400.0], "launch.programmatic": [400.0], "launch.graph": [400.0]}  # fmt: skip
    return Truth(noise=noise, per=per, samples=samples)
