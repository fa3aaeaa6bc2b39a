"""GPU MODE's calling contract of a kernel: its ``task`` module, inputs and functions."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_nvfp4.finding import Finding


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


def make_arguments(call: Mapping[str, Any] | None) -> list[Any]:
    """Make the arguments of a call (``contracts.signature``) with zeros in its tensors.

    Memory is zeroed lazily, so large shapes are cheap.
    """
    import torch

    if call is None:
        return []
    tensors = []
    for tensor in call["tensors"]:
        raw = torch.zeros(tensor["size"], dtype=torch.uint8, device="cuda" if tensor["device"] else "cpu")
        kind = getattr(torch, tensor["dtype"])
        tensors.append(torch.as_strided(raw.view(kind), tensor["shape"], tensor["strides"]))

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        if not isinstance(value, dict):
            return value
        return tensors[value["at"]] if "at" in value else tuple(filled(each) for each in value["tuple"])

    return [filled(value) for value in call["arguments"]]


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
