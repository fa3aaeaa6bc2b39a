"""Claims on TMEM: columns of MMA tiles, and disjointness of live accumulators and scale factors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pytest_nvfp4.layout.offsets import offset_array
from pytest_nvfp4.proof.scale_operand import LANE, explicit_operand
from pytest_nvfp4.proof.statement import CaseResult, Claim, Mistake, claim_by_cases, first_failure
from pytest_nvfp4.tmem.columns import COLUMNS, MmaTile, columns, most_stages
from pytest_nvfp4.tmem.phases import Placement, best_leads, best_order, prove_disjoint

SUBTILE = 32
"""Columns that the epilogue reads at once in these pipelines."""


def claims() -> tuple[Claim, ...]:
    """Return the claims on TMEM."""
    return (_columns(), _side_by_side(), _overlapped())


def tiles() -> Iterator[MmaTile]:
    """Iterate over tiles of 64 to 256 columns, one and two CTAs, K = 256 and 512, with 1 .. most stages."""
    for ctas, n, k in itertools.product((1, 2), (64, 128, 192, 256), (256, 512)):
        tile = MmaTile(128 * ctas, n, k, ctas=ctas)
        yield from (replace(tile, stages=stages) for stages in range(1, most_stages(tile) + 1))


# --- columns ------------------------------------------------------------------------------------------------------


def check_columns(*, ignore_k: bool = False, ignore_vector: bool = False) -> CaseResult:
    """Check that the formula's columns of scale factors are those that the layouts span.

    Wrong with ``ignore_k`` (counts as for K = 256) or ``ignore_vector`` (as for 16 elements to a factor).
    """
    checked = 0
    for ctas, n, k, vector in itertools.product((1, 2), (64, 128, 192, 256), (256, 512), (16, 32)):
        tile = MmaTile(128 * ctas, n, k, ctas=ctas)
        need = columns(replace(tile, k=256 if ignore_k else k, sf_vector=16 if ignore_vector else vector))
        for name, rows, counted in (("SFA", tile.m // ctas, need.sfa), ("SFB", n, need.sfb)):
            checked += 1
            offsets = offset_array(explicit_operand(rows=rows, tile_k=k, vector=vector).tmem)
            spanned = int((offsets % LANE).max()) // 4 + 1
            if spanned != counted:
                wrong = f"tile {tile}, V = {vector}: the layout of {name} spans {spanned} columns, not {counted}"
                return CaseResult(wrong, checked)
    return CaseResult(None, checked)


def _columns() -> Claim:
    return claim_by_cases(
        "tmem.columns",
        "The columns of scale factors counted by formula are those that their TMEM layouts span, for tiles of 64 to "
        "256 columns, 256 and 512 of k, 16 and 32 elements to a factor, one and two CTAs with 128 rows each.",
        check_columns,
        "layouts",
        formulas=("rows / 32 * k / (4 V) columns for SFA, ceil(N / 128) * 4 * k / (4 V) for SFB",),
        given=("scale-factors.helpers proves the layouts to be those of the DSL",),
        controls=(
            Mistake("the columns do not grow with k", {"ignore_k": True}),
            Mistake("the columns do not shrink with the elements to a factor", {"ignore_vector": True}),
        ),
    )


# --- live segments ------------------------------------------------------------------------------------------------


def side_by_side(tile: MmaTile, *, shift: int = 0) -> Placement:
    """Place accumulators from column 0 on, then SFA, then SFB; with ``shift``, factors that many columns lower."""
    need = columns(tile)
    order = tuple(range(-(-need.stage // SUBTILE)))
    first, middle = need.acc - shift, need.acc - shift + need.sfa
    return Placement(
        stages=tuple(range(0, need.acc, need.stage)),
        width=need.stage,
        subtile=SUBTILE,
        order=(order,) * need.stages,
        others=(("SFA", (first, middle)), ("SFB", (middle, middle + need.sfb))),
    )


def _disjoint(placement: Placement, *, early: int, prefix: str = "") -> CaseResult:
    """Prove a placement with each MMA ``early`` subtiles before its safe start."""
    result = prove_disjoint(placement, [lead + early for lead in best_leads(placement)])
    return CaseResult(None if result.clash is None else f"{prefix}{result.clash}", result.phases)


def check_side_by_side(*, early: int = 0, shift: int = 0) -> CaseResult:
    """Check every phase for overlaps; wrong with MMAs ``early`` or scale factors ``shift`` columns lower."""

    def results() -> Iterator[CaseResult]:
        for tile in tiles():
            placement = side_by_side(tile, shift=shift)
            if max(end for _, (_, end) in placement.others) > COLUMNS:
                yield CaseResult(f"tile {tile}: more than {COLUMNS} columns", 0)
            yield _disjoint(placement, early=early, prefix=f"tile {tile}: ")

    return first_failure(results())


def _side_by_side() -> Claim:
    return claim_by_cases(
        "tmem.side-by-side",
        "With accumulators, SFA and SFB side by side, for every such tile with as many accumulators as fit, no two "
        "live segments overlap in any phase that MMA and epilogue can reach, whichever is faster.",
        check_side_by_side,
        "phases",
        formulas=("live(phase): pairwise disjoint columns, for every reachable phase",),
        given=(
            "an MMA waits until its own accumulator is read; the epilogue reads tiles in order, 32 columns at once",
            "scale factors count as live at all times",
        ),
        controls=(
            Mistake("the MMA starts one subtile early", {"early": 1}),
            Mistake("scale factors 16 columns too low", {"shift": 16}),
        ),
    )


def overlapped() -> Placement:
    """Place two accumulators of 256 columns in 512 with the scale factors of a 128x256x256 tile behind the first."""
    need = columns(MmaTile(128, 256, 256))
    scales = need.sfa + need.sfb
    stages = (0, 256 - scales)
    return Placement(
        stages=stages,
        width=256,
        subtile=16,
        order=best_order(stages, width=256, subtile=16),
        others=(("SFA", (512 - scales, 512 - need.sfb)), ("SFB", (512 - need.sfb, 512))),
    )


def _overlapped() -> Claim:
    return claim_by_cases(
        "tmem.overlapped",
        "Two accumulators of 256 columns and the scale factors of a 128x256x256 tile fit 512 columns: the second "
        "accumulator begins 48 columns inside the first, and an MMA that waits for the epilogue to read the columns it "
        "overwrites never writes a live column.",
        lambda *, early=0: _disjoint(overlapped(), early=early),
        "phases",
        formulas=("live(phase): pairwise disjoint columns, for every reachable phase",),
        given=("the epilogue reads 16 columns at once, in the order that frees the shared ones first",),
        controls=(Mistake("the MMA starts one subtile early", {"early": 1}),),
    )
