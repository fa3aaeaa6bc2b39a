"""Scale factors and accumulators that overlap in TMEM, and uses of columns one after another that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from tests.sim.tcgen05.harness import make_ctas

CP_A, CP_B, MMA, LD = 1, 2, 3, 4
Steps = Callable[[ColumnUse, Warp], None]


def reports(steps: Steps) -> list[str]:
    [cta] = make_ctas()
    steps(cta.unit(ColumnUse), cta.warps[0])
    found: list[tuple[str, str]] = cta.launch.reports  # type: ignore[attr-defined]
    assert {kind for kind, _ in found} <= {"tmem-overlap"}
    return [message for _, message in found]


def copy(use: ColumnUse, at: int, first: int, blocks: int = 4) -> None:
    for block in range(blocks):
        use.copied(first + 4 * block, 4, at, scales=True)


def tile(
    use: ColumnUse, w: Warp, *, d: int = 0, sfa: int = 128, sfb: int = 144, blocks: int = 4, adds: bool = False
) -> None:
    """A tile of k: both copies, then its MMAs."""
    copy(use, CP_A, sfa, blocks)
    copy(use, CP_B, sfb, blocks)
    for block in range(blocks):
        use.scaled(w, MMA, "SFA", sfa + 4 * block, 4, 0, same=False)
        use.scaled(w, MMA, "SFB", sfb + 4 * block, 4, 0, same=False)
        use.accumulated(w, MMA, d, 128, adds=adds or block > 0)


def load(use: ColumnUse, w: Warp, first: int, count: int = 128) -> None:
    for column in range(first, first + count, 32):
        use.loaded(w, LD, column, 32)


def side_by_side(use: ColumnUse, w: Warp) -> None:
    for _ in range(2):
        tile(use, w)
        tile(use, w, adds=True)
        load(use, w, 0)


def dead_columns_used_again(use: ColumnUse, w: Warp) -> None:
    """SFA's columns become SFB's, an accumulator's become scale factors', and the reverse, each after its last use."""
    tile(use, w, d=0, sfa=128, sfb=144)
    tile(use, w, d=0, sfa=144, sfb=128, adds=True)
    load(use, w, 0)
    tile(use, w, d=256, sfa=0, sfb=16)
    load(use, w, 256)
    tile(use, w, d=0, sfa=256, sfb=300)


def copied_for_each_k_block(use: ColumnUse, w: Warp) -> None:
    """SFB at SFA + 4, with a copy before each MMA."""
    for _ in range(3):
        tile(use, w, sfa=128, sfb=132, blocks=1)


def of_half_columns(use: ColumnUse, w: Warp) -> None:
    """N = 64: an MMA reads the first or the last two of four columns."""
    copy(use, CP_A, 128, 1)
    copy(use, CP_B, 132, 1)
    for half in (132, 134):
        use.scaled(w, MMA, "SFA", 128, 4, 0, same=False)
        use.scaled(w, MMA, "SFB", half, 2, 0, same=False)


def one_matrix(use: ColumnUse, w: Warp) -> None:
    copy(use, CP_A, 128, 1)
    use.scaled(w, MMA, "SFA", 128, 4, 0, same=True)
    use.scaled(w, MMA, "SFB", 128, 4, 0, same=True)


def other_bytes(use: ColumnUse, w: Warp) -> None:
    """Two factors to a row: SFA in bytes 0 and 1 of a column, SFB in 2 and 3."""
    copy(use, CP_A, 128, 1)
    use.scaled(w, MMA, "SFA", 128, 4, 0, same=False)
    use.scaled(w, MMA, "SFB", 128, 4, 2, same=False)


def initial_accumulator(use: ColumnUse, w: Warp) -> None:
    """Copied or stored: a bias."""
    use.copied(0, 128, CP_A, scales=False)
    use.accumulated(w, MMA, 0, 128, adds=True)
    load(use, w, 0)


def split_in_n(use: ColumnUse, w: Warp) -> None:
    use.accumulated(w, MMA, 0, 256, adds=False)
    use.accumulated(w, MMA, 0, 128, adds=True)
    use.accumulated(w, MMA, 128, 128, adds=True)
    use.accumulated(w, MMA, 0, 256, adds=True)
    load(use, w, 0, 256)


def shared_columns_of_two_accumulators(use: ColumnUse, w: Warp) -> None:
    """The second begins inside the first, once those columns have been loaded."""
    tile(use, w, d=0, sfa=400, sfb=416)
    load(use, w, 96, 32)
    tile(use, w, d=96, sfa=400, sfb=416)
    load(use, w, 0, 96)
    load(use, w, 96)
    tile(use, w, d=0, sfa=400, sfb=416)


@pytest.mark.parametrize(
    "steps",
    [
        side_by_side, dead_columns_used_again, copied_for_each_k_block, of_half_columns, one_matrix, other_bytes,
        initial_accumulator, split_in_n, shared_columns_of_two_accumulators,
    ],
)  # fmt: skip
def test_uses_one_after_another_do_not_overlap(steps: Steps) -> None:
    assert reports(steps) == []


def sfb_over_sfa(use: ColumnUse, w: Warp) -> None:
    tile(use, w, sfb=136)


def one_field(use: ColumnUse, w: Warp) -> None:
    tile(use, w, sfa=144)


def sfa_in_the_other_accumulator(use: ColumnUse, w: Warp) -> None:
    tile(use, w, d=0, sfa=256, sfb=400)
    tile(use, w, d=256, sfa=120, sfb=416)
    load(use, w, 0)


def accumulator_over_scales(use: ColumnUse, w: Warp) -> None:
    copy(use, CP_A, 128)
    use.accumulated(w, MMA, 64, 128, adds=False)
    use.scaled(w, MMA + 10, "SFA", 128, 4, 0, same=False)


def sum_over_scales(use: ColumnUse, w: Warp) -> None:
    use.accumulated(w, MMA, 0, 128, adds=False)
    copy(use, CP_B, 120)
    use.accumulated(w, MMA, 0, 128, adds=True)


def sum_over_another_accumulator(use: ColumnUse, w: Warp) -> None:
    use.accumulated(w, MMA, 0, 128, adds=False)
    use.accumulated(w, MMA + 1, 64, 128, adds=False)
    use.accumulated(w, MMA, 0, 128, adds=True)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (sfb_over_sfa, "TMEM columns [136, 140) are the SFA operand of the MMA at instruction 3 and its SFB operand: "
         "instruction 2 copied them over what instruction 1 had copied there and no MMA had read"),
        (one_field, "columns [144, 148) are the SFB operand of the MMA at instruction 3 and its SFA operand"),
        (sfa_in_the_other_accumulator, "instruction 1 copies scale factors to TMEM columns [120, 128), over the "
         "accumulator of the MMA at instruction 3, which instruction 4 loads afterwards"),
        (accumulator_over_scales, "the MMA at instruction 13 reads TMEM columns [128, 132) as SFA, where the MMA at "
         "instruction 3 has written its accumulator"),
        (sum_over_scales, "adds to its accumulator in TMEM columns [0, 128), but instruction 2 has written scale "
         "factors to columns [120, 128) of it"),
        (sum_over_another_accumulator, "instruction 4 has written another accumulator to columns [64, 128) of it"),
    ],
)  # fmt: skip
def test_overlaps_are_reported(steps: Steps, says: str) -> None:
    found = reports(steps)
    assert found
    assert says in found[0], found
