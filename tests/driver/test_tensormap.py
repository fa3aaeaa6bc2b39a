"""Tensor maps, against ones that the DSL's host code wrote and against an encoder made from the bit table."""

import struct

import pytest
from hypothesis import given

from pytest_nvfp4.driver.tensormap import (
    ElementType,
    Interleave,
    L2Promotion,
    OobFill,
    Swizzle,
    TensorMapError,
    decode,
    looks_like_tensormap,
)
from tests.driver.encoded_maps import FROM_DSL, encode, maps


@pytest.mark.parametrize(("words", "expected"), FROM_DSL)
def test_reads_maps_written_by_the_dsl(words, expected):
    data = struct.pack("<8Q", *words) + b"\xcc" * 64
    tm = decode(data)
    assert (tm.element_type, tm.dims, tm.strides, tm.box, tm.swizzle) == expected
    assert tm.address == 0x7F0643DFF040
    assert tm.l2_promotion is L2Promotion.B128
    assert tm.large
    assert looks_like_tensormap(data)
    assert decode(data[:64]) == tm


@pytest.mark.parametrize(
    ("words", "element"),
    [
        ((0x10000, 0x800046612, 0, 0, 0x3F000000FF, 0, 0x7F00000000000000, 0x7), ElementType.FP4_PADDED),
        ((0x10000, 0xC00046692, 0, 0, 0x3F000000FF, 0, 0x7F00000000000000, 0x7), ElementType.FP6_PADDED),
    ],
)
def test_reads_padded_types_written_by_the_dsl(words, element):
    """64 x 256 elements of E2M1 and of E3M2, with a shared-memory type of 8 bits."""
    tm = decode(struct.pack("<8Q", *words) + b"\xcc" * 64)
    assert (tm.element_type, tm.dims, tm.box, tm.swizzle) == (element, (256, 64), (128, 8), Swizzle.B128)
    assert tm.strides == (256 * element.bits // 8,)
    assert tm.box_bytes == 8 * 128 * element.bits // 8


@given(maps())
def test_every_field_round_trips(fields):
    tm = decode(encode(**fields))
    assert tm.address == fields["address"]
    assert tm.element_type is fields["element"]
    assert tm.dims == fields["dims"]
    assert tm.strides == fields["strides"]
    assert tm.box == fields["box"]
    assert tm.element_strides == fields["steps"]
    assert tm.swizzle is fields["swizzle"]
    assert tm.swizzle_atomicity is fields["atomicity"]
    assert tm.interleave is fields["interleave"]
    assert tm.oob_fill is fields["oob"]
    assert tm.l2_promotion is fields["promotion"]
    assert tm.tf32 == bool(fields["tf32"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tag": 1}, "format tag 0x1"),
        ({"rank": 7}, "rank 7"),
        ({"rank": 1}, "dimension 1 is set"),
        ({"address": 0x7F0000000008}, "not a multiple of 16"),
        ({"element": 14}, "element type 14"),
        ({"element": 12}, "must be 128"),
        ({"interleave": 3}, "interleave 3"),
        ({"box": (65, 64)}, "not a multiple of 16"),
        ({"box": (128, 64)}, "wider than the 128-byte swizzle"),
        ({"interleave": Interleave.B16}, "needs rank 3"),
        ({"element": ElementType.U16, "oob": OobFill.NAN}, "NaN fill"),
        ({"tf32": 1}, "tf32"),
    ],
)
def test_refuses_what_no_encoder_writes(change, said):
    data = encode(**change)
    with pytest.raises(TensorMapError, match=said):
        decode(data)
    assert not looks_like_tensormap(data)


@pytest.mark.parametrize(("word", "bit"), [(1, 22), (1, 31), (3, 48), (6, 47), (6, 55), (7, 32), (7, 63)])
def test_refuses_reserved_bits(word, bit):
    words = list(struct.unpack("<8Q", encode()[:64]))
    decode(struct.pack("<8Q", *words))
    words[word] |= 1 << bit
    with pytest.raises(TensorMapError, match=f"of word {word}"):
        decode(struct.pack("<8Q", *words))


def test_refuses_a_wrong_size_and_memory_that_is_no_map():
    with pytest.raises(TensorMapError, match="128 bytes, got 100"):
        decode(bytes(100))
    assert not looks_like_tensormap(bytes(128))
    assert not looks_like_tensormap(b"\xff" * 128)
    assert not looks_like_tensormap(encode(address=0))
    assert looks_like_tensormap(encode(address=0), null=True)


def test_box_bytes_count_packed_nibbles_and_element_strides():
    fp4 = decode(encode(element=ElementType.FP4_PACKED, dims=(256, 128), strides=(128,), box=(256, 128)))
    assert fp4.box_bytes == 256 * 128 // 2
    stepped = decode(encode(box=(64, 64), steps=(1, 4)))
    assert stepped.box_bytes == 64 * 16 * 2


def test_describe_names_what_differs_from_the_default():
    text = decode(encode(steps=(1, 2), oob=OobFill.NAN, promotion=L2Promotion.B256)).describe()
    assert text.startswith("F16 512x256 strides (1024,) B box 64x64 swizzle B128 at 0x7f0000000000")
    assert "element strides 1x2" in text
    assert "out of bounds NaN" in text
    assert "L2 B256" in text
