"""The hint for tensor maps in shared memory at places that newer versions of CuTe DSL refuse to compile.

A tensor map is 128 bytes at a multiple of 128 (PTX ISA, "tensormap.cp_fenceproxy"). Version 4.8 verifies the alignment
that a pointer is known to have; a field of a ``cute.struct`` has that of its elements, which is 8 bytes in GPU MODE's
template of ``nvfp4_group_gemm``, written for an older version.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from pytest_nvfp4.syntax import parse

MAP_BYTES: Final = 128
_REFUSED = re.compile(r"tma descriptor pointer to have alignment at least \d+,\s+but\s+got (?P<has>\d+)")
_NAMED = re.compile(r"map|desc", re.IGNORECASE)


def alignment_hint(message: str, source: str) -> str:
    """Return what to edit in a kernel's source because of a compiler's message; empty for another message."""
    refused = _REFUSED.search(message)
    if refused is None:
        return ""
    said = (
        f"a tensor map lies at a multiple of {MAP_BYTES} bytes, and this pointer is known to lie at one of "
        f"{refused['has']} only, which this version of the DSL no longer accepts"
    )
    edits = [f"line {line}: {old}\n     -> {new}" for line, old, new in _edits(source)]
    if edits:
        return "\n  ".join([f"{said}; the edit:", *edits])
    return (
        f"{said}: write the field of its struct as cute.struct.Align[..., {MAP_BYTES}], or give allocate_tensor "
        f"byte_alignment={MAP_BYTES}, or from_dlpack and make_ptr assumed_align={MAP_BYTES} for memory that has it"
    )


def _edits(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, text and new text of each field for tensor maps in a source that has no alignment of its own."""
    try:
        tree = parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript() as kind) if _NAMED.search(name):
                text = ast.unparse(kind)
                if "MemRange" in ast.unparse(kind.value):
                    prefix = ast.unparse(kind.value).rpartition("MemRange")[0]
                    yield node.lineno, f"{name}: {text}", f"{name}: {prefix}Align[{text}, {MAP_BYTES}]"
