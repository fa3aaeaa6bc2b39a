"""L2 and DRAM of a replay: what reads and writes book, with an L2 of expectations and with counted traffic."""

from __future__ import annotations

import pytest

from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.replay_memory import Memory
from pytest_nvfp4.model.replay_steps import Costs
from pytest_nvfp4.model.servers import L2, Traffic, atoms_of

from .builder import ProgramBuilder, footprint, recording

B200 = load_device("b200")
COSTS = Costs.of(B200, B200["clock"], B200["dram"])
LINES = 8


def memory(*, missing: float | None = None, delayed: float = 0.0, scale: float = 1.0) -> Memory:
    """Return the memory of a launch with one footprint; ``missing``: lines that a count says are missed."""
    program = ProgramBuilder()
    program.warp(0, 0, "load").run(alu=1)
    program.slot()
    made = recording(program.build(), footprints=[footprint(0, LINES)], slots=[[0]])
    if missing is None:
        atoms, sets = atoms_of(made.footprints)
        return Memory(COSTS, L2(sets, 1e6), atoms, made, None)
    return Memory(
        COSTS,
        L2(0, 1.0),
        [],
        made,
        Traffic(lines=[float(LINES)], missing=[missing], delayed=[delayed], scale=scale, shared=[False]),
    )


def test_a_first_read_waits_for_dram_and_a_second_one_for_the_first() -> None:
    both = memory()
    through, there = both.read(0, LINES, 0.0, 5.0)
    assert through == pytest.approx(max(5.0, LINES * COSTS.line))
    assert there == pytest.approx(max(through, LINES * COSTS.dram_line) + COSTS.dram_latency)
    again, same = both.read(0, LINES, 0.0, 0.0)
    assert again == pytest.approx(2 * LINES * COSTS.line)
    assert same == there
    assert both.read(0, LINES, there + 100, 0.0)[1] == pytest.approx(there + 100 + LINES * COSTS.line)
    assert both.dram_busy == pytest.approx(LINES * COSTS.dram_line)
    assert both.l2_busy == pytest.approx(3 * LINES * COSTS.line)


@pytest.mark.parametrize("delayed", [0.0, 0.25, 1.0])
def test_counted_traffic_says_what_is_missed_and_who_waits(delayed: float) -> None:
    counted = memory(missing=2.0, delayed=delayed, scale=3.0)
    through, there = counted.read(0, LINES, 0.0, 0.0)
    assert through == pytest.approx(3 * LINES * COSTS.line)
    assert there == pytest.approx(max(through, 6 * COSTS.dram_line) + delayed * COSTS.dram_latency)
    assert counted.dram_busy == pytest.approx(6 * COSTS.dram_line)


def test_a_write_is_through_l2_and_evicts_to_dram() -> None:
    counted = memory(missing=2.0)
    assert counted.write(0, 1.0, 0.0) == pytest.approx(1.0 + LINES * COSTS.line_written)
    assert counted.dram_busy > 0
    assert memory().write(0, 0.0, 1e6) == 1e6
