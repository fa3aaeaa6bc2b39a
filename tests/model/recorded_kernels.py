"""PTX kernels that are recorded, and what a recording says in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.model.recording import Does, Program, Recording, Unit, WarpEvents
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx

PIPELINE = """
mov.u32 %r0, %tid.x;
mov.u32 %r1, smem;
add.u32 %r2, %r1, 1024;             // full: a copy
add.u32 %r3, %r1, 1032;             // empty: 32 arrivals
setp.ne.u32 %p0, %r0, 0;
@%p0 bra made;
mbarrier.init.shared::cta.b64 [%r2], 1;
mbarrier.init.shared::cta.b64 [%r3], 32;
made:
bar.sync 0;
setp.ge.u32 %p1, %r0, 32;
mov.u32 %r4, %ctaid.x;
mul.wide.u32 %rd1, %r4, 512;
add.u64 %rd1, %rd1, %rd100;
mov.u32 %r5, 0;                     // round
mov.u32 %r6, 0;                     // parity
@%p1 bra consumer;
producer:
xor.b32 %r7, %r6, 1;
emptied:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r7;
@!%p2 bra emptied;
@%p0 bra issued;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 256, [%r2];
issued:
add.u64 %rd1, %rd1, 256;
add.u32 %r5, %r5, 1;
xor.b32 %r6, %r6, 1;
setp.lt.u32 %p3, %r5, 2;
@%p3 bra producer;
bra done;
consumer:
filled:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r6;
@!%p2 bra filled;
sub.u32 %r8, %r0, 32;
shl.b32 %r8, %r8, 2;
add.u32 %r9, %r1, %r8;
ld.shared.b32 %r10, [%r9];
mbarrier.arrive.shared::cta.b64 _, [%r3];
add.u32 %r5, %r5, 1;
xor.b32 %r6, %r6, 1;
setp.lt.u32 %p3, %r5, 2;
@%p3 bra consumer;
shl.b32 %r11, %r4, 7;
add.u32 %r11, %r11, %r8;
cvt.u64.u32 %rd2, %r11;
add.u64 %rd2, %rd2, %rd101;
st.global.b32 [%rd2], %r10;
done:
"""
"""Warp 0 copies 256 bytes twice into one stage, which warp 1 reads: 2 warps, 2 barriers, 2 rounds."""


def record(
    body: str,
    buffers: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    machine: Machine | None = None,
    **options: Any,
) -> tuple[Recording, Counter[str]]:
    """Run a PTX kernel with a recorder; return its recording and the simulator's counters."""
    machine = machine or Machine()
    machine.monitor = recorder = Recorder()
    ran = run_ptx(body, buffers=buffers, machine=machine, prepare=recorder.launched, **options)
    (recording,) = recorder.recordings()
    return recording, ran.grid.counters


def pipeline(ctas: int = 2, **options: Any) -> tuple[Recording, Counter[str]]:
    """Record ``PIPELINE``."""
    buffers = {"source": np.arange(128 * ctas, dtype=np.uint32), "out": np.zeros(32 * ctas, np.uint32)}
    return record(PIPELINE, buffers, grid=(ctas, 1, 1), block=(64, 1, 1), shared=2048, **options)


def events(program: Program, warp: WarpEvents) -> list[tuple[str, int]]:
    """What a warp does without its instructions: words, and units or phases."""
    said = []
    for event in warp.events:
        does, item = Does(event["does"]), int(event["item"])
        if does == Does.ISSUE:
            said.append((Unit(program.operations[item]["unit"]).name, int(event["count"])))
        elif does != Does.RUN:
            said.append((does.name, item))
    return said


def executed(recording: Recording) -> int:
    """Instructions of all clusters."""
    return sum(
        int(recording.programs[cluster.program].mixes[_mixes(warp)][:, :-1].sum())
        for cluster in recording.clusters
        for warp in recording.programs[cluster.program].warps
    )


def issued(recording: Recording, unit: Unit) -> int:
    """Operations of a unit in all clusters."""
    counts = [int((program.operations["unit"] == unit).sum()) for program in recording.programs]
    return sum(counts[cluster.program] for cluster in recording.clusters)


def _mixes(warp: WarpEvents) -> Any:
    return warp.events["item"][warp.events["does"] == Does.RUN]


def content(recording: Recording) -> Any:
    """What a recording says; the addresses of two runs differ by a constant."""
    first = min((int(footprint.lines[0]) for footprint in recording.footprints), default=0)
    programs = [
        (
            [(warp.cta, warp.index, warp.role, warp.events.tobytes()) for warp in program.warps],
            program.operations.tobytes(), program.shapes, program.mixes.tobytes(), program.phases.tobytes(),
            program.signals,
        )
        for program in recording.programs
    ]  # fmt: skip
    clusters = [
        (cluster.index, programs[cluster.program], cluster.footprints.tolist()) for cluster in recording.clusters
    ]
    lines = [((footprint.lines - first).tolist(), footprint.sectors) for footprint in recording.footprints]
    return clusters, lines, recording.sites, recording.refused


def moved(recording: Recording) -> int:
    """Bytes of all loads by TMA, once a request."""
    total = Counter[int]()
    for number, program in enumerate(recording.programs):
        for operation in program.operations:
            if operation["unit"] == Unit.TMA_LOAD:
                total[number] += program.shapes[operation["shape"]].bytes
    return sum(total[cluster.program] for cluster in recording.clusters)
