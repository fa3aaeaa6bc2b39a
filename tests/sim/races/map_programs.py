"""PTX programs that stage, publish and use a tensor map."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.kernels import DATA, expect, first, prologue, wait
from tests.sim.tma.maps import Geometry

TILE = Geometry(ElementType.F16, (64, 16), (128,), (64, 16), (), 0)
MAP = 512


MEET = "bar.warp.sync 0xffffffff;"
PUBLISH = (
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd110], "
    f"[%r1+{MAP}], 128;"
)
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd110], 128;"


def staged(size: int = 128) -> str:
    """Copy the first bytes of the prepared map to shared memory."""
    copies = [f"ld.global.b64 %rd5, [%rd101+{i}]; st.shared.b64 [%r1+{MAP + i}], %rd5;" for i in range(0, size, 8)]
    return "\n".join(["@%p0 bra COPIED;", *copies, "COPIED:", MEET])


def slot(number: str) -> str:
    """Set %rd110 to the map of this number in the buffer of maps."""
    return f"mov.u32 %r60, {number}; mul.wide.u32 %rd109, %r60, 128; add.u64 %rd110, %rd102, %rd109;"


def load(barrier: int = 0, *, label: str = "LOADED", to: int = DATA) -> str:
    """Load a tile with the map of %rd110, in the first thread."""
    copy = (
        f"add.u32 %r61, %r1, {to}; add.u32 %r62, %r1, {8 * barrier};"
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r61], "
        "[%rd110, {%r9, %r9}], [%r62];"
    )
    return first(expect(2048, barrier) + copy, label)


def own_map(number: str) -> tuple[str, ...]:
    """Return a kernel in which each CTA publishes the map of a number and loads with it."""
    return (slot(number), staged(), PUBLISH, ACQUIRE, load(), wait())


def map_findings(*body: str, block: tuple[int, int, int] = (32, 1, 1), **kwargs: Any) -> list[Finding]:
    """Return the findings about a kernel that prepares a tensor map and then executes ``body``."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    step = 4 * block[0]
    fill = "\n".join(f"st.shared.b32 [%r4+{DATA + i}], %r0;" for i in range(0, 2048, step))
    lines = [prologue(barriers=2), "mov.u32 %r9, 0; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r1;", fill,
             "fence.proxy.async.shared::cta; bar.sync 0;", *body]  # fmt: skip
    buffers = {"x": np.zeros(TILE.extent, np.uint8), "map": np.zeros(128, np.uint8), "work": np.zeros(1024, np.uint8),
               "flag": np.zeros(1, np.uint32)}  # fmt: skip

    def patch(grid: Grid) -> None:
        regions = {region.name: region for region in grid.machine.memory}
        regions["map"].data[:] = np.frombuffer(TILE.encode(regions["x"].start), np.uint8)

    ran = run_ptx(
        "\n".join(lines), buffers=buffers, prepare=patch, shared=1 << 14, machine=machine, block=block, **kwargs
    )
    return ran.grid.findings
