"""Device memory on the heap of this process."""

from __future__ import annotations

import ctypes

import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import HostBlocks


def test_a_block_is_filled_with_repetitions_up_to_its_end() -> None:
    blocks = HostBlocks()
    page = bytes(range(256)) * 16
    address = blocks.allocate(2 * len(page) + 100)
    other = blocks.allocate(64)
    blocks.repeat(address, memoryview(page))
    assert ctypes.string_at(address, 2 * len(page) + 100) == page + page + page[:100]
    assert ctypes.string_at(other, 64) == b"\xff" * 64


@pytest.mark.parametrize("size", [100, int(8e10)])
def test_a_block_of_zeros(size: int) -> None:
    blocks = HostBlocks()
    address, other = blocks.allocate(size), blocks.allocate(64)
    for at in (address, address + size - 8):
        ctypes.memset(at, 1, 8)
    blocks.zero(address)
    for at in (address, address + size - 8):
        assert ctypes.string_at(at, 8) == bytes(8)
    ctypes.memset(address + 50, 2, 1)
    assert ctypes.string_at(address + 48, 4) == b"\0\0\2\0"
    assert ctypes.string_at(other, 64) == b"\xff" * 64
    blocks.free(address)
    with pytest.raises(HostSideError, match="freed twice"):
        blocks.free(address)
