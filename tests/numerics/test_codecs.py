from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.numerics import fp16, packing
from pytest_nvfp4.numerics.arrays import NumericsError
from pytest_nvfp4.numerics.formats import E2M1, E4M3, FORMATS
from tests.numerics.codes import around, nearest_even, struct_half

CODES4 = np.arange(16, dtype=np.uint8)
CODES8 = np.arange(256, dtype=np.uint8)
FINITE_DOUBLES = st.floats(allow_nan=False, allow_infinity=False, width=64)
MODERATE = st.floats(min_value=-1000, max_value=1000, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e2m1", ml_dtypes.float4_e2m1fn),
        ("e2m3", ml_dtypes.float6_e2m3fn),
        ("e3m2", ml_dtypes.float6_e3m2fn),
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
        ("ue8m0", ml_dtypes.float8_e8m0fnu),
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
    ],
)
def test_every_code_has_the_value_of_ml_dtypes(name: str, dtype: type) -> None:
    codes = np.arange(FORMATS[name].codes).astype(np.uint16 if "f16" in name else np.uint8)
    with np.errstate(invalid="ignore"):
        values = codes.view(dtype).astype(np.float64)
    assert np.array_equal(FORMATS[name].values, values, equal_nan=True)
    numbers = ~np.isnan(values)
    assert np.array_equal(np.signbit(FORMATS[name].values[numbers]), np.signbit(values[numbers]))


def test_e2m1_decodes_as_ml_dtypes() -> None:
    other = CODES4.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert E2M1.decode(CODES4).tobytes() == other.tobytes()
    assert (E2M1.decode_units(CODES4) == E2M1.decode(CODES4) * 2).all()


def test_e4m3_decodes_as_torch_and_ml_dtypes() -> None:
    ours = E4M3.decode(CODES8)
    by_torch = torch.from_numpy(CODES8).view(torch.float8_e4m3fn).float().numpy()
    by_ml = CODES8.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    nan = np.isnan(ours)
    assert set(CODES8[nan]) == {0x7F, 0xFF}
    assert (E4M3.is_nan(CODES8) == nan).all()
    for other in (by_torch, by_ml):
        assert (np.isnan(other) == nan).all()
        assert ours[~nan].tobytes() == other[~nan].tobytes()


def test_e4m3_units_are_the_values() -> None:
    finite = CODES8[~E4M3.is_nan(CODES8)]
    assert (E4M3.decode_units(finite) * 2.0**-9 == E4M3.decode(finite)).all()
    assert E4M3.decode_units(CODES8).max() == E4M3.largest_units
    assert E4M3.decode_units(np.array([0x7F, 0xFF], dtype=np.uint8)).tolist() == [0, 0]


def test_e4m3_without_bias_would_be_noticed() -> None:
    """Negative control: the look-alike format fnuz decodes differently, so the comparison above can fail."""
    fnuz = CODES8.view(ml_dtypes.float8_e4m3fnuz).astype(np.float32)
    assert not np.array_equal(E4M3.decode(CODES8), fnuz, equal_nan=True)


