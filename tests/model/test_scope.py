"""Kinds of kernels, and what is refused with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_nvfp4.model.recording import Recording, Shape, Unit
from pytest_nvfp4.model.scope import kind_of, refusals

from .builder import ProgramBuilder, recording
from .main_loop import main_loop

GEMM = replace(main_loop(128, 128, 128, 4, 20), arch="sm_100a")


def without_commits(made: Recording) -> Recording:
    """Return a recording without operations that tcgen05 alone has."""
    (program,) = made.programs
    kept = program.operations[program.operations["unit"] != Unit.COMMIT]
    return replace(made, arch="sm_90a", programs=(replace(program, operations=kept),))


HOPPER = without_commits(GEMM)


def loads(*, lanes: int, tma: int, a_tmem: bool = False, special: int = 0, mmas: int = 0) -> Recording:
    """Return a warp that loads bytes by lanes and by TMA, executes special functions, and multiplies."""
    program = ProgramBuilder()
    warp = program.warp(0, 0, "load")
    if lanes:
        warp.issue(Unit.GLOBAL_LOAD, Shape(bytes=lanes, lanes=32, sectors=lanes // 32))
    if tma:
        warp.issue(Unit.TMA_LOAD, Shape(rows=1, bytes=tma, ctas=(0,)))
    warp.run(special=special, alu=4)
    for _ in range(mmas):
        warp.issue(Unit.TENSOR, Shape(m=64, n=64, k=16, kind="f16", a_tmem=a_tmem, ctas=(0,)), site=0)
    return replace(recording(program.build(), sites=("k.py:7",)), arch="sm_90a")


def test_kinds() -> None:
    assert kind_of([GEMM]) == "tcgen05 GEMM"
    assert kind_of([loads(lanes=0, tma=128), HOPPER]) == "wgmma GEMM"
    assert kind_of([replace(HOPPER, arch="sm_80")]) == "mma GEMM"
    assert kind_of([loads(lanes=64, tma=128)]) == "copy"
    assert kind_of([loads(lanes=64, tma=0)]) == "other"


def test_a_gemm_is_not_refused_nor_a_small_launch_before_it() -> None:
    assert refusals([GEMM]) == []
    assert refusals([loads(lanes=64, tma=0), GEMM]) == []


@pytest.mark.parametrize(("lanes", "refused"), [(290, False), (320, True)])
def test_operands_must_come_by_tma(lanes: int, refused: bool) -> None:
    said = refusals([loads(lanes=lanes, tma=100, mmas=1)])
    assert any("% of the bytes" in line and "ld.global" in line for line in said) == refused


def test_without_tma_and_tensor_cores_nothing_is_known() -> None:
    (neither, lanes) = refusals([loads(lanes=64, tma=0)])
    assert neither.startswith("it neither loads by TMA nor uses tensor cores")
    assert lanes.startswith("100 % of the bytes")


@pytest.mark.parametrize(("a_tmem", "special", "refused"), [(True, 64, True), (True, 3, False), (False, 64, False)])
def test_attention_is_refused_and_mixed_inputs_are_not(a_tmem: bool, special: int, refused: bool) -> None:
    said = refusals([loads(lanes=0, tma=128, a_tmem=a_tmem, special=special, mmas=8)])
    assert [("attention" in line, "k.py:7" in line) for line in said] == ([(True, True)] if refused else [])


def test_what_the_recorder_refuses_comes_first_and_once() -> None:
    counter = replace(GEMM, refused=("its tiles are taken from a counter",))
    assert refusals([counter, counter]) == ["its tiles are taken from a counter"]


def test_products_of_96_elements_are_refused_with_their_line() -> None:
    def multiplies(k: int) -> Recording:
        program = ProgramBuilder()
        warp = program.warp(0, 0, "mma")
        warp.issue(Unit.TMA_LOAD, Shape(rows=1, bytes=1024, ctas=(0,)))
        warp.issue(Unit.TENSOR, Shape(m=128, n=64, k=k, kind="mxf4nvf4", ctas=(0,)), site=0)
        return replace(recording(program.build(), sites=("k.py:7",)), arch="sm_103a")

    assert not any("96 elements" in line for line in refusals([multiplies(64)]))
    assert "MMAs at k.py:7 multiply 96 elements of K: the model has no rate of them" in refusals([multiplies(96)])
