"""The schedule of ``sm100.py``, run as plain Python: every tile once, pairs in their columns, even loads."""

from __future__ import annotations

import array
import ast
import functools
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.problem import GPUMODE_BENCH
from tests.kernels.compiled import FOLDER

KERNEL = FOLDER / "sm100.py"
FUNCTIONS = {
    *("ceil_div", "select", "pick", "find", "following", "plan", "launches", "slots"),
    *("check_problem", "Launch", "prepared", "custom_kernel"),
}
STAGE_BYTES = 2 * (16384 + 2048)  # of weights and their scales, of a pair


@functools.cache
def load(old: str = "", new: str = "") -> SimpleNamespace:
    """The constants, the functions of the schedule and the host code, without the DSL; ``old`` becomes ``new``."""
    text = KERNEL.read_text()
    assert old in text
    namespace = {
        "array": array,
        "functools": functools,
        "threading": threading,
        "Int32": int,
        "cute": SimpleNamespace(jit=lambda function: function),
        "cutlass": SimpleNamespace(
            Float4E2M1FN=None,
            Float16=None,
            Uint32=int,
            min=min,
            range_constexpr=range,
            select_=lambda condition, chosen, other: chosen if condition else other,
        ),
    }
    for node in ast.walk(ast.parse(text.replace(old, new, 1))):
        if (isinstance(node, ast.Assign) and node.col_offset == 0) or getattr(node, "name", "") in FUNCTIONS:
            node.returns = None
            for argument in node.args.args if isinstance(node, ast.FunctionDef) else ():
                argument.annotation = None
            exec(compile(ast.Module([node], []), str(KERNEL), "exec"), namespace)
    return SimpleNamespace(**namespace)


def walks(kernel: SimpleNamespace, rows: list[tuple[int, int, int]]):
    """The tiles of each pair of CTAs, launch by launch: row, column of weights, first token, tokens, stages of K."""
    for part in kernel.launches(rows):
        tokens, total, pairs, columns = kernel.plan(part)
        groups = kernel.slots(part)
        filled = part + [(0, *part[0][1:])] * (groups - len(part))
        sizes, first = [], 0
        for m, n, k in filled:
            across = kernel.ceil_div(n, kernel.WEIGHTS)
            sizes.append((first, m, k // kernel.TILE_K, across))
            first += kernel.ceil_div(m, tokens) * across
        assert first == total
        gemm = SimpleNamespace(groups=groups, tokens=tokens)
        pairs_of_launch = []
        for pair in range(pairs):
            item, tiles = pair, []
            while item < total:
                group, x, token, of_tile, stages = kernel.find(gemm, sizes, item)
                tiles.append((filled[group], x, token, of_tile, stages))
                item = kernel.following(gemm, item, pairs, columns)
            pairs_of_launch.append(tiles)
        yield pairs_of_launch


def covered(kernel: SimpleNamespace, rows: list[tuple[int, int, int]]) -> Counter:
    """How often each block of 16 tokens by 256 rows of weights of each row is computed."""
    return Counter(
        (row, x, block)
        for launch in walks(kernel, rows)
        for tiles in launch
        for row, x, token, tokens, _ in tiles
        for block in range(token, token + tokens, 16)
    )


def wanted(rows: list[tuple[int, int, int]]) -> Counter:
    return Counter(
        (row, x, block) for row in rows for x in range((row[1] + 255) // 256) for block in range(0, row[0], 16)
    )


ROWS = st.lists(
    st.tuples(
        st.integers(0, 1000), st.integers(1, 30).map(lambda n: 128 * n), st.integers(1, 4).map(lambda k: 256 * k)
    ),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_every_block_of_tokens_and_weights_is_computed_once(rows):
    assert covered(load(), rows) == wanted(rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=8), st.integers(1, 80))
def test_a_pair_stays_in_its_column_if_groups_are_alike(ms, columns):
    rows = [(m, 256 * columns, 512) for m in ms]
    kernel = load()
    assert covered(kernel, rows) == wanted(rows)
    if columns <= kernel.SMS // 2:
        assert all(len({x for _, x, *_ in tiles}) == 1 for launch in walks(kernel, rows) for tiles in launch)


def permutes(kernel: SimpleNamespace) -> bool:
    """Whether each round has the places of the one before in another order, each in its column.

    The next item depends on an item's place in its round alone, and rounds follow each other: by induction every item
    of a launch is then computed once, whatever their number is.
    """
    for columns in range(1, kernel.SMS // 2 + 1):
        for step in range(columns, kernel.SMS // 2 + 1, columns):
            rounds = [
                [kernel.following(None, there + place, step, columns) - there - step for place in range(step)]
                for there in (0, step, 5 * step)
            ]
            if any(sorted(one) != list(range(step)) or one != rounds[0] for one in rounds):
                return False
            if any(place % columns != at % columns for at, place in enumerate(rounds[0])):
                return False
    return True


def test_all_schedules_of_the_device_compute_every_item_once():
    assert permutes(load())
    assert not permutes(load("across // columns * columns + across % columns", "across % columns"))
    assert not permutes(load("turned = step - columns - across", "turned = step - 1 - across"))


def bytes_of_pairs(kernel: SimpleNamespace, problem) -> list[int]:
    """Bytes that each pair of CTAs loads in the one launch of a problem."""
    (launch,) = walks(kernel, [(group.m, group.n, group.k) for group in problem.groups])
    return [
        sum(stages * (STAGE_BYTES + 128 * tokens + 2048 * (1 + (tokens > 128))) for *_, tokens, stages in tiles)
        for tiles in launch
    ]


@pytest.mark.parametrize("problem", GPUMODE_BENCH[:2], ids=lambda problem: problem.name)
def test_the_busiest_pair_is_near_the_mean(problem):
    loads = bytes_of_pairs(load(), problem)
    assert max(loads) <= 1.1 * sum(loads) / len(loads)


def test_rounds_that_do_not_turn_are_less_even():
    straight = load("turned = step - columns - across // columns * columns + across % columns", "turned = across")
    loads = bytes_of_pairs(straight, GPUMODE_BENCH[0])
    assert max(loads) > 1.1 * sum(loads) / len(loads)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = Int32(cutlass.Uint32(item - first)", "y = Int32(cutlass.Uint32(item)"),
        ("turned = step - columns - across", "turned = step - across"),
        ("item >= sizes[g][0]", "item > sizes[g][0]"),
        ("(m - token + 15) & -16", "(m - token) & -16"),
    ],
)
def test_a_wrong_schedule_is_told(old, new):
    rows = [(500, 256, 256)] * 5 + [(300, 10240, 256)] * 3 + [(280, 10240, 256)] * 5
    alike = [(100 * i, 2560, 256) for i in range(1, 9)]
    kernel = load(old, new)
    assert covered(kernel, rows) != wanted(rows) or covered(kernel, alike) != wanted(alike)
