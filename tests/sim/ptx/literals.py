"""Constant expressions and their values."""

from __future__ import annotations

from hypothesis import strategies as st


def trees(depth: int) -> st.SearchStrategy[tuple[str, int]]:
    """Expressions as text and the value that Python gives them, all within 64 signed bits."""
    leaf = st.integers(0, 1000).map(lambda value: (str(value), value))
    if not depth:
        return leaf
    below = trees(depth - 1)

    def join(parts: tuple[tuple[str, int], str, tuple[str, int]]) -> tuple[str, int]:
        (left, a), operator, (right, b) = parts
        value = {"+": a + b, "-": a - b, "*": a * b, "<": int(a < b), "==": int(a == b), ">=": int(a >= b)}[operator]
        return f"({left}){operator} ({right})", value

    return st.one_of(leaf, below.map(lambda part: (f"-({part[0]})", -part[1])), st.tuples(
        below, st.sampled_from(["+", "-", "*", "<", "==", ">="]), below).map(join))  # fmt: skip
