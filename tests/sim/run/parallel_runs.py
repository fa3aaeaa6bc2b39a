"""A grid of many CTAs, run in several processes."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.memory.coverage import findings
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Kernel
from pytest_nvfp4.sim.run.grid import Grid
from tests.sim.ptx_case import Ran, run_ptx

WORK = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mov.b32 %r3, 0; mov.b32 %r4, 1;
L: mad.lo.s32 %r4, %r4, 1664525, %r1; add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 300; @%p1 bra L;
add.s32 %r4, %r4, %r2;
mad.lo.s32 %r5, %r1, 32, %r2; mul.wide.u32 %rd1, %r5, 4; add.s64 %rd1, %rd100, %rd1;
{extra}
st.global.b32 [%rd1], %r4;
"""
CTAS = 24


def run(processes: int, extra: str = "") -> Ran:
    return run_ptx(
        WORK.format(extra=extra),
        buffers={"out": np.zeros(CTAS * 32, np.uint32)},
        grid=(CTAS, 1, 1),
        processes=processes,
    )


def watched(processes: int, rows: int, skip: int = -1, twice: int = -1) -> list[str]:
    """Return the coverage findings of an output with one CTA per row, with one row skipped or written twice."""
    regions = []

    def prepare(grid: Grid) -> None:
        for region in grid.machine.memory:
            if region.name == "out":
                region.watch(4)
                regions.append(region)

    run_ptx(
        WORK.format(
            extra=f"setp.eq.u32 %p2, %r1, {skip}; @%p2 exit;"
            f"setp.eq.u32 %p3, %r1, {twice}; @%p3 add.s64 %rd1, %rd1, 128;"
        ),
        buffers={"out": np.zeros(rows * 32, np.uint32)},
        grid=(CTAS, 1, 1),
        processes=processes,
        prepare=prepare,
    )
    return sorted(finding.kind for finding in findings(regions))


def tracked(processes: int) -> Ran:
    """Return a run of which the written bytes are recorded; CTA 9 writes none."""

    def prepare(grid: Grid) -> None:
        for region in grid.machine.memory:
            region.track_writes()

    return run_ptx(
        WORK.format(extra="setp.eq.u32 %p2, %r1, 9; @%p2 exit;"),
        buffers={"out": np.zeros(CTAS * 32, np.uint32)},
        grid=(CTAS, 1, 1),
        processes=processes,
        prepare=prepare,
    )


def parsed(line: str) -> Kernel:  # type: ignore[no-untyped-def]
    text = (
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry kernel() {\n"
        f".reg .b32 %r<10>; .reg .b64 %rd<10>;\n{line}\nret;\n}}\n"
    )
    return parse(text).kernels["kernel"]
