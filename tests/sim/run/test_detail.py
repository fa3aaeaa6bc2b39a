"""The detail of a launch: counters by instruction add up to those of the launch, in gangs and processes as well."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pytest_nvfp4.sim.run import parallel
from pytest_nvfp4.sim.run.detail import LaunchDetail, _DetailedColumns
from pytest_nvfp4.sim.run.warp import Warp
from tests.sim.run.test_trace import HANDSHAKE
from tests.sim.tcgen05.harness import make_ctas

from ..ptx_case import Ran, run_ptx

PRODUCT = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 64, %r2;
mul.wide.u32 %rd1, %r3, 64; add.s64 %rd3, %rd100, %rd1;
mov.b32 %f1, 0f00000000; mov.b32 %r5, 0; setp.lt.u32 %p3, %r2, 40;
LOOP:
ld.global.v4.f32 {%f2, %f3, %f4, %f5}, [%rd3];
fma.rn.f32 %f1, %f2, %f3, %f1; fma.rn.f32 %f1, %f4, %f5, %f1;
@%p3 bra SKIP; mul.f32 %f1, %f1, 0fBF800000; SKIP:
add.s64 %rd3, %rd3, 16; add.s32 %r5, %r5, 4;
setp.lt.u32 %p1, %r5, 16; @%p1 bra LOOP;
mul.wide.u32 %rd5, %r3, 4; add.s64 %rd5, %rd5, %rd101; st.global.f32 [%rd5], %f1;
"""
CTAS = 16


def product(*, processes: int = 1, detailed: bool = True) -> Ran:
    rows = np.arange(CTAS * 64 * 16, dtype=np.float32).reshape(CTAS * 64, 16) % 7
    buffers = {"a": rows, "out": np.zeros(CTAS * 64, np.float32)}
    return run_ptx(
        PRODUCT, buffers=buffers, grid=(CTAS, 1, 1), block=(64, 1, 1), processes=processes, detailed=detailed
    )


def sums(ran: Ran) -> dict[str, int]:
    assert ran.grid.detail is not None
    found: Counter[str] = Counter()
    for (_, name), count in ran.grid.detail.settle().items():
        found[name] += count
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("processes", [1, 2])
def test_counters_by_instruction_add_up(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WORTH_S", 0.0)
    plain, ran = product(detailed=False), product(processes=processes)
    assert plain.grid.detail is None
    assert ran.grid.counters == plain.grid.counters
    assert (ran["out"] == plain["out"]).all()
    counted = {
        name: count for name, count in ran.grid.counters.items() if name == "instructions" or name.startswith("global.")
    }
    assert sums(ran) == {name: count for name, count in counted.items() if count}
    assert ran.grid.detail is not None
    loads = {at for at, name in ran.grid.detail.by_instruction if name == "global.load.sectors"}
    assert [ran.grid.kernel.instructions[at].root for at in loads] == ["ld"]


def test_copies_and_barriers_of_the_first_cta() -> None:
    buffers = {"a": np.arange(64, dtype=np.uint8)}
    ran = run_ptx(HANDSHAKE, buffers=buffers, grid=(2, 1, 1), block=(64, 1, 1), shared=256, detailed=True)
    detail = ran.grid.detail
    assert detail is not None
    ((what, at, index, size),) = detail.ranges
    assert (what, index, size, detail.ranges[what, at, index, size]) == ("load", 64, 64, 1)
    assert [(index, phases) for index, _, phases in detail.barriers] == [(0, 1)]
    assert sums(ran)["bulk.load.bytes"] == 2 * 64


def test_columns_are_spans_of_one_use() -> None:
    [cta] = make_ctas()
    detail = LaunchDetail(cta.launch.program)
    use, w = _DetailedColumns(cta, detail), cta.warps[0]
    for _ in range(2):
        _tile(use, w)
        for column in (0, 64):
            use.loaded(w, 4, column, 64)
    found = [(span.what, span.column, span.count) for span in detail.spans]
    tile = [("accumulator", 0, 128), ("load", 0, 64), ("load", 64, 64)]
    assert found == [("SFA", 128, 4), ("SFB", 132, 4), *tile, *tile]
    assert detail.spans[0].last > detail.spans[4].last, "scale factors of all tiles are one span"


def _tile(use: _DetailedColumns, w: Warp) -> None:
    for step in range(3):
        use.copied(128, 4, 1, scales=True)
        use.copied(132, 4, 2, scales=True)
        use.scaled(w, 3, "SFA", 128, 4, 0, same=False)
        use.scaled(w, 3, "SFB", 132, 4, 0, same=False)
        use.accumulated(w, 3, 0, 128, adds=step > 0)
