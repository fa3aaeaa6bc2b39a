"""Changes that kernels make to tensor maps: replacing single fields, and copying a changed map to its final place.

Rules (PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy"):

- ``tensormap.replace`` changes one field, in global memory or in the CTA's own shared memory. ``rank`` takes the rank
  minus one; sizes and boxes are given in elements, strides in bytes; ``elemtype`` and the other enumerated fields take
  the ISA's codes (table "Tensormap new_val validity"). The map stores sizes and boxes minus one, and strides without
  their low 4 bits (measured). Code 4 of ``swizzle_mode`` (96 B) is unsupported, because its encoding was not measured.
  A kernel may build a map from zeros by replacing its fields (Triton does); ``rank`` and ``elemtype`` then set the
  format tag of the DSL's maps (maps that the driver encodes for an H200 have none).
- Only the first 64 bytes of a map hold fields (measured), so that only they must have been written in shared memory:
  the DSL copies no more of a map there before it replaces fields (source: NVIDIA's kernels).
- ``tensormap.cp_fenceproxy`` copies a map from shared to global memory and releases it (see ``tensormap``).

Counters: ``tensormap.replaces`` (fields), ``tensormap.copies``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes, uniform, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW, SharedMemory
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_operand
from pytest_nvfp4.sim.sync.fences import TensormapWrites, fence
from pytest_nvfp4.sim.tma.issue import SPACES, check_aligned
from pytest_nvfp4.sim.tma.tensormap import ALIGN, BYTES

_TAG = 2
_SCOPES = ("cta", "cluster", "gpu", "sys")
_WORDS = struct.Struct("<16Q")


class _Field(NamedTuple):
    """Place of a field in a map: its 64-bit word, first bit, and width."""

    word: int
    first: int
    width: int


# Fields by ordinal.
_DIMS = [_Field(4 + i // 2, i % 2 * 32, 32) for i in range(5)]
_BOXES = [_Field(6, 56, 8), *(_Field(7, 8 * i, 8) for i in range(4))]
_STEPS = [_Field(6, 32 + 3 * i, 3) for i in range(5)]
_STRIDES = [_Field(1 + (i + 1) // 2, (i + 1) % 2 * 32, 32) for i in range(4)]
_ORDINALS = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
_TYPES = {**{code: (code, 0) for code in range(11)}, 11: (7, 1), 12: (8, 1), 13: (11, 0), 14: (12, 0), 15: (13, 0)}
"""The map's type field and tf32 bit, by the ISA's code of an element type."""
_CODES = {
    "interleave_layout": (_Field(1, 11, 2), 3),
    "swizzle_mode": (_Field(1, 13, 2), 4),
    "swizzle_atomicity": (_Field(1, 19, 2), 4),
    "fill_mode": (_Field(1, 15, 1), 2),
}
"""The other enumerated fields, and the number of their codes."""


@dataclass(frozen=True, slots=True)
class ReplaceForm:
    """Modifiers of one ``tensormap.replace``; ``space`` is empty for a generic address."""

    opcode: str
    field: str
    ordinal: int
    space: str


def replaced(data: bytes, field: str, ordinal: int, value: int, *, what: str) -> bytes:
    """Return the 128 bytes of a map after ``tensormap.replace``.

    Raises:
        Fault: ``tensor map``: the field cannot hold the value.
        Unsupported: a code whose encoding was not measured.
    """
    words = list(_WORDS.unpack(data))

    def put(place: _Field, bits: int) -> None:
        word, start, width = place
        mask = ((1 << width) - 1) << start
        words[word] = words[word] & ~mask | bits << start & mask

    def check_range(low: int, high: int) -> None:
        if not low <= value <= high:
            raise Fault("tensor map", f"{what}: {field} {value}; it must be {low} to {high}")

    if field == "global_address":
        words[0] = value
    elif field == "rank":
        check_range(0, 4)
        put(_Field(1, 4, 3), value)
        put(_Field(1, 0, 4), _TAG)
    elif field == "box_dim":
        check_range(1, 256)
        put(_BOXES[ordinal], value - 1)
    elif field == "global_dim":
        check_range(1, 0xFFFF_FFFF)
        put(_DIMS[ordinal], value - 1)
    elif field == "element_stride":
        check_range(1, 8)
        put(_STEPS[ordinal], value - 1)
    elif field == "global_stride":
        if value % 16 or value >= 1 << 40:
            raise Fault("tensor map", f"{what}: stride {value}; it must be a multiple of 16 below 2^40 bytes")
        put(_STRIDES[ordinal], value >> 4)
        put(_Field(3, 32 + 4 * ordinal, 4), value >> 36)
    elif field == "elemtype":
        if value not in _TYPES:
            raise Unsupported(f"{what}: element type {value}")
        code, tf32 = _TYPES[value]
        put(_Field(1, 0, 4), _TAG)
        put(_Field(1, 7, 4), code)
        put(_Field(1, 16, 1), tf32)
    else:
        place, codes = _CODES[field]
        if value >= codes:
            raise Unsupported(f"{what}: {field} {value}")
        put(place, value)
    return _WORDS.pack(*words)


def lower_replace(ins: Instruction, e: Emitter) -> None:
    """Lower ``tensormap.replace``."""
    read = OpcodeReader(ins, 2, ordered=False)
    read.one("tile")
    field = read.one("global_address", "rank", "elemtype", *_ORDINALS, *_CODES)
    space = read.maybe("global", "shared::cta")
    read.one("b1024")
    bits = int(read.one("b32", "b64")[1:])
    read.done()
    if (bits == 64) != (field in ("global_address", "global_stride")):
        raise Unsupported(f"{ins.opcode}: a value of {bits} bits for {field}")
    operands = read.operands(3 if field in _ORDINALS else 2)
    ordinal = 0
    if field in _ORDINALS:
        ordinal = read.immediate(operands[1], "the ordinal")
        if not 0 <= ordinal < _ORDINALS[field]:
            raise Unsupported(f"{ins.opcode}: ordinal {ordinal}")
    if field == "elemtype" or field in _CODES:
        value = str(read.immediate(operands[-1], "the new value"))
    else:
        value = e.value(operands[-1], bits)
    form = e.constant(ReplaceForm(ins.opcode, field, ordinal, space), "replace")
    address = shared_operand(e, operands[0]) if space == "shared::cta" else e.address(operands[0])
    e.line(e.call(replace_field, "w", e.mask, str(e.at), form, address, value))


def replace_field(w: Warp, mask: int, at: int, form: ReplaceForm, address: Bits, value: Bits) -> None:
    """Execute ``tensormap.replace`` in the lanes of a mask, once for equal operands. Raises Fault."""
    if isinstance(address, int) and isinstance(value, int):
        pairs = [(address, value)]
    else:
        pairs = list(dict.fromkeys((value_in(address, lane), value_in(value, lane)) for lane in lanes(mask)))
    for map_address, new_value in pairs:
        _replace(w, mask, at, form, map_address, new_value)


def _in_shared(memory: SharedMemory, address: int, *, what: str) -> tuple[int, bytes]:
    """Return the index and the bytes of a map in shared memory. Raises Fault if its fields were not written."""
    index = memory.index(address, BYTES, what=what, align=BYTES)
    memory.read(index, ALIGN, what=what)
    return index, memory.data[index : index + BYTES].tobytes()


def _replace(w: Warp, mask: int, at: int, form: ReplaceForm, address: int, value: int) -> None:
    what = form.opcode
    launch = w.cta.launch
    shared = form.space == "shared::cta"
    if not form.space and address & ~0xFFFF_FFFF == SHARED_WINDOW:
        shared, address = True, address & 0xFFFF_FFFF
    if shared:
        memory = w.cta.shared
        index, old = _in_shared(memory, address, what=what)
        new = replaced(old, form.field, form.ordinal, value, what=what)
        memory.data[index : index + BYTES].data[:] = new
    else:
        check_aligned(address, BYTES, what)
        region = launch.machine.memory.region(address, BYTES, write=True, what=what)
        offset = address - region.start
        new = replaced(bytes(region.raw[offset : offset + BYTES]), form.field, form.ordinal, value, what=what)
        region.raw[offset : offset + BYTES] = new
        launch.unit(TensormapWrites).modified(w, address)
    launch.machine.changes += 1
    w.does.add("tensormap")
    launch.counters["tensormap.replaces"] += 1
    if launch.machine.monitor is not None:
        launch.machine.monitor.map_changed(w, mask, at, address, shared)


def lower_copy(ins: Instruction, e: Emitter) -> None:
    """Lower ``tensormap.cp_fenceproxy``."""
    read = OpcodeReader(ins, 2, ordered=False)
    if (read.one(*SPACES), read.one(*SPACES)) != ("global", "shared::cta"):
        raise Unsupported(f"{ins.opcode}: only from .shared::cta to .global")
    read.one("tensormap::generic")
    read.one("release")
    scope = read.one(*_SCOPES)
    read.each("sync", "aligned")
    to, source, size = read.end(3)
    if read.immediate(size, "the size") != BYTES:
        raise Unsupported(f"{ins.opcode}: a size other than {BYTES}")
    arguments = ("w", e.mask, str(e.at), repr(ins.opcode), repr(scope), e.address(to), shared_operand(e, source))
    e.line(e.call(copy_map, *arguments))


def copy_map(w: Warp, mask: int, at: int, what: str, scope: str, to: Bits, source: Bits) -> None:
    """Execute ``tensormap.cp_fenceproxy``: copy one map to global memory and release it. Raises Fault."""
    address, start = uniform(to, mask), uniform(source, mask)
    if address is None or start is None:
        raise Fault("divergence", f"{what}: the lanes of the warp give different addresses; it copies one map")
    check_aligned(address, BYTES, what)
    launch = w.cta.launch
    index, data = _in_shared(w.cta.shared, start, what=what)
    launch.machine.memory.write(address, np.frombuffer(data, np.uint8), what=what)
    launch.unit(TensormapWrites).modified(w, address, released=scope)
    launch.machine.changes += 1
    w.does.add("tensormap")
    launch.counters["tensormap.copies"] += 1
    if launch.machine.monitor is not None:
        launch.machine.monitor.map_copied(w, mask, at, index, address)
    fence(w, mask, f"proxy.tensormap::generic.release.{scope}", at)