def test_there_are_238_distinct_products_that_fit_six_bits() -> None:
    products = {abs(a * s) for a in E2M1.decode(CODES4).tolist() for s in E4M3.decode(CODES8[:127]).tolist()}
    assert len(products) == 238
    assert (min(products - {0.0}), max(products)) == (2.0**-10, 2688.0)
    for value in products - {0.0}:
        numerator = Fraction(value).numerator
        assert (numerator // (numerator & -numerator)).bit_length() <= 6


@given(st.one_of(FINITE_DOUBLES, MODERATE))
@settings(max_examples=300)
def test_encoders_round_to_the_nearest(value: float) -> None:
    code = int(E2M1.encode(value))
    assert code & 7 == nearest_even(value, list(E2M1.values[:8]))
    assert (code >= 8) == (math.copysign(1, value) < 0)
    code = int(E4M3.encode(value, saturate=True))
    assert code & 0x7F == nearest_even(value, E4M3.decode(CODES8[:127]).tolist())
    assert (code >= 0x80) == (math.copysign(1, value) < 0)


def test_e2m1_encodes_as_ml_dtypes() -> None:
    # fp32, since ml_dtypes goes by way of fp32 and would round float64 twice.
    x = around(np.array([*E2M1.midpoints, *E2M1.values[:8], 5.5, 7.0, 100.0, 1e30], dtype=np.float32))
    assert (E2M1.encode(x) == x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 0xF).all()


def test_e4m3_encodes_as_ml_dtypes_and_torch() -> None:
    values = E4M3.decode(CODES8[:127])
    x = around(np.concatenate([values, (values[1:] + values[:-1]) / 2, np.array([464, 480, 1e30], np.float32)]))
    with np.errstate(invalid="ignore"):
        other = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    ours = E4M3.encode(x).astype(np.uint8)
    assert (E4M3.is_nan(ours) == E4M3.is_nan(other)).all()
    assert (ours == other)[~E4M3.is_nan(ours)].all()
    inside = x[np.abs(x) <= 448]
    by_torch = torch.from_numpy(inside).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (E4M3.encode(inside) == by_torch).all()


def test_overflow_and_nan_are_as_stated() -> None:
    assert E2M1.encode([6.1, -1e9, math.inf, -math.inf]).tolist() == [7, 15, 7, 15]
    assert E4M3.encode([464.0, 464.1, math.inf, -math.inf], saturate=True).tolist() == [0x7E, 0x7E, 0x7E, 0xFE]
    assert E4M3.encode([464.0, 464.1, math.inf, -math.inf]).tolist() == [0x7E, 0x7F, 0x7F, 0xFF]
    assert E4M3.encode(math.nan).item() == 0x7F
    assert E2M1.encode([math.nan, -math.nan]).tolist() == [7, 7]


@pytest.mark.parametrize("decode", [E2M1.decode, E2M1.decode_units])
def test_e2m1_rejects_packed_bytes(decode: object) -> None:
    with pytest.raises(NumericsError, match="above 15"):
        decode(np.array([0x10], dtype=np.uint8))  # type: ignore[operator]


def test_codes_must_be_bytes() -> None:
    with pytest.raises(NumericsError, match="view, do not convert"):
        E4M3.decode(np.zeros(3, dtype=np.float32))  # type: ignore[arg-type]


def test_encode_inverts_decode() -> None:
    assert (E2M1.encode(E2M1.decode(CODES4)) == CODES4).all()
    finite = CODES8[~E4M3.is_nan(CODES8)]
    assert (E4M3.encode(E4M3.decode(finite)) == finite).all()


@given(st.lists(st.integers(0, 15), min_size=2, max_size=40).filter(lambda codes: len(codes) % 2 == 0))
def test_packing(codes: list[int]) -> None:
    packed = packing.pack(np.array([codes], dtype=np.uint8))
    assert packed.tobytes() == bytes(low + 16 * high for low, high in zip(codes[::2], codes[1::2], strict=True))
    assert packing.unpack(packed).tolist() == [codes]
    swapped = packing.unpack(packing.swap_nibbles(packed))[0].tolist()
    assert swapped[::2] == codes[1::2]
    assert swapped[1::2] == codes[::2]


def test_packed_bytes_view_as_torch_fp4() -> None:
    packed = packing.pack(np.zeros((3, 8), dtype=np.uint8))
    assert torch.from_numpy(packed).view(torch.float4_e2m1fn_x2).shape == (3, 4)


def test_packing_rejects_what_does_not_fit() -> None:
    with pytest.raises(NumericsError, match="odd"):
        packing.pack(np.zeros((1, 3), dtype=np.uint8))
    with pytest.raises(NumericsError, match="4 bits"):
        packing.pack(np.full((1, 2), 16, dtype=np.uint8))


def test_fp16_rounds_as_struct_at_every_midpoint() -> None:
    values = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = np.append((values[1:] + values[:-1]) / 2, fp16.OVERFLOW)
    x = around(middle)
    assert fp16.round_nearest(x).view(np.uint16).tolist() == [struct_half(value) for value in x.tolist()]


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.integers(0, 36))
@settings(max_examples=300)
def test_units_round_once(units: int, unit_bits: int) -> None:
    bits = int(fp16.round_units(np.array([units]), unit_bits=unit_bits).view(np.uint16)[0])
    exact = Fraction(units, 2**unit_bits)
    if abs(exact) >= Fraction(fp16.OVERFLOW):
        assert bits == (0xFC00 if units < 0 else 0x7C00)
        return
    magnitude = min(bits & 0x7FFF, 0x7BFE)
    near = list(range(max(0, magnitude - 1), magnitude + 2))
    best = min(near, key=lambda code: (abs(Fraction(fp16.value(code)) - abs(exact)), code % 2))
    assert bits & 0x7FFF == best
    assert (bits >> 15 == 1) == (units < 0)


def test_rounding_twice_would_be_noticed() -> None:
    """Negative control: 1 + 2^-11 + 2^-30 rounds up at once, but not by way of fp32."""
    units = np.array([2**30 + 2**19 + 1])
    once = fp16.round_units(units, unit_bits=30)
    twice = (units * 2.0**-30).astype(np.float32).astype(np.float16)
    assert once[0] != twice[0]


@given(st.floats(min_value=-70000, max_value=70000))
def test_truncation(value: float) -> None:
    truncated = float(fp16.round_toward_zero(value))
    assert abs(truncated) <= abs(value)
    following = abs(int(fp16.ordinal(fp16.bits_of(fp16.round_toward_zero([value])))[0])) + 1
    assert following == 0x7C00 or fp16.value(following) > abs(value)


def test_ordinals_follow_the_values() -> None:
    bits = np.concatenate([np.arange(0xFC00, 0x8000, -1, dtype=np.uint16), np.arange(0x7C01, dtype=np.uint16)])
    ordinals = fp16.ordinal(bits)
    assert (np.diff(ordinals) == 1).all()
    assert (np.diff(fp16.to_float64(bits)) > 0).all()
    assert fp16.ordinal(np.array([0x8001], np.uint16)).tolist() == [-1]


def test_poison_is_a_quiet_nan_that_conversions_do_not_make() -> None:
    assert math.isnan(fp16.value(fp16.POISON))
    assert fp16.POISON & 0x200
    assert fp16.POISON != fp16.CANONICAL_NAN
    assert np.array([np.nan], np.float32).astype(np.float16).view(np.uint16)[0] != fp16.POISON
