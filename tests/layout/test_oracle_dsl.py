"""Against the live CuTe DSL, which is what the kernels are compiled with."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.layout.algebra import coalesce, cosize, size
from pytest_nvfp4.layout.compose import composition
from pytest_nvfp4.layout.divide import complement, logical_divide, right_inverse, zipped_divide
from pytest_nvfp4.layout.errors import CompositionError, LayoutError
from pytest_nvfp4.layout.grammar import parse_layout, parse_type
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import values
from tests.layout.random_layouts import random_layout

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cutlass") is None, reason="nvidia-cutlass-dsl is not installed on this machine"
)

COUNT = 150


def as_case(layout: Layout) -> list[object]:
    return [layout.shape, layout.stride]


@pytest.fixture(scope="module")
def sample() -> list[tuple[Layout, Layout]]:
    rng = random.Random(20)
    return [(random_layout(rng), random_layout(rng)) for _ in range(COUNT)]


@pytest.fixture(scope="module")
def answers(sample) -> dict[str, list[str | None]]:
    """What the DSL says, all in one process: it takes seconds to start and may abort."""
    cases: dict[str, list[list[object]]] = {
        "coalesce": [["coalesce", as_case(a)] for a, _ in sample],
        "composition": [["composition", as_case(a), as_case(b)] for a, b in sample],
        "pinned": [["composition", [[2, 3, 2], [1, 4, 2]], [[4, 2], [1, 4]]]],
        "size": [["size", as_case(a)] for a, _ in sample],
        "cosize": [["cosize", as_case(a)] for a, _ in sample],
        "right_inverse": [["right_inverse", as_case(a)] for a, _ in sample],
        "complement": [["complement", as_case(a), 4 * cosize(a)] for a, _ in sample],
        "logical_divide": [["logical_divide", as_case(a), as_case(b)] for a, b in sample],
        "value": [["value", as_case(a), size(a) - 1] for a, _ in sample],
        "swizzled": [["swizzled", 3, 4, 3, as_case(Layout((8, 128), (128, 1))), index] for index in range(0, 1024, 37)],
    }
    flat = [case for group in cases.values() for case in group]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("live_dsl.py"))],
        input=json.dumps(flat), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = iter(json.loads(done.stdout[done.stdout.rindex("[") :]))
    return {name: [next(found) for _ in group] for name, group in cases.items()}


def theirs(text: str) -> Layout:
    layout = parse_type(text).layout
    assert isinstance(layout, Layout)
    return layout


@pytest.mark.slow
def test_coalesce_is_theirs_to_the_letter(sample, answers) -> None:
    for (a, _), text in zip(sample, answers["coalesce"], strict=True):
        assert text == f'!cute.layout<"{coalesce(a)}">', str(a)


def test_sizes_and_values(sample, answers) -> None:
    for (a, _), count, cocount, last in zip(sample, answers["size"], answers["cosize"], answers["value"], strict=True):
        assert (str(size(a)), str(cosize(a)), str(a(size(a) - 1))) == (count, cocount, last), str(a)


def test_swizzles(answers) -> None:
    layout = ComposedLayout(Swizzle(3, 4, 3), 0, parse_layout("(8,128):(128,1)"))
    assert answers["swizzled"] == [str(layout(index)) for index in range(0, 1024, 37)]


def test_composition_where_theirs_is_right_and_an_error_where_it_is_wrong(sample, answers) -> None:
    agreed = 0
    for (a, b), text in zip(sample, answers["composition"], strict=True):
        truth = [a(b(index)) for index in range(size(b))]
        try:
            ours = list(values(composition(a, b)))
        except CompositionError:
            assert text is None or list(values(theirs(text))) != truth, f"{a} o {b}"
            continue
        assert ours == truth
        agreed += text is not None and list(values(theirs(text))) == truth
    assert agreed > COUNT // 4  # else the sample shows nothing


def test_the_composition_that_4_8_1_gets_wrong(answers) -> None:
    text = answers["pinned"][0]
    a, b = parse_layout("(2,3,2):(1,4,2)"), parse_layout("(4,2):(1,4)")
    if text is not None:  # 4.4.0 refuses it
        assert (theirs(text)(6), a(b(6))) == (12, 2)
    with pytest.raises(CompositionError):
        composition(a, b)


@pytest.mark.parametrize("name", ["right_inverse", "complement", "logical_divide"])
def test_inverses_complements_and_divisions(sample, answers, name: str) -> None:
    ours = {
        "right_inverse": lambda a, _: right_inverse(a),
        "complement": lambda a, _: complement(a, 4 * cosize(a)),
        "logical_divide": logical_divide,
    }[name]
    compared = 0
    for (a, b), text in zip(sample, answers[name], strict=True):
        try:
            found = ours(a, b)
        except LayoutError:
            continue  # that these are errors is tested against the laws, which theirs do not always keep
        if text is not None:
            assert list(values(found)) == list(values(theirs(text))), f"{name} {a} {b}: {found} and {text}"
            compared += 1
    assert compared > COUNT // 6


def test_the_comparison_can_fail(sample, answers) -> None:
    """Negative control: the sample has layouts of which a wrong coalesced form would be seen."""
    wrong = sum(text != f'!cute.layout<"{a}">' for (a, _), text in zip(sample, answers["coalesce"], strict=True))
    assert wrong > COUNT // 2
    assert zipped_divide(parse_layout("16:1"), 4) != parse_layout("16:1")
