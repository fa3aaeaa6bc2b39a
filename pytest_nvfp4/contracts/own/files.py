"""The files of a contract of the user's own: a Python file, or a definition with its workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

RETURNING: Final = "value_returning"
"""What follows a definition, ``definition.json::value_returning``, whose kernels return their outputs."""


def is_definition(file: str) -> bool:
    """Return whether a contract's file is a definition of flashinfer-bench, and not Python."""
    return file.endswith(".json")


def workloads_of(definition: Path) -> Path:
    """Return the file of a definition's workloads: beside it, or where the layout of a FlashInfer Trace has them.

    That layout has ``definitions/OP/NAME.json`` and ``workloads/OP/NAME.jsonl``.
    """
    beside = definition.with_suffix(".jsonl")
    operation = definition.parent
    elsewhere = operation.parent.with_name("workloads") / operation.name / beside.name
    return elsewhere if operation.parent.name == "definitions" and not beside.is_file() else beside


def files_of(file: str) -> list[Path]:
    """Return the files that a contract consists of, which its identity covers."""
    if not is_definition(file):
        return [Path(file)]
    workloads = workloads_of(Path(file))
    return [Path(file), *([workloads] if workloads.is_file() else [])]
