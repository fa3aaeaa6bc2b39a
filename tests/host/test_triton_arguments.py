"""Parameters of Triton's launches as bytes."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.tensormap import ElementType, OobFill, Swizzle, decode
from pytest_nvfp4.host.triton_arguments import address_of, parameters


def pointer(address: int, device: str = "cuda") -> Any:
    return SimpleNamespace(data_ptr=lambda: address, device=SimpleNamespace(type=device))


def test_scalars_pointers_tuples_and_constants():
    types = [
        "*fp32",
        "i1",
        "i8",
        "u16",
        "i64",
        "fp16",
        "bf16",
        "fp32",
        "fp64",
        "constexpr",
        ("i32", "constexpr", "*i8"),
    ]
    values = [pointer(4096), True, -2, 65535, -3, 1.5, 1.5, 1.5, 1.5, object(), (7, None, None)]
    sizes = [8, 1, 1, 2, 8, 2, 2, 4, 8, 4, 8]
    made = parameters(types, values, [], [], sizes)
    assert [len(each) for each in made] == sizes
    assert struct.unpack("<QBbHqeHfdiQ", b"".join(made)) == (
        4096, 1, -2, 65535, -3, 1.5, 0x3FC0, 1.5, 1.5, 7, 0,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), [("i8", 128), ("u8", -1), ("i32", 1 << 31), ("i32", 1.5), ("fp16", "x")])
def test_values_that_do_not_fit_their_type(kind, value):
    with pytest.raises((OverflowError, TypeError, ValueError)):
        parameters([kind], [value], [], [], [4])


def test_scratch_memory_follows_as_far_as_the_kernel_takes_it():
    assert parameters(["i32"], [1], [], [64, 128], [4]) == (b"\1\0\0\0",)
    assert parameters(["i32"], [1], [], [64, 128], [4, 8])[1:] == ((64).to_bytes(8, "little"),)
    assert len(parameters(["i32"], [1], [], [64, 128], [4, 8, 8])) == 3


def test_a_kernel_with_other_parameters_is_refused():
    with pytest.raises(HostSideError, match=r"parameters of \[4\] bytes, and it has \[8\]"):
        parameters(["i32"], [1], [], [], [8])
    with pytest.raises(HostSideError, match="passes them in another way"):
        parameters(["i32"], [1], [], [0, 0], [4, 8, 8, 8])
    with pytest.raises(HostSideError, match="fp8e5 has no stand-in"):
        parameters(["fp8e5"], [1], [], [], [1])


def test_pointers():
    assert address_of(None, "") == 0
    assert address_of(77, "") == 77
    with pytest.raises(ValueError, match=r"argument 3: .*cpu tensor"):
        address_of(pointer(4096, "cpu"), "argument 3")
    with pytest.raises(TypeError, match="data_ptr"):
        address_of("x", "argument 0")


def descriptor(**more: Any) -> Any:
    return SimpleNamespace(base=pointer(1 << 20), shape=[100, 256], strides=[512, 1], block_shape=[64, 32], **more)


MAP = {"swizzle": 2, "elem_size": 2, "elem_type": 6, "block_size": [64, 32], "fp4_padded": False}


def test_a_descriptor_becomes_a_tensor_map_where_the_kernel_uses_tma():
    made = parameters(
        ["tensordesc<fp16[64, 32]>", "i32"], [descriptor(padding="nan"), 5], [MAP], [], [128, 4, 4, 8, 8, 4]
    )
    read = decode(made[0])
    assert (read.element_type, read.dims, read.strides, read.box) == (ElementType.F16, (256, 100), (1024,), (32, 64))
    assert (read.swizzle, read.oob_fill) == (Swizzle.B64, OobFill.NAN)
    assert [int.from_bytes(each, "little") for each in made[1:]] == [100, 256, 512, 1, 5]


def test_padded_fp4_and_tf32():
    of_fp4 = {**MAP, "elem_size": 1, "elem_type": 14, "fp4_padded": True, "block_size": [64, 128], "swizzle": 3}
    padded = decode(parameters(["tensordesc<u8[64, 64]>"], [descriptor()], [of_fp4], [], [128, 4, 4, 8, 8])[0])
    assert (padded.element_type, padded.dims, padded.strides) == (ElementType.FP4_PADDED, (512, 100), (512,))
    single = {**MAP, "elem_size": 4, "elem_type": 7, "block_size": [64, 16]}
    rounded = parameters(
        ["tensordesc<fp32[64, 16]>"], [descriptor(round_f32_to_tf32=True)], [single], [], [128, 4, 4, 8, 8]
    )
    assert decode(rounded[0]).tf32


def test_a_descriptor_is_taken_apart_where_it_does_not():
    kind = ["tensordesc<fp16[64, 32]>"]
    old = parameters(kind, [descriptor()], [], [], [8, *[8] * 4, *[4] * 2, *[8] * 2])
    assert [int.from_bytes(each, "little") for each in old] == [1 << 20, 100, 256, 512, 1, 100, 256, 512, 1]
    new = parameters(
        kind, [descriptor(padding="zero", round_f32_to_tf32=True)], [], [], [8, *[8] * 4, 1, 1, *[4] * 2, *[8] * 2]
    )
    assert [int.from_bytes(each, "little") for each in new] == [1 << 20, 100, 256, 512, 1, 0, 1, 100, 256, 512, 1]


def test_im2col_is_refused_by_name():
    with pytest.raises(HostSideError, match="im2col"):
        parameters(["tensordesc_im2col<fp16[64, 32]>"], [descriptor()], [{**MAP, "is_im2col": True}], [], [128])
