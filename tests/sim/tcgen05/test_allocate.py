"""Allocation of TMEM."""

from __future__ import annotations

import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.tcgen05.allocate import Allocator, alloc, dealloc, relinquish
from pytest_nvfp4.sim.tcgen05.tmem import Tmem
from tests.sim.tcgen05.harness import FULL, make_ctas

WORD = 1024


def _read(cta: Cta) -> int:
    return int.from_bytes(cta.shared.data[:4].tobytes(), "little")


def test_blocks_are_disjoint_and_their_address_is_stored() -> None:
    [cta] = make_ctas()
    w = cta.warps[0]
    seen: set[int] = set()
    for count in (32, 128, 64, 32, 256):
        column = alloc(w, FULL, WORD, count, 1, 0)
        assert column == _read(cta)
        assert column is not None
        assert column % count == 0
        block = set(range(column, column + count))
        assert not block & seen
        seen |= block
    assert len(seen) == 512


def test_a_warp_waits_until_columns_are_free() -> None:
    [cta] = make_ctas()
    first, second = cta.warps[:2]
    column = alloc(first, FULL, WORD, 512, 1, 0)
    assert column == 0
    assert alloc(second, FULL, WORD, 32, 1, 0) is None
    unit = cta.unit(Allocator)
    assert second.groups[0].waiting is unit
    assert "[0, 512) by warp 0" in unit.waiting_for()
    dealloc(first, FULL, 0, 512, 1, 0)
    assert second.groups[0].waiting is None
    assert alloc(second, FULL, WORD, 32, 1, 0) == 0


def test_columns_hold_nothing_when_they_are_allocated_again() -> None:
    [cta] = make_ctas()
    w = cta.warps[0]
    alloc(w, FULL, WORD, 64, 1, 0)
    tmem = cta.unit(Tmem)
    tmem.wrote(0, 64)
    tmem.need(0, 64, what="test")
    dealloc(w, FULL, 0, 64, 1, 0)
    with pytest.raises(Fault, match="nothing is allocated"):
        tmem.claim(0, 1, what="test")
    alloc(w, FULL, WORD, 64, 1, 0)
    with pytest.raises(Fault, match="never written"):
        tmem.need(0, 64, what="test")


@pytest.mark.parametrize("count", [0, 16, 31, 33, 96, 513, 1024])
def test_illegal_counts(count: int) -> None:
    [cta] = make_ctas()
    with pytest.raises(Fault, match="power of two from 32 to 512"):
        alloc(cta.warps[0], FULL, WORD, count, 1, 0)


def test_the_permit() -> None:
    [cta] = make_ctas()
    alloc(cta.warps[0], FULL, WORD, 32, 1, 0)
    relinquish(cta.warps[0], 1)
    with pytest.raises(Fault, match="permit"):
        alloc(cta.warps[1], FULL, WORD, 32, 1, 0)
    dealloc(cta.warps[0], FULL, 0, 32, 1, 0)


@pytest.mark.parametrize(("address", "count"), [(0, 64), (32, 128), (1 << 16, 128), (128, 128)])
def test_what_is_freed_must_be_what_was_allocated(address: int, count: int) -> None:
    [cta] = make_ctas()
    alloc(cta.warps[0], FULL, WORD, 128, 1, 0)
    with pytest.raises(Fault, match="no allocation"):
        dealloc(cta.warps[0], FULL, address, count, 1, 0)


def test_freeing_twice() -> None:
    [cta] = make_ctas()
    alloc(cta.warps[0], FULL, WORD, 128, 1, 0)
    dealloc(cta.warps[0], FULL, 0, 128, 1, 0)
    with pytest.raises(Fault, match="no allocation"):
        dealloc(cta.warps[0], FULL, 0, 128, 1, 0)


def test_a_leak_is_reported_at_exit_and_only_a_leak() -> None:
    [cta] = make_ctas()
    alloc(cta.warps[3], FULL, WORD, 128, 1, 0)
    cta.unit(Allocator).at_exit()
    [(kind, message)] = cta.launch.reports
    assert kind == "tmem"
    assert "[0, 128), allocated by warp 3" in message
    dealloc(cta.warps[3], FULL, 0, 128, 1, 0)
    cta.launch.reports.clear()
    cta.unit(Allocator).at_exit()
    assert not cta.launch.reports


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_pair_allocates_together(order: tuple[int, int]) -> None:
    ctas = make_ctas(2)
    one, other = ctas[order[0]], ctas[order[1]]
    base = one.shared.base
    assert alloc(one.warps[0], FULL, base, 128, 2, 0) is None
    assert "waits for its peer" in one.unit(Allocator).waiting_for()
    assert alloc(other.warps[2], FULL, other.shared.base, 128, 2, 0) == 0
    assert one.warps[0].groups[0].waiting is None
    assert alloc(one.warps[0], FULL, base, 128, 2, 0) == 0
    assert alloc(one.warps[0], FULL, base, 64, 2, 0) is None
    assert alloc(other.warps[2], FULL, other.shared.base, 64, 2, 0) == 128
    assert alloc(one.warps[0], FULL, base, 64, 2, 0) == 128
    for cta in ctas:
        assert set(cta.unit(Allocator).blocks) == {0, 128}
        dealloc(cta.warps[0], FULL, 0, 128, 2, 0)


def test_a_pair_must_agree() -> None:
    ctas = make_ctas(2)
    alloc(ctas[0].warps[0], FULL, ctas[0].shared.base, 128, 2, 0)
    with pytest.raises(Fault, match="64 columns here, but the peer CTA requests 128"):
        alloc(ctas[1].warps[0], FULL, ctas[1].shared.base, 64, 2, 0)


def test_one_cta_group_for_all() -> None:
    ctas = make_ctas(2)
    alloc(ctas[0].warps[0], FULL, ctas[0].shared.base, 128, 1, 0)
    with pytest.raises(Fault) as caught:
        relinquish(ctas[0].warps[0], 2)
    assert caught.value.kind == "cta-group"


def test_a_pair_needs_two_ctas() -> None:
    [cta] = make_ctas()
    with pytest.raises(Fault, match="a pair is two CTAs"):
        alloc(cta.warps[0], FULL, WORD, 128, 2, 0)
