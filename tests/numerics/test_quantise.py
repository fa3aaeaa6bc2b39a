from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.numerics.packing import pack, unpack
from pytest_nvfp4.numerics.quantise import quantise
from tests.numerics.by_fractions import SCALES, by_fractions

from .oracles import dequantise


@given(hnp.arrays(np.float64, 16, elements=st.floats(-3000, 3000) | st.sampled_from([0.0, -0.0, 6.75, 0.001, 1e-5])))
@settings(max_examples=150, deadline=None)
def test_blocks_are_quantised_by_the_definition(block: np.ndarray) -> None:
    quantised = quantise(block[None, :])
    codes, scale = by_fractions(block.tolist())
    assert quantised.scales.tolist() == [[scale]]
    assert unpack(quantised.packed).tolist() == [codes]


def test_exact_ties_and_their_neighbours() -> None:
    """amax / 6 on a midpoint of two scales and one float64 to each side: no quotient is rounded beforehand."""
    for low in (0x08, 0x37, 0x38, 0x51):
        tie = 6 * (SCALES[low] + SCALES[low + 1]) / 2
        for x in (tie, np.nextafter(tie, np.inf), np.nextafter(tie, 0)):
            block = [x] + [0.0] * 15
            assert quantise([block]).scales[0, 0] == by_fractions(block)[1]


@given(
    hnp.arrays(np.uint8, (3, 32), elements=st.integers(0, 15)),
    hnp.arrays(np.uint8, (3, 2), elements=st.integers(1, 126)),
)
@settings(max_examples=50)
def test_quantising_what_is_nvfp4_already_changes_nothing(codes: np.ndarray, scales: np.ndarray) -> None:
    codes[:, ::16] = 7
    packed = pack(codes)
    again = quantise(dequantise(packed, scales))
    assert (again.packed == packed).all()
    assert (again.scales == scales).all()


def test_special_blocks() -> None:
    x = np.zeros((1, 80))
    x[0, 0] = np.nan
    x[0, 16] = np.inf
    x[0, 32] = 1e-9
    x[0, 48] = -0.0
    x[0, 64] = 1e9
    packed, scales = quantise(x)
    assert scales.tolist() == [[0x7F, 0x7E, 0x01, 0x00, 0x7E]]
    codes = unpack(packed)[0]
    assert codes[[0, 16, 32, 48, 64]].tolist() == [0, 7, 0, 8, 7]
    values = dequantise(packed, scales)[0]
    assert np.isnan(values[:16]).all()
    assert values[16] == 6 * 448
    assert not values[32:64].any()


def test_the_last_block_may_be_short() -> None:
    packed, scales = quantise(np.full((2, 20), 3.0))
    assert packed.shape == (2, 10)
    assert scales.shape == (2, 2)
    assert (dequantise(packed, scales) == 3.0).all()


def test_error_is_within_half_a_step_of_each_block() -> None:
    x = np.random.default_rng(7).normal(size=(32, 256))
    packed, scales = quantise(x)
    step = np.repeat(E4M3.decode(scales), 16, axis=1)
    error = np.abs(dequantise(packed, scales) - x)
    # The largest gap of E2M1 is 2 (from 4 to 6), and rounding a scale down by up to 1/16 can push 6 to 6.4.
    assert (error <= step * 1.0).all()
    assert error.max() > 0


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(NumericsError, match="k even"):
        quantise(np.zeros((2, 3)))
