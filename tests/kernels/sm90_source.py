"""Run the sm_90a grouped GEMM's plain functions, without the DSL: its decoding, its schedule."""

from __future__ import annotations

import array
import ast
import bisect
import functools
import heapq
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import E2M1, E4M3
from tests.kernels.compiled import FOLDER

KERNEL = FOLDER / "sm90.py"


def load(*, edit: Callable[[str], str] = lambda source: source, **names: Any) -> SimpleNamespace:
    """The kernel file's constants and plain functions without the DSL; `edit` changes its source, `names` come last."""
    namespace = {
        "array": array,
        "bisect": bisect,
        "functools": functools,
        "heapq": heapq,
        "threading": threading,
        "input_t": None,
        "output_t": None,
    }
    for node in ast.parse(edit(KERNEL.read_text())).body:
        if isinstance(node, ast.Assign | ast.ClassDef) or (isinstance(node, ast.FunctionDef) and not is_staged(node)):
            exec(compile(ast.Module([node], []), str(KERNEL), "exec"), namespace)
    namespace.update(names)  # the functions look names up when they are called
    return SimpleNamespace(**namespace)


def is_staged(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("cute.") for decorator in function.decorator_list)


def swap(old: str, new: str) -> Callable[[str], str]:
    """An edit that must apply."""

    def edit(source: str) -> str:
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
        return source.replace(old, new)

    return edit


def widths(constants: SimpleNamespace) -> tuple[int, ...]:
    return constants.WIDTHS


def numpy_ptx(text: str, _constraints: str, *operands: Any, results: int = 1, pure: bool = False) -> NDArray[Any]:
    """What the PTX of the decoding functions does, on uint32 arrays."""
    assert (results, pure) == (1, True)
    a, b = np.asarray(operands[0], np.uint32), np.asarray(operands[-1], np.uint32)
    if text.startswith("mul.rn.f16x2"):
        a, b = np.broadcast_arrays(a, b)
        return (a.copy().view(np.float16) * b.copy().view(np.float16)).view(np.uint32)
    if text.startswith("lop3.b32"):
        assert int(re.search(r"(0x\w+);$", text)[1], 16) == (0xF0 & 0xAA) | (0xCC & ~0xAA & 0xFF)
        return (a & b) | (np.asarray(operands[1], np.uint32) & ~b)
    if text.startswith("prmt.b32"):
        selector = int(re.search(r"(\w+);$", text)[1], 0)
        bytes_of = np.concatenate([x.reshape(-1, 1).copy().view(np.uint8) for x in np.broadcast_arrays(a, b)], axis=1)
        return bytes_of[:, [selector >> 4 * i & 7 for i in range(4)]].copy().view(np.uint32)[:, 0]
    assert "cvt.rn.f16x2.e4m3x2" in text
    return scale_value(a.reshape(-1, 1).copy().view(np.uint8)[:, :2]).astype(np.float16).view(np.uint32)[:, 0]


