"""Packings against a search that knows nothing of orders: every start of every segment."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.tmem import packing as tmem_packing
from pytest_nvfp4.tmem.columns import MmaTile, TmemError
from pytest_nvfp4.tmem.packing import PackingRequest, Segment, best_of, pack
from pytest_nvfp4.tmem.phases import Placement, best_leads, best_order, prove_disjoint
from tests.tmem.exhaustive import shortest_by_hand


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4])), min_size=1, max_size=3), st.integers(1, 3))
def test_without_overlap_no_placement_is_shorter(others: list[tuple[int, int]], width: int) -> None:
    request = PackingRequest(
        Segment("acc", width), 1, tuple(Segment(f"s{at}", *each) for at, each in enumerate(others)), subtile=1
    )
    (packing,) = pack(request).packings
    assert packing.used == shortest_by_hand([(width, 1), *others], 14)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 3), st.integers(2, 5), st.integers(0, 3), st.integers(1, 4), st.integers(4, 14))
@example(stages=3, width=4, more=0, subtile=3, capacity=7)  # acc0 and acc2, which are no neighbours, decide
def test_no_placement_of_accumulators_leaves_a_larger_lead(
    stages: int, width: int, more: int, subtile: int, capacity: int
) -> None:
    """All starts of all accumulators and of one more segment, and all orders in time, for small tensor memories.

    They could not be allocated: here any number of columns can.
    """
    others = (Segment("s", more),) if more else ()
    request = PackingRequest(Segment("acc", width), stages, others, subtile=min(subtile, width), capacity=capacity)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tmem_packing, "allocation", lambda used: used)
        found = [each for each in pack(request).packings if each.fits]
    best = -1
    for starts in itertools.product(range(capacity - width + 1), repeat=stages):
        for place in range(capacity - more + 1) if more else (0,):
            if any(place < start + width and start < place + more for start in starts):
                continue
            orders = best_order(starts, width=width, subtile=request.width)
            best = max(best, min(best_leads(Placement(starts, width, request.width, orders))))
    assert max((each.lead for each in found), default=-1) == best or (best == 0 and not found)


@settings(deadline=None, max_examples=60)
@given(strategies.tmem_requests())
def test_every_packing_keeps_its_alignments_and_is_proved(request: PackingRequest) -> None:
    search = pack(request)
    assert search.packings
    sizes = {segment.name: segment for segment in request.others}
    for packing in search.packings:
        assert len(packing.starts) == request.stages + len(request.others)
        for name, start, columns in packing.starts:
            segment = sizes.get(name, request.accumulator)
            assert start % segment.align == 0
            assert columns == segment.columns
        for (one, first, size), (other, second, _) in itertools.pairwise(packing.starts):
            shared = first + size - second
            assert shared <= (max(packing.overlaps) if one[:3] == other[:3] == "acc" else 0)
    best = search.best
    strategies.target_slack(best or search.packings[-1])
    assert (best is None) == (not any(each.fits for each in search.packings))
    if best is not None:
        assert best.prove().proved
        assert best.used + best.slack == request.capacity
        assert best.lead == max(each.lead for each in search.packings if each.fits)


def test_two_accumulators_of_256_columns_fit_by_sharing_64() -> None:
    best = best_of([pack(PackingRequest.of(MmaTile(128, 256, 256, stages=stages))) for stages in (1, 2)])
    assert best is not None
    assert (best.request.stages, best.overlap, best.used, best.slack, best.allocation) == (2, 64, 496, 16, 512)
    assert best.leads == (6, 6)
    assert not prove_disjoint(best.placement, (7, 6)).proved


def test_tiles_apart_in_time_may_share_almost_for_free() -> None:
    # Four accumulators of 128 columns and 32 of scale factors lack 32 columns of 512.
    best = pack(PackingRequest.of(MmaTile(128, 128, 256, stages=4))).best
    assert best is not None
    assert best.used == 512
    assert best.lead == 7, (
        "only one subtile less than a whole pair of tiles, since the two that share are two tiles apart"
    )


def test_what_fits_side_by_side_shares_nothing() -> None:
    for tile in (MmaTile(128, 192, 256, stages=2), MmaTile(128, 128, 256, stages=3), MmaTile(128, 64, 256, stages=4)):
        best = pack(PackingRequest.of(tile)).best
        assert best is not None
        assert best.overlap == 0
        assert best.lead == (tile.stages - 1) * best.placement.subtiles


def test_an_alignment_costs_the_columns_it_skips() -> None:
    tight = pack(PackingRequest(Segment("acc", 100), 1, (Segment("a", 16, 32), Segment("b", 16, 32)), subtile=100)).best
    assert tight is not None
    # a and b at 0 and 32 leave a hole that the accumulator does not fit; b behind the accumulator is shorter.
    assert tight.used == shortest_by_hand([(25, 1), (4, 8), (4, 8)], 48) * 4  # type: ignore[operator]


def test_nothing_fits_where_even_all_that_is_shared_is_too_wide() -> None:
    search = pack(PackingRequest(Segment("acc", 256), 2, (Segment("s", 260),), subtile=32))
    assert search.best is None
    assert all(packing.slack < 0 for packing in search.packings)


def test_requests_that_mean_nothing_are_refused() -> None:
    acc = Segment("acc", 64)
    for arguments, words in (
        ((acc, 0), "at least 1"),
        ((acc, 1, (Segment("acc", 2),)), "the same name"),
        ((acc, 1, (), 0), "subtile"),
        ((acc, 1, (), 8, 1024), "capacity"),
        ((acc, 1, tuple(Segment(f"s{at}", at + 1) for at in range(9))), "orders"),
    ):
        with pytest.raises(TmemError, match=words):
            PackingRequest(*arguments)
    with pytest.raises(TmemError, match="wider subtile"):
        pack(PackingRequest(Segment("acc", 64), 8, subtile=4))
    with pytest.raises(TmemError, match="1 to 512"):
        Segment("wide", 513)
