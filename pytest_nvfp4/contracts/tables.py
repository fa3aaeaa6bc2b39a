"""Tables of official problems."""

from __future__ import annotations

from pytest_nvfp4.problem import Group, Problem


def cases(prefix: str, contract: str, *sizes: tuple[int, ...]) -> tuple[Problem, ...]:
    """Return problems ``prefix-0``, ``prefix-1``, ... of one group each, ``(m, n, k)`` or ``(m, n, k, l)``."""
    return tuple(Problem(f"{prefix}-{index}", (Group(*size),), contract=contract) for index, size in enumerate(sizes))
