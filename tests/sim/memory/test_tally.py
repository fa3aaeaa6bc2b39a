"""Sectors and bank conflicts against the rules, counted the long way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from tests.sim.memory.harness import Case
from tests.sim.memory.oracles import bank_passes

LANE = np.arange(32, dtype=np.uint64)
WIDE = [(8, 8, 2, 0), (16, 16, 4, 0), (128, 16, 32, 28)]


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(st.integers(0, 200), min_size=32, max_size=32),
    mask=st.integers(1, FULL),
    size=st.sampled_from([1, 2, 4, 8, 16]),
    base=st.integers(0, 100),
)
def test_any_pattern(items, mask, size, base):
    address = ((base + np.array(items)) * size).astype(np.uint32)
    first, pattern = pattern_of(address, mask, size)
    low = first + pattern.low
    active = [(lane, int(address[lane])) for lane in range(32) if mask >> lane & 1]
    where = {a for _, a in active}
    assert low == min(where)
    assert pattern.span == max(where) + size - min(where)
    assert pattern.wavefronts(low) == bank_passes(active, size)
    assert pattern.sectors(low) == len({b // 32 for a in where for b in range(a, a + size)})
    assert pattern.bytes_touched == len(where) * size
    assert pattern.aligned


def test_a_pattern_is_worked_out_once():
    address = 4096 + 4 * LANE
    assert pattern_of(address, FULL, 4)[1] is pattern_of(address + 512, FULL, 4)[1]
    assert pattern_of(address, FULL, 4)[1] is not pattern_of(address, FULL, 8)[1]
    assert pattern_of(address, FULL, 4)[1] is not pattern_of(address, FULL >> 1, 4)[1]
    assert isinstance(pattern_of(address, FULL, 4)[1], Pattern)


@pytest.mark.parametrize(
    ("stride", "size", "wavefronts", "conflicts"),
    [(4, 4, 1, 0), (8, 4, 2, 1), (128, 4, 32, 31), (132, 4, 1, 0), (0, 4, 1, 0), *WIDE],
)
def test_known_strides(stride, size, wavefronts, conflicts):
    case = Case()
    shared = case.cluster.ctas[0].shared
    shared.written[:] = True
    count = size // 4
    names = ", ".join(f"%r{i + 1}" for i in range(count))
    vector = f".v{count}" if count > 1 else ""
    target = f"{{{names}}}" if count > 1 else names
    where = (shared.base + stride * LANE % 4096).astype(np.uint32)
    case.run(f"ld.shared{vector}.b32 {target}, [%r60];", r60=where)
    counters = case.count()
    assert counters["shared.load.wavefronts"] == wavefronts
    assert counters["shared.load.conflicts"] == conflicts


def test_global_requests_sectors_and_the_fewest_possible():
    case = Case()
    region = case.tensor(np.zeros(1 << 16, np.uint8))
    case.run("ld.global.b32 %r1, [%d1];", d1=region.start + 4 * LANE)
    case.run("ld.global.b32 %r1, [%d1];", d1=region.start + 64 * LANE)
    case.run("ld.global.b32 %r1, [%d1];", d1=region.start + 4 + 4 * LANE)
    case.run("ld.global.b32 %r1, [%d1];", d1=region.start)
    case.run("st.global.v4.b32 [%d1], {%r1, %r2, %r3, %r4};", d1=region.start + 512 * LANE)
    counters = case.count()
    assert counters["global.load.requests"] == 4
    assert counters["global.load.sectors"] == 4 + 32 + 5 + 1
    assert counters["global.load.sectors_least"] == 4 + 4 + 4 + 1
    assert counters["global.load.bytes"] == 3 * 128 + 4
    assert counters["global.store.sectors"] == 32
    assert counters["global.store.sectors_least"] == 16
    before = dict(counters)
    assert case.count() == before  # what was counted is not counted again
