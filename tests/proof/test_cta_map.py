"""The map as numbers: against enumeration, against the repository's kernel, and every wrong map with its problem."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_nvfp4.problem import GPUMODE, GPUMODE_BENCH
from pytest_nvfp4.proof import cta_indexing, cta_map, schedules
from pytest_nvfp4.proof.snippet import cta_snippet
from pytest_nvfp4.proof.statement import Status, judge
from tests.proof.cta_maps import Table, functions, late_scan, walked

COUNTS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=9)
SEARCHES = (cta_map.scan, cta_map.binary)
KERNEL = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"


@given(COUNTS)
@example([(0, 1)] * 4 + [(1, 1)] + [(0, 3)])
@settings(deadline=None, max_examples=80)
def test_both_searches_and_rasters_walk_the_tiles(counts):
    for search in SEARCHES:
        assert cta_map.launched(search)(counts) == walked(counts)
        assert cta_map.launched(search, cta_map.n_major)(counts) == walked(counts, n_major=True)


@given(COUNTS, st.integers(1, 7))
@settings(deadline=None, max_examples=80)
def test_persistent_and_paired_grids_cover_every_tile_once(counts, ctas):
    assert sorted(schedules.strided(counts, ctas=ctas)) == sorted(walked(counts))
    assert sorted(schedules.paired(counts)) == sorted(walked(counts))


@given(COUNTS)
@settings(deadline=None, max_examples=50)
def test_numpy_searchsorted_finds_the_same_groups(counts):
    first = np.cumsum([0] + [m * n for m, n in counts])
    for b in range(int(first[-1])):
        wanted = int(np.searchsorted(first, b, side="right")) - 1
        assert [search(first.tolist(), b, cta_map.decide) for search in SEARCHES] == [wanted, wanted]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 500), st.just(256)), min_size=1, max_size=7))
@settings(deadline=None, max_examples=40)
def test_the_repositorys_kernel_has_the_proved_map(sizes):
    find_tile, first_tiles, *_ = functions(KERNEL.read_text(), "find_tile", "first_tiles", "ceil_div")
    sizes = [(m, n, k, 1) for m, n, k in sizes]
    first = first_tiles(sizes)
    table = Table([(p, m) for p, (m, *_) in zip(first, sizes, strict=False)])
    find_tile.__globals__.update(FIRST_TILE=0, M=1)
    counts = [(-(-m // 128), -(-n // 128)) for m, n, *_ in sizes]
    assert first == cta_map.prefix_sums([m * n for m, n in counts])
    assert [find_tile(table, len(sizes), b) for b in range(first[-1])] == walked(counts)


@pytest.mark.parametrize("search", ["binary", "scan"])
@pytest.mark.parametrize("raster", ["m", "n"])
@given(sizes=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=25)
def test_the_snippet_as_python_is_the_proved_map(search, raster, sizes):
    source = cta_snippet(tile_m=64, tile_n=96, search=search, raster=raster)
    tile_table, find_tile = functions(source, "tile_table", "find_tile")
    rows, grid = tile_table(sizes)
    counts = [(-(-m // 64), -(-n // 96)) for m, n in sizes]
    found = [find_tile(Table(rows), len(sizes), b) for b in range(grid)]
    assert found == walked(counts, n_major=raster == "n")


@pytest.mark.parametrize(
    "sizes", [[(-1, 128)], [(2**31 - 127, 128)], [(128, 2**31 - 127)], [(2**30, 2**18)], [(2**31 - 128, 128)] * 129]
)
def test_the_snippet_refuses_what_its_proof_rules_out(sizes):
    (tile_table,) = functions(cta_snippet(), "tile_table")
    with pytest.raises(ValueError, match=r"group|tiles"):
        tile_table(sizes)


def test_the_snippet_takes_the_largest_sizes():
    (tile_table,) = functions(cta_snippet(), "tile_table")
    assert tile_table([(2**31 - 128, 1)]) == ([(0, 2**24 - 1), (2**24 - 1, 0)], 2**24 - 1)
    with pytest.raises(ValueError, match="at least 1"):
        cta_snippet(tile_m=0)


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (cta_map.launched(late_scan), "0x128x256, 128x128x256"),
        (cta_map.launched(cta_indexing.stops_early), "0x128x256, 128x128x256"),
        (cta_map.launched(raster=lambda place, counts: divmod(place, counts[0])), "128x256x256"),
        (cta_map.launched(raster=lambda place, counts: cta_map.m_major(place, (counts[1], 0))), "128x256x256"),
        (lambda counts: schedules.strided(counts, ctas=2, start=1), "128x128x256"),
        (lambda counts: schedules.strided(counts, ctas=2) * 2, "128x128x256"),
        (lambda counts: schedules.paired(counts, up=False), "128x128x256"),
        (lambda counts: [(g, x + 1, y) for g, x, y in walked(counts)], "128x128x256"),
        (lambda counts: walked(counts)[:-1], "128x128x256"),
    ],
)
def test_a_wrong_map_is_shown_on_its_smallest_problem(work, says):
    text, looked = cta_map.small_failure(work)
    assert looked > 0
    assert text.startswith(f"problem {says}: ")


def test_small_problems_are_all_of_them_and_grow():
    lists = list(cta_map.small_counts(groups=2, most_m=1, most_n=2))
    assert len(lists) == len(set(lists)) == 4 + 16
    assert lists[0] == ((0, 1),)
    assert [len(counts) for counts in lists] == sorted(len(counts) for counts in lists)


@pytest.mark.parametrize("problem", [*GPUMODE, *GPUMODE_BENCH], ids=lambda problem: problem.name)
def test_official_problems(problem):
    sizes = [(group.m, group.n) for group in problem.groups]
    statement = judge(cta_indexing.on_problem(problem.name, sizes))
    assert statement.status is Status.PROVED
    total = sum(-(-m // 128) * -(-n // 128) for m, n in sizes)
    assert f"{total} tiles" in statement.words
    assert statement.checked == f"{4 * total} CTAs"


def test_a_problem_of_one_tile_size_too_many():
    with pytest.raises(ValueError, match="are more than"):
        cta_indexing.on_problem("huge", [(128 * 1000, 128 * 1000)])
    assert judge(cta_indexing.on_problem("none", [(0, 128)])).status is Status.UNKNOWN


def test_given_numbers_of_groups_are_checked():
    for wrong in ((), (0,), (3, -1)):
        with pytest.raises(ValueError, match="at least"):
            cta_indexing.given_groups(wrong)
