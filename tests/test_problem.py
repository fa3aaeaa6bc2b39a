from __future__ import annotations

import pytest

from pytest_nvfp4.contracts.group_gemm import GroupGemm
from pytest_nvfp4.problem import (
    GPUMODE,
    GPUMODE_BENCH,
    Group,
    Problem,
    ProblemError,
    parse_shape,
    parse_table,
    resolve,
)


def test_official_cases_keep_the_contract() -> None:
    assert len(GPUMODE) == 10
    assert len(GPUMODE_BENCH) == 4
    for problem in (*GPUMODE, *GPUMODE_BENCH):
        assert GroupGemm().violation(problem) is None


def test_official_cases_are_those_published() -> None:
    assert GPUMODE[0].sizes == [(96, 128, 256, 1), (128, 256, 512, 1)]
    assert GPUMODE[8].sizes == [(40, 512, 256, 1), (56, 384, 256, 1), (384, 256, 256, 1), (512, 128, 256, 1)]
    assert [len(problem.groups) for problem in GPUMODE_BENCH] == [8, 8, 2, 2]
    assert GPUMODE_BENCH[0].groups[5] == Group(248, 4096, 7168)


@pytest.mark.parametrize(
    ("group", "word"),
    [(Group(1, 128, 128), "k must"), (Group(1, 64, 256), "n must"), (Group(1, 128, 256, 2), "l must")],
)
def test_contract_violations_are_named(group: Group, word: str) -> None:
    violation = GroupGemm().violation(Problem("p", (Group(0, 128, 256), group)))
    assert violation is not None
    assert word in violation
    assert "group 1" in violation


def test_shapes_parse_and_print() -> None:
    problem = parse_shape("96x128x256, 1x128x512x2")
    assert problem.sizes == [(96, 128, 256, 1), (1, 128, 512, 2)]
    assert parse_shape(problem.name.replace("+", ",")).groups == problem.groups


@pytest.mark.parametrize("text", ["", "96x128", "96x128x", "axbxc", "96x128x256,", "96x-1x256"])
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="MxNxK"):
        parse_shape(text)


def test_tables_broadcast_single_numbers() -> None:
    assert parse_table("p", {"m": [1, 2], "n": 128, "k": [256, 512]}).sizes == [(1, 128, 256, 1), (2, 128, 512, 1)]


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"m": [1, 2], "n": [1, 2, 3], "k": 1}, "m has 2 entries where another list has 3"),
        ({"m": "1", "n": 1, "k": 1}, "m = '1'"),
        ({"m": [], "n": 1, "k": 1}, "m = "),
        ({"m": 1, "n": 1}, "k = None"),
        ({"m": 1, "n": 1, "k": 1, "x": 1}, "unknown key 'x'"),
        ({"m": 1, "n": 1, "k": 1, "seed": "a"}, "seed"),
        ({"m": True, "n": 1, "k": 1}, "m = True"),
        ({"m": -1, "n": 1, "k": 1}, "at least 0"),
    ],
)
def test_bad_tables_are_refused_by_key(table: dict[str, object], word: str) -> None:
    with pytest.raises(ProblemError, match=word):
        parse_table("p", table)


def test_resolve_expands_sets_and_drops_repeats() -> None:
    own = {"mine": parse_shape("1x128x256", name="mine")}
    names = [problem.name for problem in resolve(["mine", "gpumode-3", "gpumode", "8x128x256"], own=own)]
    assert names == ["mine", "gpumode-3", *(f"gpumode-{i}" for i in (0, 1, 2, 4, 5, 6, 7, 8, 9)), "8x128x256"]


def test_resolve_names_what_it_knows() -> None:
    with pytest.raises(ProblemError, match=r"'gpumode-10'.*gpumode-0"):
        resolve(["gpumode-10"])
