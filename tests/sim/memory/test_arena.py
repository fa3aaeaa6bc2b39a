"""Where tensors live: gaps, poison, sharing with forks, and memory that costs nothing until it is touched."""

from __future__ import annotations

import ctypes
import os
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.memory.arena import Arena

MIB = 1 << 20


def view(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_ubyte * size).from_address(address), np.uint8)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture
def arena():
    arena = Arena(reserve=1 << 34)
    yield arena
    arena.close()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 3 * MIB), st.sampled_from([1, 16, 256, 512, 4096, 65536])), min_size=1, max_size=12
    ),
    freed=st.lists(st.integers(0, 11), max_size=6),
)
def test_allocations_are_aligned_apart_and_usable(sizes, freed):
    arena = Arena(reserve=1 << 26, poison_bound=4096)
    try:
        live = {}
        for number, (size, align) in enumerate(sizes):
            address = arena.allocate(size, name=f"tensor {number}", align=align)
            assert address % align == 0
            live[address] = size
            if number in freed:
                gone = next(iter(live))
                arena.free(gone)
                del live[gone]
        ordered = sorted(live.items())
        for (one, size), (other, next_size) in pairwise(ordered):
            assert other - (one + size) >= max(MIB, size, next_size)
        for address, size in ordered:
            if size:
                view(address, size)[:] = address & 0xFF
        for address, size in ordered:
            assert not size or (view(address, size) == address & 0xFF).all()
            assert arena.find(address + size + 1000).address == address
        assert {a.address: a.size for a in arena._live.values()} == live
    finally:
        arena.close()


def test_new_memory_is_poison_up_to_the_bound(arena):
    bounded = Arena(reserve=1 << 30, poison_bound=8192)
    address = bounded.allocate(3 * 8192, name="x")
    assert (view(address, 8192) == 0xFF).all()
    assert not view(address, 3 * 8192)[8192:].any()
    assert bounded.find(address).poisoned == 8192
    whole = arena.allocate(3 * 8192, name="x")
    assert (view(whole, 3 * 8192) == 0xFF).all()
    assert np.isnan(view(whole, 64).view(np.float16)).all()
    assert np.isnan(view(whole, 64).view(np.float32)).all()
    bounded.close()


def test_untouched_memory_costs_nothing():
    arena = Arena(reserve=1 << 40, poison_bound=0)
    before = resident()
    addresses = [arena.allocate(1 << 32, name=f"huge {i}") for i in range(8)]
    assert resident() - before < 8 * MIB
    view(addresses[3], 1 << 32)[12345] = 1
    assert resident() - before < 8 * MIB
    arena.close()


def test_freed_memory_is_given_back_and_used_again_only_when_needed():
    arena = Arena(reserve=1 << 24)
    first = arena.allocate(4096, name="first")
    arena.free(first)
    second = arena.allocate(4096, name="second")
    assert second != first
    seen = set()
    for _ in range(40):
        address = arena.allocate(4096, name="more")
        arena.free(address)
        seen.add(address)
    assert len(arena._reservations) == 1  # 40 x 2 MiB did not fit 16 MiB without using ranges again
    with pytest.raises(KeyError):
        arena.free(first)
    arena.close()


def test_a_gap_and_freed_memory_fault_in_the_machine():
    arena = Arena(reserve=1 << 30)
    address = arena.allocate(4096, name="x")
    gone = arena.allocate(4096, name="y")
    arena.free(gone)
    for bad in (address + 4096, address - 1, gone):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ctypes.string_at(bad, 1)
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    child = os.fork()
    if child == 0:
        ctypes.string_at(address + 4095, 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    arena.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_fork_writes_the_same_bytes_only_if_shared(shared):
    arena = Arena(shared=shared, reserve=1 << 30)
    address = arena.allocate(4096, name="x")
    child = os.fork()
    if child == 0:
        ctypes.memset(address, 7, 16)
        arena.close()  # not this process's address space to give back
        os._exit(0)
    os.waitpid(child, 0)
    assert (view(address, 16) == (7 if shared else 0xFF)).all()
    arena.close()


def test_what_cannot_be_allocated(arena):
    with pytest.raises(ValueError, match="aligned to 3"):
        arena.allocate(16, name="x", align=3)
    with pytest.raises(OSError, match="too much"):
        arena.allocate(1 << 48, name="too much")
    assert arena.allocate(0, name="empty")


def test_bytes_that_repeat_are_stored_once_and_freed(arena):
    page = os.sysconf("SC_PAGESIZE")
    period = np.random.default_rng(3).integers(0, 256, 16 * MIB, np.uint8)
    size = (40 << 30) + 5 * page + 7
    before = resident()
    address = arena.allocate(size, name="large")
    arena.repeat(address, memoryview(period))
    for start in (0, 1000 * len(period), 40 << 30):
        assert np.array_equal(view(address + start, min(len(period), size - start)), period[: size - start])
    assert resident() - before < 128 * MIB
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        view(address, size)[0] = 1
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
    arena.free(address)
    again = arena.allocate(page, name="next")
    view(again, page)[:] = 1


def test_zeros_take_no_memory_until_they_are_used(arena):
    size = (80 << 30) + 7
    address = arena.allocate(size, name="large")
    view(address + size - 8, 8)[:] = 1
    before = resident()
    arena.zero(address)
    for start in (0, 1000, MIB, size - 8):
        assert not view(address + start, 8).any()
    assert resident() - before < 8 * MIB
    view(address, size)[5] = 2
    assert view(address, 8).tolist() == [0, 0, 0, 0, 0, 2, 0, 0]
    other = arena.allocate(MIB, name="other")
    assert (view(other, MIB) == 0xFF).all()


@pytest.mark.parametrize("size", [0, 100])
def test_bytes_to_repeat_are_whole_pages(arena, size):
    address = arena.allocate(MIB, name="x")
    with pytest.raises(ValueError, match="no whole pages"):
        arena.repeat(address, memoryview(bytes(size)))
