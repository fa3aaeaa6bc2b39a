"""Which bytes of a launch's parameters have a meaning: those that the kernel may read."""

from __future__ import annotations

import struct

import pytest

from pytest_nvfp4.driver import ptx_module
from pytest_nvfp4.driver.parameter_bytes import read_bytes, with_zeros

TEXT = """
.version 8.7
.target sm_100a
.entry other(.param .align 8 .b8 p_1[16]) { ld.param.b64 %rd1, [p_1+8]; ret; }
.entry first(
	.param .align 8 .b8 p_1[16],
	.param .align 16 .b8 p_10[16],
	.param .align 64 .b8 map[128],
	.param .align 8 .b8 taken[16],
	.param .align 4 .b8 unread[8],
	.param .u64 number
)
{
	ld.param.b32 %r1, [p_1+8]; // ld.param.b32 %r1, [p_1+12];
	@%p1 ld.param::entry.u64 %rd1, [p_1];
	ld.param.v2.b32 {%r2, %r3}, [p_10 + 4];
	ld.param.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [p_10];
	mov.b64 %rd2, map;
	ld.param.b64 %rd3, [taken];
	cvta.param.u64 %rd4, taken;
	ld.param.b32 %r9, [number];
	ret;
}
"""
FULL = bytes(range(1, 129))
MAP = struct.pack("<8Q", 1 << 20, 0x2 | 1 << 4 | 64 << 32, 0, 0, 63 | 31 << 32, 0, 15 << 56, 31)
"""A rank-2 map of bytes: 64 x 32 with rows of 1,024 bytes, box 16 x 32."""


def test_bytes_that_a_kernel_loads_by_name_are_read() -> None:
    p_1, p_10, the_map, taken, unread, number = read_bytes(TEXT, "first")
    assert p_1 == frozenset(range(12))
    assert p_10 == frozenset(range(12))
    assert (the_map, taken, unread, number) == (None, None, frozenset(), None)
    assert read_bytes(TEXT, "other") == (frozenset(range(8, 16)),)


@pytest.mark.parametrize("given", [MAP, bytes(8) + MAP[8:]], ids=["a map", "a map that the kernel completes"])
def test_what_is_not_read_becomes_zero(given: bytes) -> None:
    params = [FULL[:16], FULL[:16], given + FULL[64:], FULL[:16], FULL[:8], FULL[:8]]
    p_1, p_10, the_map, taken, unread, number = with_zeros(params, read_bytes(TEXT, "first"))
    assert p_1 == p_10 == FULL[:12] + bytes(4)
    assert the_map == given + bytes(64), "the second half of a tensor map has no meaning"
    assert taken == FULL[:16], "any byte may be read through an address"
    assert unread == FULL[:8], "a parameter of which nothing is read is shown as it was given"
    assert number == FULL[:8], "a number has no padding"


@pytest.mark.parametrize("given", [FULL, bytes(64) + FULL[64:]])
def test_a_parameter_that_is_no_tensor_map_keeps_its_second_half(given: bytes) -> None:
    params = [FULL[:16], FULL[:16], given, FULL[:16], FULL[:8], FULL[:8]]
    assert with_zeros(params, read_bytes(TEXT, "first"))[2] == given


def test_a_tensor_map_whose_second_half_is_loaded_by_name_keeps_it() -> None:
    text = TEXT.replace("mov.b64 %rd2, map", "ld.param.b64 %rd2, [map+120]")
    params = [FULL[:16], FULL[:16], MAP + FULL[64:], FULL[:16], FULL[:8], FULL[:8]]
    assert with_zeros(params, read_bytes(text, "first"))[2][120:] == FULL[120:]


def test_a_kernel_that_is_missing_is_an_error() -> None:
    with pytest.raises(ptx_module.PtxModuleError, match="no kernel third"):
        read_bytes(TEXT, "third")
