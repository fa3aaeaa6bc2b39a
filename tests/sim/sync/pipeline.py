"""A pipeline of bulk copies: warp 0 fills stages, warp 1 releases them, with one mbarrier a stage and direction."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.sync.barrier_log import BarrierLog
from pytest_nvfp4.sim.sync.rings import Ring, rings
from tests.sim.ptx_case import run_ptx
from tests.sim.sync.harness import PREAMBLE


def pipeline_text(*, stages: int, iterations: int) -> str:
    """The body: full barriers at byte 0, empty ones behind them, 16 bytes of data a stage from byte 512."""
    return f"""
@!%p0 bra initialised;
mov.u32 %r1, 0;
init:
mad.lo.u32 %r2, %r1, 8, %r99;
mbarrier.init.shared.b64 [%r2], 1;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, {2 * stages};
@%p1 bra init;
initialised:
bar.sync 0;
mov.u32 %r3, 0;
mov.u32 %r4, 0;
mov.u32 %r5, 0;
setp.ge.u32 %p2, %r0, 32;
loop:
mad.lo.u32 %r6, %r4, 8, %r99;
add.u32 %r7, %r6, {8 * stages};
@%p2 bra consumer;
xor.b32 %r8, %r5, 1;
empty:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r7], %r8;
@!%p3 bra empty;
mad.lo.u32 %r9, %r4, 16, %r99;
add.u32 %r9, %r9, 512;
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 16;
@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r9], [%rd100], 16, [%r6];
bra next;
consumer:
full:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], %r5;
@!%p3 bra full;
setp.eq.u32 %p4, %r0, 32;
@%p4 mbarrier.arrive.shared.b64 _, [%r7];
next:
add.u32 %r3, %r3, 1;
add.u32 %r4, %r4, 1;
setp.eq.u32 %p5, %r4, {stages};
@%p5 mov.u32 %r4, 0;
@%p5 xor.b32 %r5, %r5, 1;
setp.lt.u32 %p6, %r3, {iterations};
@%p6 bra loop;
"""


def logged(*, stages: int, iterations: int, limit: int | None = 1000) -> BarrierLog | None:
    """The log of a run with at most so many operations; with no limit, whatever a launch logs without being asked."""
    kept: list[BarrierLog | None] = []

    def record(grid: Grid) -> None:
        if limit is not None:
            grid.machine.barrier_log = BarrierLog(grid, limit=limit)
        kept.append(grid.machine.barrier_log)

    source = {"source": np.zeros(16, np.uint8)}
    body = PREAMBLE + pipeline_text(stages=stages, iterations=iterations)
    ran = run_ptx(body, block=(64, 1, 1), shared=1024, prepare=record, buffers=source)
    assert not ran.grid.findings
    return kept[0]


def pipeline(*, stages: int, iterations: int) -> list[Ring]:
    """The rings of a run, which must be two, by address."""
    log = logged(stages=stages, iterations=iterations)
    assert log is not None
    found = rings(log)
    assert len(found) == 2
    return sorted(found, key=lambda ring: ring.barriers[0])