def scale_value(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """E4M3 as torch reads it, its sign too."""
    return np.where(E4M3.is_nan(codes), np.nan, E4M3.decode_units(codes) * 2.0**-9)


def decoded(kernel: SimpleNamespace) -> NDArray[np.float64]:
    """[256 scale codes, 16 element codes, 8 places] as float64, in units of the operand, by the kernel's functions."""
    elements = np.arange(16, dtype=np.uint32)
    # Place p has code c while the other seven have 15 - c, all of whose bits differ.
    words = np.stack(
        [(elements << 4 * p) | sum((15 - elements) << 4 * q for q in range(8) if q != p) for p in range(8)]
    )
    result = np.empty((256, 16, 8))
    for code in range(256):
        scale = kernel.permute_bytes(kernel.decode_scales(np.uint32(code)), np.uint32(0), 0x1010)
        pairs = np.stack([pair.view(np.float16).reshape(8, 16, 2) for pair in kernel.decode(words, scale)])
        for place in range(8):
            result[code, :, place] = pairs[place % 4, place, :, place // 4] * 2.0**7
    return result


def check_decoding(kernel: SimpleNamespace) -> None:
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        want = scale_value(codes)[:, None] * E2M1.decode_units(np.arange(16, dtype=np.uint8)) / 2
        got = decoded(kernel)
    np.testing.assert_array_equal(got, np.broadcast_to(want[:, :, None], got.shape))


def load_decoder(**kwargs: Any) -> SimpleNamespace:
    return load(ptx=numpy_ptx, Uint32=np.uint32, **kwargs)


def fields_of(row: list[int]) -> list[int]:
    """The eight Int32 of a row of the table."""
    return [half for pair in row[:4] for half in (pair & 0xFFFFFFFF, pair >> 32)]


def check_plan(kernel: SimpleNamespace, sizes: list[tuple[int, int, int, int]], workers: int) -> None:
    """Every output in one item, every token dequantised once to a line of its own, lists as the kernel reads them."""
    rows, groups, count, most, clusters, depth, lines = kernel.plan(sizes, workers)
    assert len(rows) == len(groups) == count + clusters * depth
    assert {len(row) for row in rows} == {kernel.ROW}
    assert max(max(row) for row in rows) < 2**63

    # Group after group, in each atom after atom: a line for each token.
    first = [0]
    for m, n, k, _ in sizes:
        first.append(first[-1] + (m * k * 2 // kernel.LINE if n else 0))
    assert first.pop() == lines
    tokens = set()
    for row, group in zip(rows[:count], groups, strict=False):
        width, height, units, line, tall, *rest = fields_of(row)
        m, n, k, _ = sizes[group]
        token = row[kernel.TOKENS] // (k // 2)
        assert (width, units * kernel.UNIT_K, tall, rest) == (0, k, m, [0, 0, 0])
        assert line == first[group] + token
        assert height > 0
        assert token % 128 == 0, "a tile starts within a block of scales"
        assert -(-height * units // kernel.DEQUANTISE_ROWS) <= most
        assert n > 0
        assert row[kernel.TOKENS :] == [token * k // 2, 0, token * k // 16, 0, 0]
        for one in range(token, token + height):
            assert (group, one) not in tokens, "a token is in two tiles"
            tokens.add((group, one))
    assert tokens == {(g, row) for g, (m, n, _, _) in enumerate(sizes) if n for row in range(m)}

    assert 0 < clusters <= workers
    done: dict[tuple[int, int], list[range]] = {}
    for cluster in range(clusters):
        part = slice(count + cluster * depth, count + (cluster + 1) * depth)
        items = [(fields_of(row), row, group) for row, group in zip(rows[part], groups[part], strict=True)]
        while items and items[-1][1] == [0] * kernel.ROW:
            assert items.pop()[2] == -1
        assert 0 < len(items) < depth, "a cluster without work, or without zeros at its end"
        widths_of = [fields[kernel.WIDTH] for fields, _, _ in items]
        assert widths_of == sorted(widths_of, reverse=True)
        for (width, height, units, line, tall, pitch, blocks, block), row, group in items:
            m, n, k, _ = sizes[group]
            token = line - first[group]
            assert token % 8 == 0, "the swizzle of a piece is not that of its tile"
            assert width in kernel.WIDTHS
            assert 0 < height <= width
            assert (units * kernel.UNIT_K, tall, pitch) == (k, m, 2 * n)
            assert 0 < blocks <= kernel.CLUSTER
            offsets = [0, group * 128, 0, block * 128 * k // 16, 2 * (token * n + block * 128)]
            assert row[kernel.TOKENS :] == offsets
            for own in range(block, block + blocks):
                assert own < n // kernel.WEIGHT_ROWS
                done.setdefault((group, own), []).append(range(token, token + height))
    assert set(done) == {(g, b) for g, (m, n, _, _) in enumerate(sizes) if m for b in range(n // kernel.WEIGHT_ROWS)}
    for (group, _), pieces in done.items():
        ordered = [row for piece in sorted(pieces, key=lambda piece: piece.start) for row in piece]
        assert ordered == list(range(sizes[group][0])), "a tile is computed twice, or not"


def longest(kernel: SimpleNamespace, sizes: list[tuple[int, int, int, int]], workers: int) -> int:
    """The largest sum of a worker's costs."""
    lists = kernel.schedule(sizes, workers)
    return max(sum(kernel.item_cost(width, sizes[group][2]) for width, group, *_ in one) for one in lists)
