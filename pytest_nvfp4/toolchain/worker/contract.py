"""GPU MODE's calling contract of a kernel: its ``task`` module, inputs and functions."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_nvfp4.finding import Finding

Sizes = Sequence[tuple[int, int, int, int]]


def provide_task(*, beside: Path) -> None:
    """Make ``from task import input_t, output_t`` work if neither ``beside`` nor the path has it."""
    if (beside / "task.py").is_file():
        return
    try:
        if importlib.util.find_spec("task") is not None:
            return
    except (ImportError, ValueError):
        pass
    module = types.ModuleType("task", "Stand-in for GPU MODE's task module: its two type variables.")
    module.input_t = TypeVar("input_t")  # type: ignore[attr-defined]
    module.output_t = TypeVar("output_t")  # type: ignore[attr-defined]
    module.TestSpec = dict  # type: ignore[attr-defined]
    sys.modules["task"] = module


def uncallable(custom: Callable[..., object]) -> Finding | None:
    """Return the finding of a ``custom_kernel`` that cannot be called with one argument, at its ``def``; else None."""
    try:
        signature = inspect.signature(custom)
    except Exception:  # a callable may have no signature, or one of its own that raises
        return None
    try:
        signature.bind(object())
    except TypeError as error:
        reason = str(error)
    else:
        return None
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=signature.empty)
    file, line = _definition(custom)
    return Finding(
        "contract",
        f"custom_kernel{shown} cannot be called as the contract calls it, custom_kernel(data): {reason}; take the one "
        "argument, and make everything else inside the function",
        file=file,
        line=line,
        text=linecache.getline(file, line).strip() or None if file and line else None,
    )


def _definition(function: Callable[..., object]) -> tuple[str | None, int | None]:
    """Return the file of a function and the line of its ``def``, which is below its decorators."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, types.CodeType):
        return None, None
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    below = next((at for at, line in enumerate(lines) if re.match(r"\s*(async\s+)?def\s", line)), 0)
    return code.co_filename, code.co_firstlineno + below


def uses_torch(kernel: Path, entry: Path | None) -> bool:
    """Return whether a kernel or its entry uses torch, whose import is slow."""
    return entry is None or any(b"torch" in file.read_bytes() for file in (kernel, entry) if file.is_file())


def make_data(sizes: Sizes) -> Any:
    """Make zero inputs with the shapes, strides and types of GPU MODE's contract.

    ``(abc, plain scales, reordered scales, sizes)``: ``a [m, k//2, l]`` and ``b [n, k//2, l]`` are float4_e2m1fn_x2
    and K-major, ``c [m, n, l]`` is float16 and N-major, plain scales ``[m|n, k//16, l]`` are float8_e4m3fn on the CPU,
    reordered scales are ``[32, 4, rest_m, 4, rest_k, l]``. Memory is zeroed lazily, so large shapes are cheap.
    """
    import torch

    def packed(rows: int, k: int, batches: int) -> Any:
        raw = torch.zeros((batches, rows, k // 2), dtype=torch.uint8, device="cuda")
        return raw.view(torch.float4_e2m1fn_x2).permute(1, 2, 0)

    def plain(rows: int, k: int, batches: int) -> Any:
        return torch.zeros((batches, rows, k // 16), dtype=torch.uint8).view(torch.float8_e4m3fn).permute(1, 2, 0)

    def reordered(rows: int, k: int, batches: int) -> Any:
        shape = (batches, -(-rows // 128), -(-(k // 16) // 4), 32, 4, 4)
        raw = torch.zeros(shape, dtype=torch.uint8, device="cuda")
        return raw.view(torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0)

    abc, scales, scales_reordered = [], [], []
    for m, n, k, batches in sizes:
        c = torch.zeros((batches, m, n), dtype=torch.float16, device="cuda").permute(1, 2, 0)
        abc.append((packed(m, k, batches), packed(n, k, batches), c))
        scales.append((plain(m, k, batches), plain(n, k, batches)))
        scales_reordered.append((reordered(m, k, batches), reordered(n, k, batches)))
    return abc, scales, scales_reordered, list(sizes)


def prepare(function: Callable[..., object], sizes: Sequence[tuple[int, ...]]) -> object:
    """Call a kernel's ``compile_kernel`` if it takes no argument or the problem.

    The evaluation calls only ``custom_kernel``, so published kernels use this name for functions of any signature.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = [each for each in positional if each.default is each.empty]
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters) or len(required) > 1:
        return None
    candidates = required or positional[:1]
    if candidates and re.search("size|problem|shape|spec", candidates[0].name):
        return function(list(sizes))
    return None if required else function()
