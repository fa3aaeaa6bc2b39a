"""Grouped problems: legal for a kernel's tile, and as awkward as they may be.

What breaks a tile map: groups without rows (their prefix sums are equal), one row, one row less or more than a tile,
one group that is all of the work, many that are nearly none. Numbers shrink to the smallest that still fail and lists
to the fewest groups, so that a failure shows the smallest failing group list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.problem import GPUMODE_SEED, Group, Problem

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def rows(*, tile_m: int = 128, most: int = 384, least: int = 0) -> SearchStrategy[int]:
    """Numbers of rows from ``least`` to ``most``: whole tiles, and a rest that is awkward two times of three.

    Awkward are 0, 1, 2, half a tile and one less than a tile. The rest is one integer, of which those beyond a tile
    stand for the awkward ones: so both parts shrink through all smaller numbers, whole tiles first (one whole tile
    counts as smaller than a large rest).
    """
    from hypothesis import strategies as st

    awkward = sorted({0, 1, min(2, tile_m - 1), tile_m // 2, tile_m - 1})

    def number(whole: int, drawn: int) -> int:
        rest = drawn if drawn < tile_m else awkward[(drawn - tile_m) % len(awkward)]
        return max(least, min(most, whole * tile_m + rest))

    return st.builds(number, st.integers(0, most // tile_m), st.integers(0, 3 * tile_m - 1))


def groups(
    *,
    tile_m: int = 128,
    n_step: int = 128,
    k_step: int = 256,
    most_m: int = 384,
    most_n_steps: int = 3,
    most_k_steps: int = 2,
    least_m: int = 0,
) -> SearchStrategy[Group]:
    """One group: m free, n and k multiples of a step, as GPU MODE's contract has them unless told otherwise."""
    from hypothesis import strategies as st

    return st.builds(
        lambda m, n, k: Group(m, n * n_step, k * k_step),
        rows(tile_m=tile_m, most=most_m, least=least_m),
        st.integers(1, most_n_steps),
        st.integers(1, most_k_steps),
    )


def problems(
    *,
    tile_m: int = 128,
    n_step: int = 128,
    k_step: int = 256,
    most_groups: int = 6,
    most_m: int = 384,
    most_n_steps: int = 3,
    most_k_steps: int = 2,
    least_m: int = 0,
    most_work: int | None = None,
    seed: int = GPUMODE_SEED,
) -> SearchStrategy[Problem]:
    """Group lists of a kernel with this tile: any, and those of many groups that are nearly nothing.

    Args:
        tile_m: Rows of the kernel's tile.
        n_step, k_step: What n and k are multiples of.
        most_groups: Most groups of a list; twice as many of the tiny ones.
        most_m, most_n_steps, most_k_steps: Bounds of one group.
        least_m: 1 for kernels that need not take groups without rows.
        most_work: Most tiles times steps of k of a list, for the sake of a simulator: further groups are left out.
        seed: Of the inputs.
    """
    from hypothesis import strategies as st

    one = groups(
        tile_m=tile_m,
        n_step=n_step,
        k_step=k_step,
        most_m=most_m,
        most_n_steps=most_n_steps,
        most_k_steps=most_k_steps,
        least_m=least_m,
    )
    tiny = groups(
        tile_m=tile_m,
        n_step=n_step,
        k_step=k_step,
        most_m=max(2, least_m),
        most_n_steps=1,
        most_k_steps=1,
        least_m=least_m,
    )

    @st.composite
    def draw_problem(draw: DrawFn) -> Problem:
        # A single list, so that no alternative stands in the way of shrinking: a tiny group is a group too.
        many = draw(st.integers(0, 4)) == 4
        drawn = draw(
            st.lists(tiny, min_size=1, max_size=2 * most_groups)
            if many
            else st.lists(one, min_size=1, max_size=most_groups)
        )
        kept: list[Group] = []
        left = most_work
        for group in drawn:
            work = -(-group.m // tile_m) * (group.n // n_step) * (group.k // k_step)
            if left is not None:
                if kept and work > left:
                    break
                left -= work
            kept.append(group)
        return Problem("+".join(map(str, kept)), tuple(kept), seed)

    return draw_problem()


def imbalance(problem: Problem, *, tile_m: int = 128, tile_n: int = 128) -> float:
    """The tiles of the largest group times the number of groups, over all tiles: 1 where all groups have as many.

    A problem without tiles has 1.
    """
    tiles = [-(-group.m // tile_m) * -(-group.n // tile_n) for group in problem.groups]
    return max(tiles) * len(tiles) / sum(tiles) if any(tiles) else 1.0


def target_imbalance(problem: Problem, *, tile_m: int = 128, tile_n: int = 128) -> None:
    """Have Hypothesis look for problems with more imbalance; within a test of Hypothesis."""
    import hypothesis

    hypothesis.target(imbalance(problem, tile_m=tile_m, tile_n=tile_n), label="tile imbalance")
