"""Claims on TMEM: the columns of tiles, and that accumulators and scale factors do not overlap while they are live."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pytest_nvfp4.layout.offsets import offset_array
from pytest_nvfp4.proof.scale_operand import LANE, explicit_operand
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Look, Method
from pytest_nvfp4.tmem.columns import COLUMNS, Tile, columns, most_stages
from pytest_nvfp4.tmem.phases import Placement, best_leads, best_order, prove_disjoint

SUBTILE = 32
"""Columns that an epilogue reads at once in the pipelines that are looked at."""


def claims() -> tuple[Claim, ...]:
    """The claims on TMEM."""
    return (_columns(), _side_by_side(), _overlapped())


def tiles() -> Iterator[Tile]:
    """One- and two-CTA tiles of 64 to 256 columns, 256 and 512 of k, with as many accumulators as fit."""
    for ctas in (1, 2):
        for n in (64, 128, 192, 256):
            for k in (256, 512):
                one = Tile(128 * ctas, n, k, ctas=ctas)
                for stages in range(1, most_stages(one) + 1):
                    yield Tile(128 * ctas, n, k, ctas=ctas, stages=stages)


# --- columns ------------------------------------------------------------------------------------------------------


def look_at_columns(*, ignore_k: bool = False, ignore_vector: bool = False) -> Look:
    """Whether the formula's columns of scale factors are those that the layouts span.

    Wrong with ``ignore_k`` (as for 256 of k) or ``ignore_vector`` (as for 16 elements to a factor).
    """
    looked = 0
    for ctas, n, k, vector in itertools.product((1, 2), (64, 128, 192, 256), (256, 512), (16, 32)):
        tile = Tile(128 * ctas, n, k, ctas=ctas, sf_vector=vector)
        found = columns(replace(tile, k=256 if ignore_k else k, sf_vector=16 if ignore_vector else vector))
        for name, rows, counted in (("SFA", tile.m // ctas, found.sfa), ("SFB", n, found.sfb)):
            looked += 1
            offsets = offset_array(explicit_operand(rows=rows, tile_k=k, vector=vector).tmem)
            spanned = int((offsets % LANE).max()) // 4 + 1
            if spanned != counted:
                return f"tile {tile}, V = {vector}: the layout of {name} spans {spanned} columns, not {counted}", looked
    return None, looked


def _columns() -> Claim:
    return Claim(
        name="tmem.columns",
        words="The columns that are counted for scale factors by formula are those that their TMEM layouts span, for "
        "tiles of 64 to 256 columns, 256 and 512 of k, 16 and 32 elements to a factor, one and two CTAs with 128 rows "
        "each.",
        formulas=("rows / 32 * k / (4 V) columns for SFA, ceil(N / 128) * 4 * k / (4 V) for SFB",),
        method=Method.EXHAUSTIVE,
        check=Cases(look_at_columns, "layouts"),
        preconditions=("scale-factors.helpers proves the layouts to be those of the DSL",),
        controls=(
            Control("the columns do not grow with k", Cases(lambda: look_at_columns(ignore_k=True), "layouts")),
            Control(
                "the columns do not shrink with the elements to a factor",
                Cases(lambda: look_at_columns(ignore_vector=True), "layouts"),
            ),
        ),
    )


# --- live segments ------------------------------------------------------------------------------------------------


def side_by_side(tile: Tile) -> Placement:
    """Accumulators from column 0 on, then SFA, then SFB."""
    found = columns(tile)
    order = tuple(range(-(-found.stage // SUBTILE)))
    after = found.acc + found.sfa
    return Placement(
        stages=tuple(range(0, found.acc, found.stage)),
        width=found.stage,
        subtile=SUBTILE,
        order=(order,) * found.stages,
        others=(("SFA", (found.acc, after)), ("SFB", (after, after + found.sfb))),
    )


def look_at_side_by_side(*, early: int = 0, shift: int = 0) -> Look:
    """Whether no live segments overlap in any phase; wrong with MMAs ``early`` or scale factors ``shift`` lower."""
    phases = 0
    for tile in tiles():
        whole = side_by_side(tile)
        moved = tuple((name, (first - shift, end - shift)) for name, (first, end) in whole.others)
        placement = Placement(whole.stages, whole.width, whole.subtile, whole.order, moved)
        if max(end for _, (_, end) in moved) > COLUMNS:
            return f"tile {tile}: more than {COLUMNS} columns", phases
        result = prove_disjoint(placement, [lead + early for lead in best_leads(placement)])
        phases += result.phases
        if result.clash is not None:
            return f"tile {tile}: {result.clash}", phases
    return None, phases


def _side_by_side() -> Claim:
    return Claim(
        name="tmem.side-by-side",
        words="With accumulators, SFA and SFB side by side, for every such tile with as many accumulators as fit, no "
        "two live segments overlap in any phase that MMA and epilogue can reach, whichever is faster.",
        formulas=("live(phase): pairwise disjoint columns, for every reachable phase",),
        method=Method.EXHAUSTIVE,
        check=Cases(look_at_side_by_side, "phases"),
        preconditions=(
            "an MMA waits until its own accumulator is read; the epilogue reads tiles in order, 32 columns at once",
            "scale factors count as live at all times",
        ),
        controls=(
            Control("the MMA starts one subtile early", Cases(lambda: look_at_side_by_side(early=1), "phases")),
            Control("scale factors 16 columns too low", Cases(lambda: look_at_side_by_side(shift=16), "phases")),
        ),
    )


def overlapped() -> Placement:
    """Two accumulators of 256 columns in 512 with the scale factors of a 128x256x256 tile behind the first."""
    found = columns(Tile(128, 256, 256))
    scales = found.sfa + found.sfb
    stages = (0, 256 - scales)
    return Placement(
        stages=stages,
        width=256,
        subtile=16,
        order=best_order(stages, width=256, subtile=16),
        others=(("SFA", (512 - scales, 512 - found.sfb)), ("SFB", (512 - found.sfb, 512))),
    )


def look_at_overlapped(*, early: int = 0) -> Look:
    """Whether two accumulators that share columns are never live in the same ones; wrong with MMAs ``early``."""
    placement = overlapped()
    result = prove_disjoint(placement, [lead + early for lead in best_leads(placement)])
    return (None if result.clash is None else str(result.clash)), result.phases


def _overlapped() -> Claim:
    return Claim(
        name="tmem.overlapped",
        words="Two accumulators of 256 columns and the scale factors of a 128x256x256 tile fit 512 columns: the second "
        "accumulator begins 48 columns inside the first, and an MMA that waits for what it covers to be read never "
        "writes a live column.",
        formulas=("live(phase): pairwise disjoint columns, for every reachable phase",),
        method=Method.EXHAUSTIVE,
        check=Cases(look_at_overlapped, "phases"),
        preconditions=("the epilogue reads 16 columns at once, in the order that frees the shared ones first",),
        controls=(Control("the MMA starts one subtile early", Cases(lambda: look_at_overlapped(early=1), "phases")),),
    )
