"""The main loop of one CTA, as CUTLASS has it: a warp that copies with TMA, and one that multiplies."""

from __future__ import annotations

from pytest_nvfp4.model.recording import Recording, Shape, Unit

from .builder import ProgramBuilder, recording

SITES = ("loop.py:wait empty", "loop.py:load A", "loop.py:load B", "loop.py:wait full", "loop.py:mma", "loop.py:end")


def main_loop(
    m: int, n: int, row_bytes: int, stages: int, steps: int, *, kind: str = "f16", clusters: int = 1
) -> Recording:
    """Return a main loop of ``steps`` tiles of ``row_bytes`` bytes of K."""
    program = ProgramBuilder()
    rows = -(-row_bytes // 128)
    a, b = (Shape(rows=rows * size, bytes=row_bytes * size, ctas=(0,)) for size in (m, n))
    mma = Shape(m=m, n=n, k=32, kind=kind, ctas=(0,), shared_bytes=32 * (m + n))
    full = [program.phase(3) for _ in range(steps)]
    empty = [program.phase(1) for _ in range(steps)]
    accumulated = program.phase(1)
    load, multiply = program.warp(0, 0, "load"), program.warp(0, 1, "mma")
    for step in range(steps):
        if step >= stages:
            load.wait(empty[step - stages], site=0)
        load.signal(full[step], site=0)
        load.issue(Unit.TMA_LOAD, a, done=[full[step]], site=1)
        load.issue(Unit.TMA_LOAD, b, done=[full[step]], site=2)
        multiply.wait(full[step], site=3)
        for _ in range(row_bytes // 32):
            multiply.issue(Unit.TENSOR, mma, pipe=0, site=4)
        multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[empty[step]], site=4)
    multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[accumulated], site=4)
    multiply.wait(accumulated, site=5)
    return recording(program.build(), clusters=clusters, sites=SITES)
