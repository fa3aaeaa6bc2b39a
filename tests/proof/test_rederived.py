"""The claims again without their formulas: plain loops over everything small, written from what the words say."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from pytest_nvfp4.proof import cta_map, schedules
from pytest_nvfp4.proof.scale_factors import formula
from pytest_nvfp4.tmem.columns import MmaTile, TmemError, allocation, columns
from tests.proof.rederived import byte_by_filling, legal, walked_table


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_searches_by_writing_every_tile_down(groups):
    for tiles in itertools.product(range(4), repeat=groups):
        table = walked_table(tiles)
        first = [sum(tiles[:g]) for g in range(groups + 1)]
        for b, wanted in enumerate(table):
            assert cta_map.scan(first, b, cta_map.decide) == wanted
            assert cta_map.binary(first, b, cta_map.decide) == wanted


def test_searches_end_at_a_group_that_holds_the_tile_whatever_the_counts():
    """Negative counts too, for which the statements on the loops ask nothing: only that b is below P(G)."""
    seen = 0
    for tiles in itertools.product(range(-2, 4), repeat=3):
        first = [sum(tiles[:g]) for g in range(4)]
        for b in range(max(0, first[-1])):
            rest, group = b, 0
            while rest >= tiles[group]:
                rest, group = rest - tiles[group], group + 1
            for found in (group, cta_map.scan(first, b, cta_map.decide), cta_map.binary(first, b, cta_map.decide)):
                assert first[found] <= b < first[found + 1]
            assert rest == b - first[group]
            seen += 1
    assert seen > 300


def test_tiles_of_a_group_by_counting_rows():
    for size, rows in itertools.product(range(1, 9), range(40)):
        touched = {row // size for row in range(rows)}
        assert touched == set(range(-(-rows // size)))


def test_clusters_and_persistent_grids_by_crossing_out():
    for counts in itertools.product(itertools.product(range(6), range(1, 3)), repeat=2):
        left = [(g, x, y) for g, (m, n) in enumerate(counts) for x in range(m) for y in range(n)]
        assert sorted(schedules.paired(counts)) == sorted(left)
        for ctas in (1, 3, 5):
            assert sorted(schedules.strided(counts, ctas=ctas)) == sorted(left)


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (128, 4), (129, 5), (300, 12)])
def test_the_formula_by_filling_memory(rows, blocks):
    places = byte_by_filling(rows, blocks)
    assert sorted(places.values()) == list(range(len(places)))
    rest_k = -(-blocks // 4)
    assert all(formula(row, block, rest_k=rest_k) == byte for (row, block), byte in places.items())


def test_columns_of_every_legal_tile_by_counting_words():
    """Words of the accumulator and copies of each factor's, over 128 lanes; no other tile is taken."""
    for ctas, m, n in itertools.product((1, 2), range(0, 513, 64), range(0, 520, 8)):
        try:
            need = columns(MmaTile(m, n, 128, ctas))
        except TmemError:
            assert not legal(m, n, ctas), (m, n, ctas)
            continue
        assert legal(m, n, ctas), (m, n, ctas)
        half = (m, ctas) == (128, 2)
        words = m // ctas * n
        assert Fraction(words, 128) == need.stage, "an accumulator fills its columns"
        blocks_b = -(-n // 128)
        # Each factor of four k-blocks is a byte of a word that is there 4 times, 2 times where the lanes are halved.
        assert need.sfb * 128 == blocks_b * 128 * 2 * (2 if half else 4)
        assert need.sfa * 128 == -(-(m // ctas) // 128) * 128 * 2 * 4
        assert need.allocation == next((size for size in (32, 64, 128, 256, 512) if size >= need.total), None)
        assert need.allocation == (None if need.total > 512 else allocation(need.total))
