"""GPU MODE's calling contract of a kernel: its modules, inputs and functions."""

from __future__ import annotations

import importlib.abc
import importlib.util
import inspect
import linecache
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeVar

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.own_files import foreign_modules

_TASK = "task"
_JUDGE = {
    "utils": ("make_match_reference", "match_reference", "verbose_allclose", "verbose_allequal", "set_seed"),
    "reference": ("check_implementation", "generate_input", "ref_kernel"),
}
"""The names that submissions import from the files that lie beside them when GPU MODE evaluates them."""
_WITHOUT_TORCH = frozenset({"cuda", "cutlass", "numpy", "pytest_nvfp4", _TASK, *_JUDGE})
"""Modules whose import does not import torch."""


def provide_task() -> None:
    """Make GPU MODE's modules ``task``, ``utils`` and ``reference`` importable where nothing else has the name.

    ``task`` has its type variables. Submissions import functions of the others and rarely call them: here a call
    raises NotImplementedError.
    """
    if not any(isinstance(each, _LastFinder) for each in sys.meta_path):
        sys.meta_path.append(_LastFinder())


class _LastFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins; behind all other finders, so that a file of the name is what is imported."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == _TASK or fullname in _JUDGE else None

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        module.__doc__ = f"Stand-in for GPU MODE's module {name}."
        if name == _TASK:
            given: dict[str, object] = {"input_t": TypeVar("input_t"), "output_t": TypeVar("output_t")}
            given["TestSpec"] = dict
        else:
            given = {each: _refusal(f"{name}.{each}") for each in _JUDGE[name]}
        vars(module).update(given)


def _refusal(name: str) -> Callable[..., object]:
    def refused(*_: object, **__: object) -> object:
        raise NotImplementedError(
            f"{name} is a function of GPU MODE's evaluation, which judges a kernel, so the kernel has no use for it; "
            f"for a {name.split('.', maxsplit=1)[0]}.py of your own, put the file beside the kernel"
        )

    def matcher(*_: object, **__: object) -> object:
        return refused

    return matcher if name == "utils.make_match_reference" else refused


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


def uses_torch(sources: Sequence[Path], *, entry: bool) -> bool:
    """Return whether a kernel may import torch, whose import is slow, and which it then finds imported.

    That import replaces functions of other modules, which nothing may do from the kernel's first line on.

    Args:
        sources: The user's Python files that the kernel and its entry import, and these two.
        entry: Whether the kernel has an entry, and is not called with tensors by the contract.
    """
    if not entry or any(b"torch" in file.read_bytes() for file in sources if file.is_file()):
        return True
    return not foreign_modules(sources) <= _WITHOUT_TORCH and importlib.util.find_spec("torch") is not None


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
