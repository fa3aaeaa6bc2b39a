"""The encoder of tensor maps, against maps that the DSL's host code wrote and an encoder made from the bit table."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given

from pytest_nvfp4.driver.launches import LaunchRejectedError
from pytest_nvfp4.driver.tensormap import ElementType, L2Promotion, Swizzle, SwizzleAtomicity, decode
from pytest_nvfp4.driver.tensormap_encoding import encode_tiled
from tests.driver.encoded_maps import FROM_DSL, encode, maps

# Values of the driver's enumerations (cuda.h), by what the hardware's field says.
TYPES = {
    ElementType.U8: 0, ElementType.U16: 1, ElementType.U32: 2, ElementType.S32: 3, ElementType.U64: 4,
    ElementType.S64: 5, ElementType.F16: 6, ElementType.F32: 7, ElementType.F64: 8, ElementType.BF16: 9,
    ElementType.F32_FTZ: 10, ElementType.FP4_PACKED: 13, ElementType.FP4_PADDED: 14, ElementType.FP6_PADDED: 15,
}  # fmt: skip
SWIZZLES = {(Swizzle.NONE, 0): 0, (Swizzle.B32, 0): 1, (Swizzle.B64, 0): 2, (Swizzle.B128, 0): 3}
SWIZZLES |= {(Swizzle.B128, int(atom)): 3 + atom for atom in SwizzleAtomicity if atom}


@pytest.mark.parametrize(("words", "expected"), FROM_DSL)
def test_writes_what_the_dsl_writes(words, expected):
    element, dims, strides, box, swizzle = expected
    made = encode_tiled(
        element_type=TYPES[element],
        address=words[0],
        dims=dims,
        strides=strides,
        box=box,
        swizzle=int(swizzle),
        l2_promotion=L2Promotion.B128,
    )
    assert struct.unpack_from("<8Q", made) == words
    assert len(made) == 128


@given(maps())
def test_every_field_is_that_of_the_bit_table(fields):
    if fields["atomicity"] and fields["swizzle"] is not Swizzle.B128:
        fields["atomicity"] = SwizzleAtomicity.B16  # the driver has no enumerator for others
    made = encode_tiled(
        element_type=TYPES[fields["element"]] + 4 * fields["tf32"],
        address=fields["address"],
        dims=fields["dims"],
        strides=fields["strides"],
        box=fields["box"],
        element_strides=fields["steps"],
        swizzle=SWIZZLES[fields["swizzle"], int(fields["atomicity"])],
        l2_promotion=fields["promotion"],
        oob_fill=fields["oob"],
    )
    assert replace(decode(made), large=False) == decode(encode(**fields))


GOOD = {"element_type": 6, "address": 1 << 20, "dims": (512, 256), "strides": (1024,), "box": (64, 64), "swizzle": 3}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"element_type": 16}, "data type 16"),
        ({"swizzle": 7}, "swizzle 7"),
        ({"box": (64, 257)}, "size of the box 257 of dimension 1"),
        ({"box": (128, 64)}, "wider than the 128-byte swizzle"),
        ({"dims": (512,)}, "rank 1 with 1 strides"),
        ({"dims": (1,) * 6}, "rank 6"),
        ({"strides": (1000,)}, "stride 1000 of dimension 1"),
        ({"address": 8}, "address 0x8 is not a multiple of 16"),
        ({"element_strides": (1, 9)}, "element stride 9"),
        ({"element_type": 1, "oob_fill": 1}, "NaN fill"),
    ],
)
def test_refuses_what_the_driver_refuses(change, said):
    assert encode_tiled(**GOOD)
    with pytest.raises(LaunchRejectedError, match=f"^CUDA_ERROR_INVALID_VALUE: .*{said}"):
        encode_tiled(**{**GOOD, **change})
