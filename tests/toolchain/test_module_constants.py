"""Constants of a kernel's file: which names are constants, and the text with other values."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.module_constants import ConstantError, constants, parse_value, with_constants

SOURCE = '''"""Kernel."""
import math
STAGES = 4
TILE_M, TILE_N = 128, 256  # the tile
BYTES: int = (TILE_M + TILE_N) * 64 // 2
COLUMNS = max(32, 1 << (TILE_N - 1).bit_length())
"é"; WIDE = (
    1 +
    2
)
RATIO = 0.5
NAME = "a"
TABLE = [1, 2]
FIRST, SECOND = range(2)
PI = math.pi
TWICE = 1
TWICE = 2
if STAGES:
    HIDDEN = 3
for LOOP in (1, 2):
    pass
COUNTED = 0
def bump():
    global COUNTED
    COUNTED += 1
'''


def test_values_follow_from_the_text_alone() -> None:
    values = {name: constant.value for name, constant in constants(SOURCE).items()}
    assert values == {
        "STAGES": 4,
        "TILE_M": 128,
        "TILE_N": 256,
        "BYTES": 12288,
        "COLUMNS": 256,
        "WIDE": 3,
        "RATIO": 0.5,
        "NAME": "a",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("STAGES", 2), ("TILE_N", 64), ("TILE_M", 64), ("BYTES", 1), ("COLUMNS", 512), ("WIDE", 7), ("RATIO", 1)],
)
def test_one_value_is_replaced_and_every_other_line_stays(name: str, value: float) -> None:
    edited = with_constants(SOURCE, {name: value})
    namespace: dict[str, object] = {}
    exec(edited, namespace)
    assert namespace[name] == value
    before, after = SOURCE.splitlines(), edited.splitlines()
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new]
    assert changed
    assert set(changed) <= set(range(constants(SOURCE)[name].line, constants(SOURCE)[name].line + 4))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_may_end_in_carriage_returns(end: str) -> None:
    source = SOURCE.replace("\n", end)
    for name, value in (("STAGES", 2), ("TILE_N", 64), ("WIDE", 7), ("NAME", "b")):
        namespace: dict[str, object] = {}
        edited = with_constants(source, {name: value})
        exec(edited, namespace)
        assert namespace[name] == value
        assert edited.count("\r") >= source.count("\r") - 2


def test_two_values_of_one_line() -> None:
    assert "TILE_M, TILE_N = 64, 32  # the tile" in with_constants(SOURCE, {"TILE_M": 64, "TILE_N": 32})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MISSING", "is not assigned at the top level"),
        ("TABLE", "is `[1, 2]`"),
        ("FIRST", "not bound by a plain assignment"),
        ("PI", "is `math.pi`"),
        ("TWICE", "bound more than once, in lines 16 and 17"),
        ("HIDDEN", "not bound by a plain assignment at the top level (line 19)"),
        ("LOOP", "not bound by a plain assignment"),
        ("COUNTED", "bound more than once"),
        ("bump", "not bound by a plain assignment"),
        ("math", "not bound by a plain assignment"),
    ],
)
def test_what_is_no_constant_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ConstantError) as error:
        with_constants(SOURCE, {name: 1})
    assert reason in str(error.value)
    assert "STAGES" in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("STAGES", "x"), ("STAGES", True), ("STAGES", 1.5), ("NAME", 3)])
def test_a_value_of_another_type_is_refused(name: str, value: float | str) -> None:
    with pytest.raises(ConstantError, match="not of this type"):
        with_constants(SOURCE, {name: value})


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_no_constant_is_infinite(value: float) -> None:
    with pytest.raises(ConstantError, match="not a finite number"):
        with_constants(SOURCE, {"RATIO": value})
    with pytest.raises(ConstantError, match=r"LARGE is inf in line 1, which is not a finite number"):
        with_constants("LARGE = 1e400\n", {"LARGE": 1.0})


def test_a_deep_expression_is_no_constant() -> None:
    assert list(constants(f"SUM = {'+'.join(['1'] * 1500)}\nSTAGES = 2\n")) == ["STAGES"]
    with pytest.raises(SyntaxError, match="nested too deeply"):
        constants(f"SUM = {'+'.join(['1'] * 10_000)}\n")


def test_a_huge_number_is_not_computed() -> None:
    assert "HUGE" not in constants("HUGE = 9 ** 9 ** 9\nSHIFT = 1 << 10**12\n")


def test_the_shipped_kernel_has_the_constants_that_its_page_names() -> None:
    kernel = Path(__file__).parents[2] / "kernels/nvfp4_group_gemm/steps/map_updates.py"
    values = {name: constant.value for name, constant in constants(kernel.read_text()).items()}
    assert values["NUM_STAGES"] == 3
    assert values["CTAS_PER_SM"] == 2


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("0.5", 0.5), ("True", True), ("k_major", "k_major"), ("'3'", "3")]
)
def test_values_of_the_command_line(text: str, value: object) -> None:
    assert parse_value(text) == value
