"""Constants against Python's own reading of them."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.sim.ptx.literals import double_to_single, immediate, integer
from pytest_nvfp4.sim.ptx.syntax import Immediate
from tests.sim.ptx.literals import trees


@given(st.integers(0, 2**64 - 1), st.sampled_from(["{}", "0x{:x}", "0X{:X}", "0{:o}", "0b{:b}"]), st.booleans())
def test_bases(value, form, unsigned):
    assert integer(form.format(value) + "U" * unsigned) == value


@given(st.integers(1, 2**63))
def test_negative(value):
    assert immediate(f"-{value}") == Immediate(-value)
    assert integer(f"-0x{value:x}") == -value


@given(st.floats(width=32), st.floats())
def test_bit_patterns(single, double):
    (one,) = struct.unpack("<I", struct.pack("<f", single))
    (two,) = struct.unpack("<Q", struct.pack("<d", double))
    assert immediate(f"0f{one:08X}") == Immediate(one, 32)
    assert immediate(f"0D{two:016x}") == Immediate(two, 64)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimal_floats_are_doubles(value):
    text = repr(value)
    assert immediate(text) == Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], 64)


@pytest.mark.parametrize(("text", "value"), [("1.", 1.0), (".5", 0.5), ("3e5", 3e5), ("-2.5E-3", -2.5e-3)])
def test_spellings_of_decimal_floats(text, value):
    assert immediate(text) == Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], 64)


@given(st.floats(allow_nan=False))
def test_rounding_to_single(value):
    pattern = double_to_single(struct.unpack("<Q", struct.pack("<d", value))[0])
    (got,) = struct.unpack("<f", struct.pack("<I", pattern))
    if abs(value) > 3.5e38:
        assert got == math.copysign(math.inf, value)
    else:
        assert got == struct.unpack("<f", struct.pack("<f", value))[0]


@pytest.mark.parametrize(
    "text", ["", "019", "0x", "0b2", "1f", "0f3F80000", "0f3F8000000", "x", "1 2", "5+", "(1", "1)", "-0f3F800000",
             "5/0", "0x1FFFFFFFFFFFFFFFF", "1?2", "1..2", "%r1", "0u5"]
)  # fmt: skip
def test_no_literal(text):
    assert immediate(text) is None


@given(trees(3))
def test_expressions(tree):
    text, value = tree
    assert integer(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3-4/2", 5),
        ("(1+2)*3", 9),
        ("-7/2", -3),
        ("-7 % 4", 1),  # % reads its operands as unsigned
        ("1<<4|3", 19),
        ("-1>>1", -1),
        ("(.u64)-1 >> 1", 2**63 - 1),
        ("1<2?10:20", 10),
        ("0 ? 1 : 0 ? 2 : 3", 3),
        ("-1<0U", 0),
        ("-1<0", 1),
        ("1&&0||2", 1),
        ("!5", 0),
        ("~0", 2**64 - 1),
        ("- -5", 5),
        ("+5", 5),
        ("1<<65", 2),
        ("0x10+010+0b11", 27),
    ],
)
def test_precedence_and_types(text, value):
    """The values are those that ptxas 13.4 puts into an initialised variable."""
    assert integer(text) == value
