"""CTA maps without formulas, and those of DSL sources as plain Python."""

from __future__ import annotations

import ast
import itertools
from types import SimpleNamespace
from typing import Any


def walked(counts: list[tuple[int, int]], *, n_major: bool = False) -> list[tuple[int, int, int]]:
    """The tiles in launch order, without a formula."""
    return [
        (group, x, y)
        for group, (m, n) in enumerate(counts)
        for x, y in (itertools.product(range(m), range(n)) if n_major else ((x, y) for y in range(n) for x in range(m)))
    ]


def functions(source: str, *names: str) -> list[Any]:
    """Functions of a DSL source as plain Python."""
    scope = {"Int32": int, "cute": SimpleNamespace(jit=lambda function: function, Tensor=None), "cutlass": None}
    for node in ast.parse(source).body:
        constant = isinstance(node, ast.Assign) and "TILE_M" in ast.dump(node.targets[0])
        if constant or (isinstance(node, ast.FunctionDef) and node.name in names):
            exec(compile(ast.Module([node], []), "<dsl>", "exec"), scope)
    return [scope[name] for name in names]


class Table:
    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self.rows = rows

    def __getitem__(self, index: tuple[int, int]) -> int:
        row, column = index
        assert 0 <= row < len(self.rows), f"row {row} is outside the table"
        return self.rows[row][column]


def late_scan(first: list[int], b: int, _: int) -> int:
    group = 0
    while group + 2 < len(first) and b > first[group + 1]:
        group += 1
    return group
