"""Tensor maps in shared memory that a newer DSL refuses to compile: the edit."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.map_alignment import alignment_hint
from pytest_nvfp4.toolchain.worker.findings import from_exception

SAID = """error[INTERNAL]: The compiler could not build valid IR for this code.

  --> {file}:8:8
  error: IR verification failed: expected tma descriptor pointer to have alignment at least 64, but
         got 8"""
"""What 4.8.1 raises at ``init_tensormap_from_atom``."""
SOURCE = """
@cute.struct
class SharedStorage:
    tensormap_buffer: cute.struct.MemRange[
        cutlass.Int64, size_tensormap_in_i64
    ]
    ab_mbar_ptr: cute.struct.MemRange[cutlass.Int64, num_ab_stage * 2]
manager.init_tensormap_from_atom(atom, storage.tensormap_buffer.data_ptr(), 0)
"""


def test_a_finding_has_the_line_and_the_edit(tmp_path: Path) -> None:
    file = tmp_path / "k.py"
    file.write_text(SOURCE)
    linecache.checkcache(str(file))
    found = from_exception("compile", "k.py did not compile", RuntimeError(SAID.format(file=file)), str(file).__eq__)
    assert found.line == 8
    assert (
        "the edit:\n  line 4: tensormap_buffer: cute.struct.MemRange[cutlass.Int64, size_tensormap_in_i64]\n"
        "     -> tensormap_buffer: cute.struct.Align[cute.struct.MemRange[cutlass.Int64, size_tensormap_in_i64], 128]"
    ) in found.message
    assert "ab_mbar_ptr:" not in found.message


@pytest.mark.parametrize("source", ["x = 1\n", "def (", SOURCE.replace("MemRange[\n", "Align[cute.struct.MemRange[\n")])
def test_without_such_a_field_the_ways_are_named(source: str) -> None:
    hint = alignment_hint(SAID, source.replace("i64\n    ]", "i64], 128]") if "Align" in source else source)
    assert "cute.struct.Align[..., 128]" in hint
    assert "byte_alignment=128" in hint


def test_another_error_has_no_hint() -> None:
    assert alignment_hint("expected tma descriptor pointer to be one", SOURCE) == ""
