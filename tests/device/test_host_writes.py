"""Which bytes of a tensor count as written by the host: those that numpy writes through the same strides."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.device.worker.host_writes import HostWrites
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.memory.globals import GlobalMemory, Region

SIZE = 4096


def written(*requests: Executed, start: int, memory: GlobalMemory) -> Any:
    session: Any = SimpleNamespace(machine=SimpleNamespace(memory=memory))
    observer = HostWrites(session)
    for request in requests:
        observer.executed(request)
    region = memory.find(start)
    assert region is not None
    return region.initialised


def tracked() -> tuple[GlobalMemory, Region, Any]:
    block = ctypes.create_string_buffer(SIZE)
    memory = GlobalMemory()
    region = memory.add(Region("A", ctypes.addressof(block), SIZE))
    region.track_writes()
    return memory, region, block


@given(
    size=st.sampled_from([1, 2, 4, 8]),
    first=st.integers(0, 15),
    dimensions=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=3),
)
def test_a_strided_write(size: int, first: int, dimensions: list[tuple[int, int]]) -> None:
    memory, region, _block = tracked()
    shape, strides = tuple(n for n, _ in dimensions), tuple(size * step for _, step in dimensions)
    extent = Extent(region.start + first * size, size, shape, strides)
    expected = np.zeros(SIZE, np.bool_)
    items = expected.view(np.dtype((np.void, size)))
    np.lib.stride_tricks.as_strided(items[first:], shape, strides)[...] = np.ones(size, np.bool_).view(items.dtype)
    made = written(Executed(Kind.OPERATOR, "torch's fill_", writes=(extent,)), start=region.start, memory=memory)
    assert (made == expected).all()


@pytest.mark.parametrize(
    ("kind", "count"), [(Kind.ALLOCATE, 0), (Kind.FREE, 0), (Kind.COPY, 64), (Kind.FILL, 64), (Kind.OPERATOR, 64)]
)
def test_a_new_block_is_not_written(kind: Kind, count: int) -> None:
    memory, region, _block = tracked()
    request = Executed(kind, "a request", writes=(Extent(region.start, 64),))
    assert written(request, start=region.start, memory=memory).sum() == count


@pytest.mark.parametrize(("size", "shape", "stride"), [(SIZE, (), 0), (4, (SIZE,), 4), (4, (SIZE, SIZE), 1 << 40)])
def test_a_write_past_the_end_counts_to_the_end(size: int, shape: tuple[int, ...], stride: int) -> None:
    memory, region, _block = tracked()
    extent = Extent(region.start + 64, size, shape, (stride,) * len(shape))
    made = written(Executed(Kind.FILL, "a fill", writes=(extent,)), start=region.start, memory=memory)
    assert made.sum() == SIZE - 64
    assert not made[:64].any()


@pytest.mark.parametrize(
    ("operator", "count"), [("", 32), ("aten::copy_", 32), ("aten::clone", 32), ("aten::add", 64), ("aten::fill_", 64)]
)
def test_a_copy_of_what_was_not_written_is_not_written(operator: str, count: int) -> None:
    memory, region, _block = tracked()
    assert region.initialised is not None
    region.initialised[:64:2] = True
    source, target = Extent(region.start, 4, (16,), (4,)), Extent(region.start + 2048, 4, (16,), (4,))
    kind = Kind.OPERATOR if operator else Kind.COPY
    made = written(
        Executed(kind, "a copy", reads=(source,), writes=(target,), operator=operator),
        start=region.start, memory=memory,
    )  # fmt: skip
    assert made[2048:].sum() == count


def test_memory_that_is_not_tracked() -> None:
    memory, region, _block = tracked()
    region.initialised = None
    outside = Extent(region.end + 64, 64)
    request = Executed(Kind.FILL, "a fill", writes=(Extent(region.start, 64), outside))
    assert written(request, start=region.start, memory=memory) is None


@pytest.mark.parametrize(
    ("shape", "strides", "whole"),
    [
        ((1024,), (4,), True),
        ((32, 32), (128, 4), True),
        ((32, 1, 32), (4, 9, 128), True),
        ((32, 31), (128, 4), False),
        ((512,), (8,), False),
        ((2, 512), (0, 4), False),
        ((1024,), (0,), False),
        ((0, 1024), (4, 4), False),
    ],
)
def test_a_region_that_is_written_as_a_whole_needs_no_record(
    shape: tuple[int, ...], strides: tuple[int, ...], whole: bool
) -> None:
    memory, region, _block = tracked()
    memory.wrote(Extent(region.start, 4, shape, strides))
    assert (region.initialised is None) is whole
    region.track_writes()
    memory.wrote(Extent(region.start + 4, 4, (SIZE // 4 - 1,), (4,)))
    region.forget_writes()
    assert region.initialised is not None
    assert np.flatnonzero(~region.initialised).tolist() == [0, 1, 2, 3]
    memory.wrote(Extent(region.start, 4))
    region.forget_writes()
    assert region.initialised is None
