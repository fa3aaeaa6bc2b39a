"""TMEM columns by formula, by the DSL's layouts and by hand; allocations; phases of the accumulator pipeline."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.tmem.columns import Columns, MmaTile, TmemError, allocation, columns, most_stages
from pytest_nvfp4.tmem.judge import judge, judgements
from pytest_nvfp4.tmem.phases import Placement, best_leads, best_order, prove_disjoint
from pytest_nvfp4.tmem.usage import of_kernel, usage
from pytest_nvfp4.toolchain.trace import Code, Trace, Value
from tests.proof.tmem_samples import ACC, MMA, SFA, SFB_WIDE, SMEM, pipeline_breaks, placement, values


@pytest.mark.parametrize(
    ("n", "acc", "sfa", "sfb"), [(64, 64, 16, 16), (128, 128, 16, 16), (192, 192, 16, 32), (256, 256, 16, 32)]
)
def test_the_columns_of_one_stage_are_those_that_were_measured(n: int, acc: int, sfa: int, sfb: int) -> None:
    assert columns(MmaTile(128, n, 256)) == Columns(acc, 1, sfa, sfb)
    twice = columns(MmaTile(128, n, 512))
    assert (twice.sfa, twice.sfb) == (2 * sfa, 2 * sfb)


def test_what_is_known_not_to_fit_does_not_fit() -> None:
    for tile, total in (
        (MmaTile(128, 128, 256, stages=4), 544),
        (MmaTile(128, 192, 256, stages=3), 624),
        (MmaTile(128, 256, 256, stages=2), 560),
    ):
        need = columns(tile)
        assert (need.total, need.allocation, need.slack, need.ctas_per_sm) == (total, None, 512 - total, 0)
        assert most_stages(tile) == tile.stages - 1


@settings(deadline=None)
@given(strategies.tiles())
def test_scale_factors_have_a_byte_for_each_row_and_block(tile: MmaTile) -> None:
    """Counted another way: bytes of the blocks of 128 rows by 4 scale factors, over the bytes of a column."""
    rows_a = -(-tile.m // tile.ctas // 128) * 128
    rows_b = -(-tile.n // 128) * 128
    copies = 2 if tile.halved else 4
    blocks = -(-tile.k // (4 * tile.sf_vector))
    need = columns(tile)
    assert need.sfa * 32 * 4 == rows_a * 4 * blocks
    assert need.sfb * 32 * 4 * 4 == rows_b * 4 * blocks * copies
    assert need.stage * 128 == tile.m // tile.ctas * tile.n


def test_the_allocation_is_the_least_legal_one_that_holds_the_columns() -> None:
    legal = [32, 64, 128, 256, 512]
    for count in range(600):
        assert allocation(count) == next((size for size in legal if size >= count), None)
    with pytest.raises(TmemError, match="must not be negative"):
        allocation(-1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((64, 128, 256), "multiple of 128; M = 64 is legal only without block scaling"),
        ((64, 128, 256, 2), "multiple of 256, or 128, which is 64 rows a CTA"),
        ((384, 128, 256, 2), "multiple of 256, or 128"),
        ((128, 12, 256), "steps of 8"),
        ((256, 24, 256, 2), "steps of 16"),
        ((128, 384, 256), "multiple of 256"),
        ((128, 128, 96), "multiple of 64"),
        ((128, 128, 256, 3), "in a pair"),
        ((128, 128, 256, 1, 0), "at least 1"),
        ((128, 128, 256, 1, 1, 8), "MXFP4"),
    ],
)
def test_tiles_that_no_mma_has_are_refused_in_words(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(TmemError, match=words):
        MmaTile(*arguments)


SOME_TILES = (
    *(MmaTile(128, n, k) for n in (8, 40, 64, 128, 136, 192, 256, 512) for k in (64, 256, 512)),
    *(MmaTile(256, n, 256, 2, stages) for n in (16, 64, 128, 256) for stages in (1, 2)),
    *(MmaTile(128, n, 256, 1, 3) for n in (64, 128)),
    *(MmaTile(128, n, k, sf_vector=32) for n in (64, 256) for k in (128, 512)),
    MmaTile(256, 256, 256),
    MmaTile(512, 64, 256, 2),
    *(MmaTile(128, n, 256, 2, stages) for n in (16, 64, 192, 256) for stages in (1, 2)),
)
ALL_TILES = tuple(
    MmaTile(m, n, k, ctas, 1, vector)  # type: ignore[arg-type]
    for ctas, rows in ((1, (128, 256)), (2, (128, 256, 512)))
    for m in rows
    for n in (*range(8 * ctas, 257, 8 * ctas), 512)
    for k in (64, 128, 256, 512)
    for vector in (16, 32)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tiles",
    [
        pytest.param(SOME_TILES, id="some"),
        # A trace records no more than the first 64 members of a list.
        *(pytest.param(ALL_TILES[at : at + 64], marks=pytest.mark.slow) for at in range(0, len(ALL_TILES), 64)),
    ],
)
def test_the_layouts_of_the_installed_dsl_agree_with_the_formula(tmp_path: Path, tiles: tuple[MmaTile, ...]) -> None:
    pytest.importorskip("cutlass")
    from pytest_nvfp4.tmem.probe import ENTRY, ProbeError, read_probe, write_probe
    from pytest_nvfp4.toolchain.cache import TraceCache
    from pytest_nvfp4.toolchain.request import Entry, TraceRequest
    from pytest_nvfp4.toolchain.tracer import Tracer

    path = write_probe(tmp_path, tiles)
    request = TraceRequest(kernel=path, problem=_problem(), entry=Entry(path, ENTRY))
    trace = Tracer(root=tmp_path, cache=TraceCache(tmp_path / "cache")).trace(request)
    # The helper takes the 64 rows of M = 128 over a pair for two blocks of 128: the one difference there is.
    doubled = [replace(need, sfa=(1 + tile.halved) * need.sfa) for tile in tiles for need in [columns(tile)]]
    assert read_probe(trace, tiles) == doubled
    with pytest.raises(ProbeError, match="cannot be read"):
        read_probe(trace, [*tiles, tiles[0]])


@pytest.mark.parametrize(("n", "acc", "sfb"), [(16, 8, 8), (64, 32, 8), (128, 64, 8), (192, 96, 16), (256, 128, 16)])
def test_a_pair_with_64_rows_each_halves_n_over_the_lanes(n: int, acc: int, sfb: int) -> None:
    """Where layout B has D, and CuTe's ScaleFactorDuplicated2by2 the factors: counted place by place."""
    places = {(row + 64 * (column >= n // 2), column % (n // 2)) for row in range(64) for column in range(n)}
    assert len(places) == 64 * n
    padded = -(-n // 128) * 128
    words = {
        (line % 32 + 32 * copy + 64 * (line >= padded // 2), line % (padded // 2) // 32 + k * padded // 64)
        for line in range(padded)
        for copy in range(2)
        for k in range(4)
    }
    assert len(words) == padded * 2 * 4
    need = columns(MmaTile(128, n, 256, 2))
    assert (need.stage, need.sfa, need.sfb) == (acc, 16, sfb)
    assert need.stage == max(column for _, column in places) + 1
    assert need.sfb == max(column for _, column in words) + 1
    assert columns(MmaTile(256, n, 256, 2)).sfb == 2 * sfb


def test_the_dsls_sfa_of_a_pair_with_64_rows_each_is_named() -> None:
    mma = MMA.format(m=128, n=128, ctas=2)
    acc = '!cute.memref<f32, tmem, align<16>, "((64,(64,2)),1,1,1):((65536,(1,4194304)),0,0,0)">'
    sfa = '!cute.memref<f8E4M3FN, tmem, align<16>, "((((32,4),4),(16,4)),2,4):((((262144,4),8388608),(0,1)),64,16)">'
    sfb = (
        '!cute.memref<f8E4M3FN, tmem, align<16>, "((((32,2),2,2),(16,4)),1,4):'
        '((((262144,4),16777216,8388608),(0,1)),0,8)">'
    )
    smem = [("k.sA", SMEM.format(rows=64, stage=16384)), ("k.sB", SMEM.format(rows=64, stage=16384))]
    bound = [("k.tiled_mma", mma), *smem, ("k.tCtAcc", acc), ("k.tCtSFB", sfb)]
    found = usage([*bound, ("k.tCtSFA", sfa)])
    assert found.tile == MmaTile(128, 128, 256, 2)
    (said,) = found.disagreements()
    assert said.startswith("k.tCtSFA: 32 columns by layout, 16 by formula (make_tmem_layout_sfa")
    assert not usage([*bound, ("k.tCtSFA", SFA)]).disagreements()


def _problem() -> Problem:
    from pytest_nvfp4.problem import GPUMODE

    return GPUMODE[0]


def test_a_kernels_tensors_are_counted_once_each() -> None:
    found = usage([*values(), ("k.tCtSFA_compact", SFA), ("k.tCtAcc_fake", ACC.format(n=256, stages=1, step=0))])
    assert [(tensor.role, tensor.columns) for tensor in found.tensors] == [("SFA", 16), ("SFB", 16), ("acc", 128)]
    assert (found.total, found.allocation, found.complete) == (160, 256, True)
    assert found.tile == MmaTile(128, 128, 256)
    assert found.formula == columns(MmaTile(128, 128, 256))
    assert not found.disagreements()


def test_beside_a_pairs_mma_one_of_one_cta_only_partitions() -> None:
    pair = ("k.mmas[0]", MMA.format(m=256, n=128, ctas=2))
    found = usage([*values(), pair])
    assert found.tile == MmaTile(256, 128, 256, 2)
    two = usage([*values(), ("k.other", MMA.format(m=128, n=64, ctas=1))])
    assert (two.tile, two.why_no_tile) == (None, "several MMAs are among its values")


def test_accumulators_that_overlap_count_what_they_cover() -> None:
    found = usage(values(n=256, stages=2, step=208, sfb=SFB_WIDE))
    assert found.of("acc") == 464
    assert found.total == 512
    assert not found.disagreements()


def test_a_layout_that_is_not_the_tiles_is_named() -> None:
    assert usage(values(mma_n=64)).disagreements() == ["k.tCtAcc: 128 columns a stage by layout, 64 by formula"]
    wide = usage(values(sfb=SFB_WIDE)).disagreements()
    assert wide == ["k.tCtSFB: 32 columns by layout, 16 by formula"]


def test_names_that_no_rule_knows_are_not_counted_as_known() -> None:
    found = usage([("k.mine", ACC.format(n=128, stages=1, step=0)), ("k.other", SFA)])
    assert not found.tensors
    assert (found.total, found.complete, found.tile) == (128, False, None)
    assert found.why_no_tile == "no MMA is among its values"
    notes = judge("k", [256], found).notes
    assert len(notes) == 1
    assert "no tensor in TMEM has a known name" in notes[0]
    assert judge("k", [256], found, nameless=True).notes == ()


def test_only_a_kernel_whose_language_names_layouts_is_told_to_name_them() -> None:
    code = Code.model_construct(symbol="_Z1fv", source_name=None, library=False, tmem_columns=(256,))
    named = Value.model_construct(name="k.mine", type=ACC.format(n=128, stages=1, step=0))
    (of_cuda,) = judgements(Trace.model_construct(values=(), code=(code,)))
    assert (of_cuda.total, of_cuda.notes, of_cuda.errors) == (256, (), ())
    (of_dsl,) = judgements(Trace.model_construct(values=(named,), code=(code,)))
    assert "no tensor in TMEM has a known name" in of_dsl.notes[0]
    wrong = code.model_copy(update={"tmem_columns": (96,)})
    (too,) = judgements(Trace.model_construct(values=(), code=(wrong,)))
    assert "allocate 128" in too.errors[0]


def test_values_go_to_the_kernel_that_binds_them() -> None:
    both = [("one.tCtAcc", "a"), ("Class.two.tCtAcc", "b"), ("helper.t", "c")]
    assert of_kernel(both, "two", alone=False) == [("Class.two.tCtAcc", "b")]
    assert of_kernel(both, "two", alone=True) == both


@pytest.mark.parametrize(
    ("allocated", "error", "note"),
    [
        ([256], None, None),
        (
            [512],
            None,
            "unless it uses others at computed columns (further stages of the accumulator), 256 are enough, and 2 CTAs",
        ),
        ([128], "acc 128 + SFA 16 + SFB 16 = 160 columns (k.tCtSFA, k.tCtSFB, k.tCtAcc), and allocates 128", None),
        ([], "and allocates none", None),
        ([1024], "it allocates 1024 columns, and an SM has 512", None),
        ([512, 256], "it allocates 512 + 256 = 768 columns", None),
        ([160], "power of two from 32 to 512; allocate 256", None),
        ([None], None, "at run time"),
    ],
)
def test_allocations_are_judged_against_what_the_layouts_cover(
    allocated: list[int | None], error: str | None, note: str | None
) -> None:
    found = judge("k", allocated, usage(values()))
    assert bool(found.errors) == (error is not None)
    assert bool(found.notes) == (note is not None)
    assert error is None or error in " ".join(found.errors)
    assert note is None or note in " ".join(found.notes)


def test_what_cannot_fit_is_not_told_to_allocate_more() -> None:
    (error,) = judge("k", [512], usage(values(n=256, stages=2, step=256, sfb=SFB_WIDE))).errors
    assert "560 columns" in error
    assert "tmem-pack" in error


def test_the_overlap_that_cutlass_uses_is_proved_and_one_subtile_more_is_refuted() -> None:
    # 256 columns of accumulator twice, 48 of scale factors: the second begins 48 columns before the first ends.
    where = placement((0, 208), width=256, subtile=32, others=(("SF", (464, 512)),))
    leads = best_leads(where)
    assert leads == (6, 6)
    proof = prove_disjoint(where, leads)
    assert proof.proved
    assert not any(pipeline_breaks(where, leads, steps=400, seed=seed) for seed in range(20))
    for more in ((7, 6), (6, 7)):
        refuted = prove_disjoint(where, more)
        assert refuted.clash is not None
        assert "share columns" in str(refuted.clash)
        assert any(pipeline_breaks(where, more, steps=400, seed=seed) for seed in range(20))


def test_scale_factors_in_the_way_are_found() -> None:
    where = placement((0, 256), width=256, subtile=32, others=(("SFA", (500, 516)),))
    clash = prove_disjoint(where, best_leads(where)).clash
    assert clash is not None
    assert "SFA" in (clash.one, clash.other)
    assert clash.shared == (500, 512)


def test_reading_in_the_wrong_order_loses_the_lead() -> None:
    forwards = tuple(range(8))
    good = placement((0, 208), width=256, subtile=32)
    bad = Placement((0, 208), 256, 32, (forwards, forwards))
    assert min(best_leads(good)) == 6
    assert min(best_leads(bad)) == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 4), st.integers(1, 6), st.integers(1, 6), st.data())
def test_the_lead_is_proved_and_the_next_is_not(count: int, subtiles: int, subtile: int, data: st.DataObject) -> None:
    width = subtiles * subtile
    starts = [0]
    for _ in range(count - 1):
        starts.append(starts[-1] + data.draw(st.integers(1, width)))
    where = placement(tuple(data.draw(st.permutations(starts))), width=width, subtile=subtile)
    leads = best_leads(where)
    assert prove_disjoint(where, leads).proved
    assert not pipeline_breaks(where, leads, steps=200, seed=data.draw(st.integers(0, 99)))
    at = data.draw(st.integers(0, count - 1))
    more = tuple(lead + (place == at) for place, lead in enumerate(leads))
    # More room for one can be out of reach if the others hold the pipeline back; with none held back it is not.
    free = tuple(10_000 if place != at else lead for place, lead in enumerate(more))
    assert not prove_disjoint(where, free).proved


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 3), st.integers(1, 4), st.data())
def test_no_order_of_reading_gives_a_larger_lead(count: int, subtiles: int, data: st.DataObject) -> None:
    starts = [0]
    for _ in range(count - 1):
        starts.append(starts[-1] + data.draw(st.integers(1, subtiles)))
    own = best_order(tuple(starts), width=subtiles, subtile=1)
    best = min(best_leads(Placement(tuple(starts), subtiles, 1, own)))
    for orders in itertools.product(itertools.permutations(range(subtiles)), repeat=count):
        if data.draw(st.integers(0, 20)) and len(starts) == 3 and subtiles == 4:
            continue
        assert min(best_leads(Placement(tuple(starts), subtiles, 1, orders))) <= best


def test_placements_and_leads_that_mean_nothing_are_refused() -> None:
    with pytest.raises(TmemError, match="read order"):
        Placement((0,), 8, 4, ())
    with pytest.raises(TmemError, match="name the 2 subtiles once"):
        Placement((0,), 8, 4, ((0, 0),))
    with pytest.raises(TmemError, match="two have the same name"):
        placement((0,), width=8, subtile=4, others=(("S", (8, 12)), ("S", (10, 14))))
    with pytest.raises(TmemError, match="none negative"):
        prove_disjoint(placement((0,), width=8, subtile=4), (-1,))
