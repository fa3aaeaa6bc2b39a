"""Marks: instructions by which a kernel names what it does, as its author wrote it.

Two kinds are known, and both leave results unchanged:

- regions of ``pytest_nvfp4.profiler``: a ``mov`` into a register ``nvfp4_KIND_NAME``, the name in hexadecimal;
- IKET of CuTe DSL (``cutlass.cute.experimental.iket``, compiled with the option ``iket``): ``pmevent.mask N``, where N
  is the number of an event that a variable ``__iket_evt_decl_*`` describes. The begin and the end of a range have one
  number, and the last number ends the range that was pushed last. Before it, a time is stored into the first KiB of a
  CTA's shared memory, which the system reserves and where IKET replaces the instruction by its own (DSL 4.8.1).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Kernel, Module, Register

What = Literal["begin", "end", "mark", "toggle"]
"""``toggle`` begins a range, and ends it if it is open. An ``end`` without a name ends the range begun last."""

_REGION = re.compile(r"nvfp4_(begin|end|mark)_((?:[0-9a-f]{2})+)(?![0-9a-f])")
_META, _EVENT = "__iket_meta_info", "__iket_evt_decl_"
_META_FIELDS = struct.Struct("<4I")
_EVENT_FIELDS = struct.Struct("<7I")
"""Size, number, fields of the record, type of the payload, position in a range, hash, length of the name."""
_WHAT: dict[int, What] = {0: "mark", 1: "begin", 2: "end", 4: "toggle"}
"""By ``iket.EventPos`` of the DSL."""
_REACH = 16
"""Instructions before ``pmevent`` in which IKET computes and stores the time."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark."""

    what: What
    name: str


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a kernel by instruction, and the instructions that only a profiler gives a meaning."""

    at: dict[int, Mark]
    skipped: frozenset[int]


def marks_of(module: Module, kernel: Kernel) -> Marks:
    """Return the marks of a kernel."""
    events = _iket_events(module)
    found: dict[int, Mark] = {}
    skipped: set[int] = set()
    for instruction in kernel.instructions:
        if instruction.root == "mov":
            mark = _region(instruction)
        elif events and instruction.opcode == "pmevent.mask":
            mark = _event(instruction, events)
            skipped.update(_stores(kernel, instruction.index))
        else:
            continue
        if mark is not None:
            found[instruction.index] = mark
    return Marks(found, frozenset(skipped))


def _region(instruction: Instruction) -> Mark | None:
    target = instruction.operands[0]
    match = _REGION.match(target.name.lstrip("%")) if isinstance(target, Register) else None
    if match is None:
        return None
    what: What = "begin" if match[1] == "begin" else "end" if match[1] == "end" else "mark"
    return Mark(what, bytes.fromhex(match[2]).decode(errors="replace"))


def _event(instruction: Instruction, events: dict[int, Mark]) -> Mark | None:
    (number,) = instruction.operands
    return events.get(number.value) if isinstance(number, Immediate) else None


def _iket_events(module: Module) -> dict[int, Mark]:
    """Return the marks of IKET's events by number; none if the module was compiled without."""
    meta = next((v.data for v in module.variables if v.name == _META), b"")
    if len(meta) < _META_FIELDS.size:
        return {}
    found = {_META_FIELDS.unpack_from(meta)[3]: Mark("end", "")}
    for variable in module.variables:
        if variable.name.startswith(_EVENT) and len(variable.data) >= _EVENT_FIELDS.size:
            _, number, _, _, position, _, length = _EVENT_FIELDS.unpack_from(variable.data)
            name = variable.data[_EVENT_FIELDS.size :][:length].decode(errors="replace")
            if position in _WHAT:
                found[number] = Mark(_WHAT[position], name)
    return found


def _stores(kernel: Kernel, at: int) -> list[int]:
    """Return the stores of an IKET event: those to shared memory since the CTA's rank was read."""
    stores = []
    for instruction in reversed(kernel.instructions[max(0, at - _REACH) : at]):
        if instruction.root == "st" and instruction.has("shared"):
            stores.append(instruction.index)
        elif "%cluster_ctarank" in instruction.text:
            return stores
    return []
