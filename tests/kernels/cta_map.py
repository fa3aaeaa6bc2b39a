"""The CTA map and the host code of ``steps/map_updates.py``, run as plain Python."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.kernels.compiled import FOLDER

KERNEL = FOLDER / "steps" / "map_updates.py"


def load(*, edit: Callable[[str], str] = lambda source: source, **overrides: int) -> SimpleNamespace:
    """The kernel file without the DSL: its integer constants and functions, `@cute.jit` ones as plain Python.

    `edit` changes the source; `overrides` replace constants (for instance TILE_M).
    """
    tree = ast.parse(edit(KERNEL.read_text()))
    namespace = {
        "functools": functools,
        "Int32": int,
        "input_t": None,
        "output_t": None,
        "cute": SimpleNamespace(jit=lambda function: function, Tensor=None, Pointer=None),
    }
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
            if names[0].endswith("_DTYPE"):
                continue
            exec(compile(ast.Module([node], []), str(KERNEL), "exec"), namespace)
            namespace.update({name: overrides[name] for name in names if name in overrides})
        elif isinstance(node, ast.FunctionDef) and node.name != "group_gemm_kernel":
            exec(compile(ast.Module([node], []), str(KERNEL), "exec"), namespace)
    return SimpleNamespace(**namespace)


class Table:
    """The device's group table; an index outside it is an out-of-bounds read of global memory."""

    def __init__(self, kernel: SimpleNamespace, sizes: list[tuple[int, int, int, int]]) -> None:
        first = kernel.first_tiles(sizes)
        self.rows = [(p, m, n, k) for p, (m, n, k, _) in zip(first[:-1], sizes, strict=True)]
        self.num_tiles = first[-1]

    def __getitem__(self, index: tuple[int, int]) -> int:
        row, column = index
        assert 0 <= row < len(self.rows), f"row {row} of {len(self.rows)} is out of bounds"
        return self.rows[row][column]


def enumerate_tiles(sizes: list[tuple[int, int, int, int]], tile_m: int, tile_n: int) -> list[tuple[int, int, int]]:
    """Every tile of every group in launch order, without a formula: walk the rows and columns of C."""
    return [
        (group, x, y)
        for group, (m, n, _, _) in enumerate(sizes)
        for y, _ in enumerate(range(0, n, tile_n))
        for x, _ in enumerate(range(0, m, tile_m))
    ]


def mapped(kernel: SimpleNamespace, sizes: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    table = Table(kernel, sizes)
    return [kernel.find_tile(table, len(sizes), cta) for cta in range(table.num_tiles)]


class FakeTensor:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def run_host(problem: list[tuple[int, int, int, int]]) -> tuple[list[Any], list[Any], list[int]]:
    """Call `custom_kernel` twice with a recording torch and launcher: launches, uploaded tables, workspace sizes."""
    kernel = load()
    launches, uploads, workspaces = [], [], []

    def tensor(rows: Any, dtype: str, device: str) -> FakeTensor:
        assert (dtype, device) == ("int64", "cuda")
        uploads.append(rows)
        return FakeTensor(4096)

    def empty(size: int, dtype: str, device: str) -> FakeTensor:
        assert (dtype, device) == ("uint8", "cuda")
        workspaces.append(size)
        return FakeTensor(8192)

    scope = kernel.custom_kernel.__globals__
    scope["torch"] = SimpleNamespace(tensor=tensor, empty=empty, int64="int64", uint8="uint8")
    scope["device_pointer"] = lambda address, align: (address, align)
    scope["compiled"] = lambda: lambda *arguments: launches.append(arguments)
    abc = [tuple(FakeTensor(1000 * g + i) for i in range(3)) for g, _ in enumerate(problem)]
    scales = [tuple(FakeTensor(1000 * g + 500 + i) for i in range(2)) for g, _ in enumerate(problem)]
    outputs = kernel.custom_kernel((abc, None, scales, problem))
    again = kernel.custom_kernel((abc, None, scales, problem))
    expected = [c for _, _, c in abc]
    assert outputs == again == expected
    return launches, uploads, workspaces
