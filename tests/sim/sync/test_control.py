from __future__ import annotations

from typing import Any

import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.grid import Grid
from tests.sim.sync.harness import clean, faults, findings, run


def knows(count: int) -> dict[str, Any]:
    def prepare(grid: Grid) -> None:
        grid.registers_per_thread = count

    return {"prepare": prepare}


def test_grid_dependencies_are_counted():
    ran = clean(
        "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\ngriddepcontrol.launch_dependents;", threads=64
    )
    assert ran.grid.counters["griddepcontrol.wait"] == 2
    assert ran.grid.counters["griddepcontrol.launch_dependents"] == 4


def test_sleeping_and_events_do_nothing():
    ran = clean("nanosleep.u32 100;\nnanosleep.u32 %r0;\npmevent 3;\npmevent.mask 7;")
    assert ran.grid.counters["nanosleep"] == ran.grid.counters["pmevent"] == 2


@pytest.mark.parametrize("opcode", ["trap", "brkpt"])
def test_traps_are_faults(opcode):
    faults("trap", f"executed {opcode}", f"@%p0 {opcode};")
    clean(f"setp.gt.u32 %p1, %r0, 99;\n@%p1 {opcode};")


SPLIT = """
setp.lt.u32 %p1, %r0, 128;
@%p1 bra PRODUCER;
setmaxnreg.inc.sync.aligned.u32 {grown};
bra END;
PRODUCER:
setmaxnreg.dec.sync.aligned.u32 40;
END:
"""


def test_registers_move_between_warpgroups():
    assert clean(SPLIT.format(grown=232), threads=256).grid.counters["setmaxnreg"] == 8
    assert clean(SPLIT.format(grown=216), threads=256, **knows(128)).grid.counters["setmaxnreg"] == 8


def test_more_registers_than_the_pool_has_are_a_deadlock():
    body = SPLIT.format(grown=224) + "bar.sync 0;"
    fault = faults("deadlock", "no warp can continue", body, threads=256, **knows(128))
    assert any("registers of the CTA's pool" in note for note in fault.notes)
    clean(SPLIT.format(grown=216) + "bar.sync 0;", threads=256, **knows(128))


def test_registers_are_allocated_in_units_of_eight():
    """ptxas writes 255 for a kernel with ``.maxnreg 256``, which then asks for the 256 that each thread has."""
    all_warps = "setmaxnreg.inc.sync.aligned.u32 {};"
    clean(all_warps.format(256), threads=128, **knows(255))
    faults("deadlock", "no warp can continue", all_warps.format(256), threads=128, **knows(248))


def test_a_whole_warpgroup_executes_it():
    some = "setp.lt.u32 %p1, %r0, {threads};\n@%p1 bra A;\nbra END;\nA: setmaxnreg.dec.sync.aligned.u32 40;\nEND:\n"
    assert findings(some.format(threads=128), threads=256) == []
    ran = run(some.format(threads=64), threads=256)
    (finding,) = ran.grid.findings
    assert finding.kind == "setmaxnreg"
    assert "warp 0 1, warp 1 1, warp 2 0, warp 3 0" in finding.message
    where = finding.where
    assert where is not None
    assert (where.cta, where.warp, where.text) == ((0, 0, 0), 0, "setmaxnreg.dec.sync.aligned.u32 40")


def test_warps_of_a_warpgroup_may_each_execute_their_own():
    dec = "setmaxnreg.dec.sync.aligned.u32 {};"
    both = f"setp.lt.u32 %p1, %r0, 64;\n@%p1 bra A;\n{dec.format(40)}\nbra END;\nA: {dec}\nEND:\n"
    assert findings(both.format(40), threads=128) == []
    assert findings(both.format(24), threads=128) == []


def test_it_must_go_the_way_that_it_says():
    body = "setmaxnreg.dec.sync.aligned.u32 {first};\nsetmaxnreg.inc.sync.aligned.u32 {second};"
    assert findings(body.format(first=64, second=64), threads=128) == []
    assert "does not increase" in findings(body.format(first=64, second=40), threads=128)[0][1]
    assert "does not decrease" in findings(body.format(first=64, second=64), threads=128, **knows(40))[0][1]


@pytest.mark.parametrize("count", [16, 264, 44])
def test_counts_out_of_range_are_unsupported(count):
    with pytest.raises(Fault, match="multiple of 8 from 24 to 256"):
        run(f"setmaxnreg.dec.sync.aligned.u32 {count};", threads=128)
