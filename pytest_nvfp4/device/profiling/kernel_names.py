"""The names of the device functions in a kernel's files, for profiles of a function under a contract of the user's own.

It may allocate and fill its outputs, with launches of torch that are none of the kernel's. Compilers put
the name of the function into that of the launch: CuTe DSL ``kernel_cutlass_NAME_...``, Triton and CUDA C++ ``NAME``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from pytest_nvfp4.device.job import SourceFile
from pytest_nvfp4.syntax import parse

_GLOBAL = re.compile(r"__global__\s+(?:\w+\s+|__launch_bounds__\s*\([^)]*\)\s*)*?(?!__launch_bounds__)(\w+)\s*\(")
_ENTRY = re.compile(r"\.entry\s+(\w+)")


def kernel_names(files: Iterable[SourceFile]) -> tuple[str, ...]:
    """Return the names of device functions that files define, each once."""
    return tuple(dict.fromkeys(name for file in files for name in _names(file.text)))


def _names(text: str) -> Iterator[str]:
    try:
        tree = parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_is_kernel, node.decorator_list)):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            source = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from _GLOBAL.findall(source)
            yield from _ENTRY.findall(source)


def _is_kernel(decorator: ast.expr) -> bool:
    """Return whether a decorator is ``kernel`` of CuTe, under whatever name it was imported, or Triton's."""
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name == "triton.jit" or name.rpartition(".")[2] == "kernel"
