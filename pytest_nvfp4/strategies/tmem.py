"""Strategies of tiles of block-scaled MMAs, and of lists of TMEM segments that may or may not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.tmem.columns import COLUMNS, MmaTile
from pytest_nvfp4.tmem.packing import Packing, PackingRequest, Segment

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def tiles(*, most_stages: int = 4, ctas: tuple[int, ...] = (1, 2)) -> SearchStrategy[MmaTile]:
    """Draw tiles of block-scaled MMAs over one CTA or a pair (also with M = 128); not all of them fit TMEM."""
    from hypothesis import strategies as st

    @st.composite
    def draw_tile(draw: DrawFn) -> MmaTile:
        count = draw(st.sampled_from(ctas))
        halved = count == 2 and draw(st.integers(0, 3)) == 3
        return MmaTile(
            m=128 if halved else 128 * count * draw(st.integers(1, 2)),
            n=8 * count * draw(st.integers(1, 32 // count)),
            k=64 * draw(st.integers(1, 8)),
            ctas=count,
            stages=draw(st.integers(1, most_stages)),
            sf_vector=draw(st.sampled_from((16, 32))),
        )

    return draw_tile()


def segments(*, most_columns: int = COLUMNS, name: str = "segment") -> SearchStrategy[Segment]:
    """Draw segments of 1 to ``most_columns`` columns, aligned to a power of two up to 32."""
    from hypothesis import strategies as st

    return st.builds(Segment, st.just(name), st.integers(1, most_columns), st.sampled_from([1, 1, 2, 4, 8, 16, 32]))


def segment_lists(*, most: int = 4, most_columns: int = 128) -> SearchStrategy[tuple[Segment, ...]]:
    """Draw up to ``most`` segments with unique names: ``s0``, ``s1``, ..."""
    from hypothesis import strategies as st

    return st.lists(segments(most_columns=most_columns), max_size=most).map(
        lambda drawn: tuple(Segment(f"s{at}", segment.columns, segment.align) for at, segment in enumerate(drawn))
    )


def tmem_requests(
    *, most_stages: int = 3, most_others: int = 3, most_columns: int = 256
) -> SearchStrategy[PackingRequest]:
    """Draw packing requests: accumulators, other segments, and the columns that the epilogue reads at once."""
    from hypothesis import strategies as st

    @st.composite
    def draw_request(draw: DrawFn) -> PackingRequest:
        width = draw(st.integers(1, most_columns))
        accumulator = Segment("acc", width, draw(st.sampled_from([1, 1, 4, 32])))
        return PackingRequest(
            accumulator,
            draw(st.integers(1, most_stages)),
            draw(segment_lists(most=most_others, most_columns=max(1, most_columns // 4))),
            subtile=draw(st.integers(-(-width // 8), width)),
            capacity=draw(st.sampled_from([512, 512, 256, 128])),
        )

    return draw_request()


def target_slack(packing: Packing) -> None:
    """Make Hypothesis search for packings with less slack; only within a test of Hypothesis."""
    import hypothesis

    hypothesis.target(-float(abs(packing.slack)), label="TMEM slack")
