"""The files of a contract of the user's own: a Python file, or a definition with its workloads."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.syntax import parse

RETURNING: Final = "value_returning"
"""What follows a definition, ``definition.json::value_returning``, whose kernels return their outputs."""


def is_definition(file: str) -> bool:
    """Return whether a contract's file is a definition of flashinfer-bench, and not Python."""
    return file.endswith(".json")


def _elsewhere(definition: Path) -> bool:
    """Return whether a definition lies in a FlashInfer Trace: ``definitions/OP/NAME.json``."""
    return definition.parent.parent.name == "definitions"


def workloads_of(definition: Path) -> Path:
    """Return the file of a definition's workloads: beside it, or ``workloads/OP/NAME.jsonl`` of a FlashInfer Trace."""
    beside = definition.with_suffix(".jsonl")
    operation = definition.parent
    elsewhere = operation.parent.with_name("workloads") / operation.name / beside.name
    return elsewhere if _elsewhere(definition) and not beside.is_file() else beside


def tensors_of(definition: Path, path: str) -> Path | None:
    """Return a file of tensors that a workload names, from the root of the trace on; None if it lies outside of it.

    The root is the folder that holds ``definitions``, else the definition's own.
    """
    root = (definition.parents[2] if _elsewhere(definition) else definition.parent).resolve()
    found = (root / path).resolve()
    return found if found.is_relative_to(root) else None


def files_of(file: str) -> list[Path]:
    """Return the files that a contract consists of, which its identity covers."""
    if not is_definition(file):
        return [Path(file)]
    workloads = workloads_of(Path(file))
    if not workloads.is_file():
        return [Path(file)]
    named = dict.fromkeys(_named(workloads.read_bytes()))
    tensors = [found for path in named if (found := tensors_of(Path(file), path)) is not None and found.is_file()]
    return [Path(file), workloads, *dict.fromkeys(tensors)]


def may_use_torch(file: str) -> bool:
    """Return whether a contract may import torch, itself or in a module other than numpy and the standard library."""
    if is_definition(file):
        return True
    try:
        tree = parse(Path(file).read_bytes())
    except (OSError, SyntaxError):
        return False  # its own process says what is wrong with it
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module if node.module and not node.level else ".")
    return any(name.partition(".")[0] not in {*sys.stdlib_module_names, "numpy"} for name in imported)


def _named(workloads: bytes) -> list[str]:
    """Return the paths of the inputs of workloads, leaving out what cannot be read."""
    found: list[str] = []
    for line in workloads.splitlines():
        try:
            one: Any = json.loads(line)
            inputs = one.get("workload", one)["inputs"].values()
            found += [each["path"] for each in inputs if isinstance(each.get("path"), str)]
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
            continue  # the contract's own process says what is wrong with it
    return found
