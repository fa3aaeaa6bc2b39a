"""PTX programs that stage, publish and use a tensor map."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.kernels import DATA, prologue
from tests.sim.tma.maps import Geometry

TILE = Geometry(ElementType.F16, (64, 16), (128,), (64, 16), (), 0)
MAP = 512


def map_findings(*body: str, block: tuple[int, int, int] = (32, 1, 1)) -> list[Finding]:
    """Return the findings about a kernel that prepares a tensor map and then executes ``body``."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    step = 4 * block[0]
    fill = "\n".join(f"st.shared.b32 [%r4+{DATA + i}], %r0;" for i in range(0, 2048, step))
    lines = [prologue(), "mov.u32 %r9, 0; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r1;", fill,
             "fence.proxy.async.shared::cta; bar.sync 0;", *body]  # fmt: skip
    buffers = {"x": np.zeros(TILE.extent, np.uint8), "map": np.zeros(128, np.uint8), "work": np.zeros(128, np.uint8)}

    def patch(grid: Grid) -> None:
        regions = {region.name: region for region in grid.machine.memory}
        regions["map"].data[:] = np.frombuffer(TILE.encode(regions["x"].start), np.uint8)

    ran = run_ptx("\n".join(lines), buffers=buffers, prepare=patch, shared=1 << 14, machine=machine, block=block)
    return ran.grid.findings
