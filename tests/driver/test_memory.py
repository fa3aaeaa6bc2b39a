"""Device memory on the heap of this process."""

from __future__ import annotations

import ctypes

from pytest_nvfp4.driver.memory import HostBlocks


def test_a_block_is_filled_with_repetitions_up_to_its_end() -> None:
    blocks = HostBlocks()
    page = bytes(range(256)) * 16
    address = blocks.allocate(2 * len(page) + 100)
    other = blocks.allocate(64)
    blocks.repeat(address, memoryview(page))
    assert ctypes.string_at(address, 2 * len(page) + 100) == page + page + page[:100]
    assert ctypes.string_at(other, 64) == b"\xff" * 64
