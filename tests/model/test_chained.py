"""Special functions between matrix instructions: attention is told from a GEMM with an activation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_nvfp4.model.chained import special_between
from pytest_nvfp4.model.recording import Program, Recording, Shape, Unit
from pytest_nvfp4.model.scope import refusals
from pytest_nvfp4.model.storage import loads

from .builder import ProgramBuilder, WarpBuilder, recording
from .record_twins import RECORDINGS

MMA = Shape(m=128, n=128, k=16, kind="f16", ctas=(0,))
TILE = Shape(rows=128, bytes=16384, ctas=(0,))
COLUMNS = Shape(columns=32, lanes=32)
READ = 7
"""Site of the wait for results."""


def read_results(warp: WarpBuilder) -> None:
    """Load results from tensor memory, and wait for them."""
    loaded = warp.program.phase(1)
    warp.issue(Unit.TMEM_LOAD, COLUMNS, done=[loaded])
    warp.wait(loaded)


def blackwell(*, stored: str, special: int = 32, blocks: int = 3, by: str = "same", early: bool = False) -> Program:
    """Return a kernel of warps for copies, MMAs, results and stores.

    Args:
        stored: ``each`` block of results is stored, as by an epilogue, or the ``last``.
        special: Special functions of each warp for a block.
        by: The warp that stores: the ``same`` one, the ``first`` of the four, or a warp ``other`` than these.
        early: Whether the MMAs may go on before the results are stored.
    """
    program = ProgramBuilder()
    copy, multiply = program.warp(0, 0, "load"), program.warp(0, 1, "mma")
    warps, last = [program.warp(0, 2 + number, "tmem") for number in range(4)], program.warp(0, 6, "store")
    ready = None
    for block in range(blocks):
        full, results, read, written, staged = (program.phase(count) for count in (1, 1, 4, 4, 1))
        copy.issue(Unit.TMA_LOAD, TILE, done=[full])
        if ready is not None:
            multiply.wait(ready)
        multiply.wait(full)
        multiply.issue(Unit.TENSOR, MMA, pipe=0)
        multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[results])
        saves = stored == "each" or block == blocks - 1
        for number, warp in enumerate(warps):
            warp.wait(results, site=READ)
            read_results(warp)
            warp.run(special=special, fma=64)
            if early:
                warp.signal(read)
            warp.run(shared_store=8)
            warp.signal(written)
            warp.wait(written)
            if saves and (by == "same" or (by == "first" and not number)):
                warp.issue(Unit.TMA_STORE, TILE)
            elif saves and by == "other" and not number:
                warp.signal(staged)
            if not early:
                warp.signal(read)
        if saves and by == "other":
            last.wait(staged)
            last.issue(Unit.TMA_STORE, TILE)
        ready = read
    return program.build()


def hopper(*, stored: bool, special: int = 32) -> Program:
    """Return four warps that multiply, work on the results in their registers, and perhaps let the first store them."""
    program = ProgramBuilder()
    warps = [program.warp(0, number, "mma") for number in range(4)]
    for _ in range(3):
        written = program.phase(4)
        for number, warp in enumerate(warps):
            results = program.phase(1)
            warp.issue(Unit.TENSOR, MMA, pipe=number, done=[results])
            warp.wait(results, site=READ)
            warp.run(special=special, shared_store=8)
            warp.signal(written)
            warp.wait(written)
            if stored and not number:
                warp.issue(Unit.TMA_STORE, TILE)
    return program.build()


def through_another_warp(*, stored: bool) -> Program:
    """Return warps that pass results through shared memory to one that applies special functions to them."""
    program = ProgramBuilder()
    multiply, reader, worker = (program.warp(0, number, role) for number, role in enumerate(("mma", "tmem", "nothing")))
    ready = None
    for _ in range(3):
        results, passed, again = (program.phase(1) for _ in range(3))
        if ready is not None:
            multiply.wait(ready)
        multiply.issue(Unit.TENSOR, MMA, pipe=0)
        multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[results])
        reader.wait(results)
        read_results(reader)
        reader.run(shared_store=32)
        reader.signal(passed)
        worker.wait(passed, site=READ)
        worker.run(shared_load=32, special=32, shared_store=32)
        if stored:
            worker.issue(Unit.GLOBAL_STORE, TILE)
        worker.signal(again)
        ready = again
    return program.build()


def converting() -> Program:
    """Return a GEMM of mixed inputs whose warps convert an operand with special functions, in shared memory."""
    program = ProgramBuilder()
    copy, convert, multiply = (program.warp(0, number, role) for number, role in enumerate(("load", "nothing", "mma")))
    free = None
    for _ in range(6):
        full, converted, empty = (program.phase(1) for _ in range(3))
        if free is not None:
            copy.wait(free)
        copy.issue(Unit.TMA_LOAD, TILE, done=[full])
        if free is not None:
            convert.wait(free)
        convert.wait(full)
        convert.run(shared_load=32, special=64, shared_store=32)
        convert.signal(converted)
        multiply.wait(converted)
        multiply.issue(Unit.TENSOR, MMA, pipe=0)
        multiply.issue(Unit.COMMIT, Shape(), pipe=0, done=[empty])
        free = empty
    return program.build()


@pytest.mark.parametrize(
    "program",
    [
        blackwell(stored="last"),
        blackwell(stored="last", by="first", early=True),
        blackwell(stored="last", by="other"),
        hopper(stored=False),
        through_another_warp(stored=False),
    ],
)
def test_attention_is_refused_whichever_way_its_data_take(program: Program) -> None:
    assert special_between(program) == READ
    made: Recording = recording(program, sites=[f"k.py:{line}" for line in range(READ + 1)])
    (said,) = refusals([replace(made, arch="sm_100a")])
    assert f"which they read at k.py:{READ}" in said
    assert "no measured times of attention" in said


@pytest.mark.parametrize(
    "program",
    [
        *(blackwell(stored="each", by=by, early=early) for by in ("same", "first", "other") for early in (False, True)),
        blackwell(stored="last", special=1),
        hopper(stored=True),
        through_another_warp(stored=True),
        converting(),
    ],
)
def test_an_activation_in_an_epilogue_and_a_conversion_are_none(program: Program) -> None:
    assert special_between(program) is None


def test_the_recorded_gemms_are_none() -> None:
    for name in ("gemm_fp16_256_64_1_4096_192_4096", "group_v2e_gpumode-bench-2", "loop_bf16_192_64_2"):
        for made in loads((RECORDINGS / f"{name}.npz").read_bytes()):
            assert refusals([made]) == []
