"""The user's lines, for messages: file, number and text."""

from __future__ import annotations

import linecache

from pytest_nvfp4.sim.ptx.syntax import Instruction

__all__ = ["place_of", "quoted"]


def place_of(instruction: Instruction) -> str:
    """``sm100.py:317``, or the PTX line where the PTX names no line of the user's."""
    source = instruction.location
    return f"{source.file.rsplit('/', 1)[-1]}:{source.line}" if source else f"PTX line {instruction.ptx_line}"


def quoted(instruction: Instruction) -> str:
    """The same with the line's text, if the file is there."""
    source = instruction.location
    text = linecache.getline(source.file, source.line).strip() if source is not None else ""
    return f"{place_of(instruction)} `{text}`" if text else place_of(instruction)
