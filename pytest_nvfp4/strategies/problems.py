"""Strategies of grouped problems: legal for a kernel's tile, with many edge cases.

Tile maps fail on groups without rows (their prefix sums are equal), one row, one row less or more than a tile, one
group with all of the work, and many groups with little work. Numbers shrink to the smallest that still fail and lists
to the fewest groups, so a failure shows the smallest failing group list.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_nvfp4.problem import GPUMODE_SEED, Group, Problem

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def rows(*, tile_m: int = 128, most: int = 384, least: int = 0) -> SearchStrategy[int]:
    """Draw numbers of rows from ``least`` to ``most``: whole tiles, and a rest that is an edge case two times of three.

    Edge cases are 0, 1, 2, half a tile and one less than a tile. The rest is one integer, whose values beyond a tile
    represent the edge cases: so both parts shrink through all smaller numbers, whole tiles first (one whole tile counts
    as smaller than a large rest).
    """
    from hypothesis import strategies as st

    edges = sorted({0, 1, min(2, tile_m - 1), tile_m // 2, tile_m - 1})

    def number(whole: int, drawn: int) -> int:
        rest = drawn if drawn < tile_m else edges[(drawn - tile_m) % len(edges)]
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
    """Draw groups with any m, and n and k that are multiples of a step; the defaults are GPU MODE's contract."""
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
    """Draw group lists for a kernel with this tile: arbitrary ones, and lists of many tiny groups.

    Args:
        tile_m: Rows of the kernel's tile.
        n_step: Divisor of n.
        k_step: Divisor of k.
        most_groups: Maximum number of groups; twice as many if they are tiny.
        most_m: Maximum number of rows of a group.
        most_n_steps: Maximum n of a group, in steps.
        most_k_steps: Maximum k of a group, in steps.
        least_m: Minimum number of rows; 1 for kernels that do not support groups without rows.
        most_work: Maximum number of tiles times steps of k, to bound a simulation; None for no bound.
        seed: Seed of the inputs.
    """
    from hypothesis import strategies as st

    group_of = partial(groups, tile_m=tile_m, n_step=n_step, k_step=k_step, least_m=least_m)
    general = group_of(most_m=most_m, most_n_steps=most_n_steps, most_k_steps=most_k_steps)
    tiny = group_of(most_m=max(2, least_m), most_n_steps=1, most_k_steps=1)

    @st.composite
    def draw_problem(draw: DrawFn) -> Problem:
        # Both kinds are lists of groups, so a list of tiny groups can shrink to one of general groups.
        many = draw(st.integers(0, 4)) == 4
        drawn = draw(
            st.lists(tiny, min_size=1, max_size=2 * most_groups)
            if many
            else st.lists(general, min_size=1, max_size=most_groups)
        )
        chosen: list[Group] = []
        left = most_work
        for group in drawn:
            work = -(-group.m // tile_m) * (group.n // n_step) * (group.k // k_step)
            if left is not None:
                if chosen and work > left:
                    break
                left -= work
            chosen.append(group)
        return Problem("+".join(map(str, chosen)), tuple(chosen), seed)

    return draw_problem()


def imbalance(problem: Problem, *, tile_m: int = 128, tile_n: int = 128) -> float:
    """Return the tiles of the largest group over the mean: 1 if all groups have equally many, or there are none."""
    tiles = [-(-group.m // tile_m) * -(-group.n // tile_n) for group in problem.groups]
    return max(tiles) * len(tiles) / sum(tiles) if any(tiles) else 1.0


def target_imbalance(problem: Problem, *, tile_m: int = 128, tile_n: int = 128) -> None:
    """Make Hypothesis search for problems with more imbalance; only within a test of Hypothesis."""
    import hypothesis

    hypothesis.target(imbalance(problem, tile_m=tile_m, tile_n=tile_n), label="tile imbalance")
