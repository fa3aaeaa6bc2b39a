"""A launch shared between processes equals the same launch in one."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.coverage import findings
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.run import parallel
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


@pytest.fixture(autouse=True)
def always_worth_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WORTH_S", 0.0)


@pytest.mark.parametrize("processes", [2, 3])
def test_outputs_and_counters_are_the_same(processes: int) -> None:
    alone, shared = run(1), run(processes)
    assert (alone["out"] == shared["out"]).all()
    assert (shared["out"] != 0).all()
    assert alone.grid.counters == shared.grid.counters


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


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_ctas_of_other_processes_wrote_is_known(processes: int) -> None:
    assert watched(processes, CTAS) == []
    assert watched(processes, CTAS, skip=9) == ["never-written"]
    assert watched(processes, CTAS, twice=9) == ["never-written", "written-by-two"]


def test_the_fault_of_the_earliest_cta_is_told() -> None:
    extra = "setp.ge.u32 %p2, %r1, {first}; @%p2 trap;"
    for first in (5, 6):
        with pytest.raises(Fault) as caught:
            run(2, extra.format(first=first))
        where = caught.value.where
        assert caught.value.kind == "trap"
        assert where is not None
        assert where.cta == (first, 0, 0)


def test_ctas_that_speak_with_each_other_stay_together() -> None:
    assert not parallel.communicates(parsed("st.global.b32 [%rd1], %r4;"))
    assert not parallel.communicates(parsed("atom.shared.add.u32 %r4, [%r5], 1;"))
    assert parallel.communicates(parsed("atom.global.add.u32 %r4, [%rd1], 1;"))
    assert parallel.communicates(parsed("ld.acquire.gpu.global.b32 %r4, [%rd1];"))
    assert parallel.communicates(parsed("st.release.gpu.global.b32 [%rd1], %r4;"))


def parsed(line: str):  # type: ignore[no-untyped-def]
    text = (
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry kernel() {\n"
        f".reg .b32 %r<10>; .reg .b64 %rd<10>;\n{line}\nret;\n}}\n"
    )
    return parse(text).kernels["kernel"]
