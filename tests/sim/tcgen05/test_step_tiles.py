"""Operands as 8-bit integers: the same values as in float32, only where they fit, and products that are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_nvfp4.sim.tcgen05 import step_tiles
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandEncoding, decode
from pytest_nvfp4.sim.tcgen05.step_tiles import StepTile, decode_steps, is_exact, multiply

FORMS = {
    "nvfp4": OperandEncoding("e2m1", True, False, False, 64, 64, "ue4m3", 4),
    "negated": OperandEncoding("e2m1", True, True, False, 64, 64, "ue4m3", 4),
    "mxfp4": OperandEncoding("e2m1", True, False, False, 64, 64, "ue8m0", 2),
    "wide": OperandEncoding("e2m1", True, False, False, 64, 96, "ue4m3", 6),
}
COUNT = 3


def product(a: NDArray[np.int8], b: NDArray[np.int8]) -> NDArray[np.int32]:
    assert a.dtype == b.dtype == np.int8
    assert a.size
    assert b.size
    return a.astype(np.int32) @ b.astype(np.int32).T


def operand(seed: int, form: OperandEncoding, codes: list[int], *, parts: int = 1) -> tuple[list[NDArray], bytes]:
    """Chunks with random elements, and scale factors drawn from codes."""
    rng = np.random.default_rng(seed)
    size = COUNT * form.rows * form.chunks * 2
    chunks = [rng.integers(0, 1 << 63, size, dtype=np.int64).view(np.complex128) for _ in range(parts)]
    words = rng.choice(np.array(codes, np.uint8), COUNT * (1 + (form.k == 96)) * form.rows * parts * 4)
    return chunks, words.tobytes()


def tile(seed: int, form: OperandEncoding, codes: list[int], *, parts: int = 1) -> StepTile | None:
    chunks, words = operand(seed, form, codes, parts=parts)
    return decode_steps(form, chunks, COUNT, words, (0,) * COUNT)


@settings(max_examples=60, deadline=None)
@example(seed=0, name="nvfp4", codes=[0], near=False, parts=1, empty=64)
@example(seed=0, name="negated", codes=[0, 0x38], near=False, parts=2, empty=64)
@given(
    seed=st.integers(0, 1 << 20),
    name=st.sampled_from(sorted(FORMS)),
    codes=st.lists(st.integers(0, 255), min_size=1, max_size=4),
    near=st.booleans(),
    parts=st.sampled_from([1, 2]),
    empty=st.integers(0, 64),
)
def test_a_tile_has_the_values_that_float32_has(
    seed: int, name: str, codes: list[int], near: bool, parts: int, empty: int
) -> None:
    form = FORMS[name]
    if near:  # scale factors that are small multiples of each other
        codes = [0x38 + code % 12 for code in codes] if form.scale == "ue4m3" else [120 + code % 4 for code in codes]
    chunks, words = operand(seed, form, codes, parts=parts)
    chunks[-1].view(np.uint8).reshape(COUNT, form.rows, -1)[:, empty:] = 0
    with np.errstate(all="ignore"):
        want = decode(form, chunks, COUNT, words, (0,) * COUNT)
        steps = want.values.astype(np.float64) / 2.0 ** want.grids[:, None]
    found = decode_steps(form, chunks, COUNT, words, (0,) * COUNT)
    if found is None:
        factors = _factors(form, codes)
        lowest = min(_grids(form, codes))  # 2**127 is also that of zero
        assert not np.isfinite(factors).all() or factors.max() > 10 * lowest or lowest == 2.0**127
        return
    assert (found.values * 2.0 ** found.grids[:, None] == want.values).all()
    assert found.height == want.height
    assert np.abs(steps[: want.height]).max(initial=0) <= 127
    norms = np.linalg.norm(found.values.astype(np.float64), axis=1)
    assert found.norm == pytest.approx(norms.max())
    assert found.bound >= norms.max() * (1 - 1e-12)


def _factors(form: OperandEncoding, codes: list[int]) -> NDArray[np.float64]:
    return step_tiles.code_table(form.scale).values[codes]


def _grids(form: OperandEncoding, codes: list[int]) -> list[float]:
    return [2.0 ** int(grid) for grid in step_tiles.code_table(form.scale).grids[codes]]


@pytest.mark.parametrize(
    ("codes", "fits"),
    [
        ([0x38, 0x40], True),  # 1 and 2, as GPU MODE draws them
        ([0x20, 0x28, 0x30, 0x38], True),  # 2**-3 to 1
        ([0x20, 0x40], False),  # 2**-3 and 2: 16 steps
        ([0x38, 0x39], True),  # 1 and 9/8
        ([0x39, 0x40], False),  # 9/8 and 2, in steps of 1/8
        ([0x00], True),
        ([0x00, 0x38], True),
        ([0x38, 0x7F], False),  # NaN
    ],
)
def test_which_scale_factors_fit(codes: list[int], fits: bool) -> None:
    made = tile(1, FORMS["nvfp4"], codes)
    assert (made is not None) == fits


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 20), codes=st.sampled_from([[0x38, 0x40], [0x20, 0x38], [0x01, 0x02], [0x38], [0, 8]]))
def test_a_product_is_that_of_the_values(seed: int, codes: list[int]) -> None:
    form = FORMS["nvfp4"]
    a, b = tile(seed, form, codes), tile(seed + 1, form, codes, parts=2)
    assert a is not None
    assert b is not None
    assert is_exact(a, b)
    out = np.full((a.height, 200), np.nan, np.float32)[:, 3 : 3 + b.height]
    multiply(a, b, product, out)
    values = [each.values * 2.0 ** each.grids[:, None] for each in (a, b)]
    assert (out == values[0][: a.height] @ values[1][: b.height].T).all()


def _of(value: int, depth: int) -> StepTile:
    """A row of equal values."""
    return StepTile(np.full((1, depth), value, np.int8), np.zeros(1, np.int64), 1, bound=120 * depth**0.5)


def test_what_may_be_rounded_is_not_exact() -> None:
    """Sums of 2**24 - 1 steps are float32; beyond, the order of the sum would matter."""
    assert is_exact(_of(64, 4080), _of(64, 4080))
    assert not is_exact(_of(64, 4096), _of(64, 4096))
    # The bound by scale factors alone would refuse the first one.
    assert _of(64, 4080).bound ** 2 > 1 << 24


def test_steps_beyond_float32_are_not_exact() -> None:
    form = FORMS["mxfp4"]
    low, high = tile(0, form, [10]), tile(0, form, [240])
    assert low is not None
    assert high is not None
    assert not is_exact(low, low)
    assert not is_exact(high, high)
    assert is_exact(low, high)
