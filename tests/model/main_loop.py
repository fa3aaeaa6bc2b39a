"""The main loop of one CTA, as CUTLASS has it: a warp that copies with TMA, and one that multiplies."""

from __future__ import annotations

from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.recording import Recording, Shape, Unit
from pytest_nvfp4.model.replay import Conditions, replay

from .builder import NONE, ProgramBuilder, footprint, recording

SITES = ("loop.py:wait empty", "loop.py:load A", "loop.py:load B", "loop.py:wait full", "loop.py:mma", "loop.py:end")

_RECORDED = {
    "wait": {"alu": 5, "branch": 1, "move": 2, "other": 1},
    "expect": {"alu": 1, "branch": 2, "move": 1, "other": 2},
    "A": {"alu": 9, "branch": 1, "move": 2, "other": 2},
    "B": {"alu": 2, "branch": 1, "move": 2, "other": 2},
    "mma": {"alu": 15, "branch": 2, "move": 8, "other": 2},
    "further mma": {"alu": 5, "branch": 1, "move": 7, "other": 2},
    "commit": {"alu": 1, "branch": 1, "other": 2},
}
"""PTX instructions before each event of a loop, as recorded of a twin of the timed loops (``kernels``)."""


def main_loop(
    m: int,
    n: int,
    row_bytes: int,
    stages: int,
    steps: int,
    *,
    kind: str = "f16",
    clusters: int = 1,
    cold: bool = False,
    instructions: bool = False,
) -> Recording:
    """Return a main loop of ``steps`` tiles of ``row_bytes`` bytes of K, whose operands lie in L2, or in DRAM.

    ``instructions``: with those that a recording of such a loop has between its events (``kernels``).
    """
    program = ProgramBuilder()
    rows = -(-row_bytes // 128)
    a, b = (Shape(rows=rows * size, bytes=row_bytes * size, ctas=(0,)) for size in (m, n))
    mma = Shape(m=m, n=n, k=32, kind=kind, ctas=(0,), shared_bytes=32 * (m + n))
    full = [program.phase(3) for _ in range(steps)]
    empty = [program.phase(1) for _ in range(steps)]
    accumulated = program.phase(1)
    load, multiply = program.warp(0, 0, "load"), program.warp(0, 1, "mma")
    between = _RECORDED if instructions else {}
    for step in range(steps):
        load.run(**between.get("wait", {}))
        if step >= stages:
            load.wait(empty[step - stages], site=0)
        load.run(**between.get("expect", {}))
        load.signal(full[step], site=0)
        for shape, site in ((a, 1), (b, 2)):
            load.run(**between.get("A" if site == 1 else "B", {}))
            slot = program.slot() if cold else NONE
            load.issue(Unit.TMA_LOAD, shape, slot=slot, done=[full[step]], site=site)
        multiply.run(**between.get("wait", {}))
        multiply.wait(full[step], site=3)
        for number in range(row_bytes // 32):
            multiply.run(**between.get("further mma" if number else "mma", {}))
            multiply.issue(Unit.TENSOR, mma, pipe=0, site=4)
        multiply.run(**between.get("commit", {}))
        multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[empty[step]], site=4)
    multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[accumulated], site=4)
    multiply.wait(accumulated, site=5)
    # Steps of less than a line share lines: the first of them touches these for the others.
    groups = -(-steps * row_bytes // 128)
    prints = [footprint(index * rows * size, rows * size) for size in (m, n) for index in range(groups)]
    order = [(step * row_bytes // 128) // rows for step in range(steps)]
    slots = [[group + operand * groups for group in order for operand in (0, 1)]] * clusters if cold else None
    return recording(program.build(), clusters=clusters, slots=slots, footprints=prints if cold else (), sites=SITES)


K = 131072

MAIN_LOOP_CLOCK = 1.3
"""GHz of the SMs in the table of main loops; fitted (1.2975), as the rows of TMA a cycle."""


def main_loop_ms(row: dict[str, str], device: DeviceConstants) -> float:
    """Return the modelled time of a row of ``b200_mainloop.csv``: two short loops, and their rate for the rest.

    Operands above half of L2 come from DRAM: the same loop ran just before, but what one SM reads stays on one die.
    """
    n, stages, tile_k = int(row["n"]), int(row["stages"]), int(row["tile_k"])
    element, kind = (2, "f16") if row["dtype"] == "bf16" else (1, "f8f6f4")
    cold = (128 + n) * K * element > device["l2_capacity"] / 2 * 1e6
    short, long = 3 * stages, 7 * stages
    clock = Conditions(clock_ghz=MAIN_LOOP_CLOCK)
    times = [
        replay(
            main_loop(128, n, tile_k * element, stages, steps, kind=kind, cold=cold, instructions=True),
            device,
            conditions=clock,
        )
        for steps in (short, long)
    ]
    first, second = (time.kernel_us for time in times)
    return (second + (K // tile_k - long) * (second - first) / (long - short)) / 1e3
