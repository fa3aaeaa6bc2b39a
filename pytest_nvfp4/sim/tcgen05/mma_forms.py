"""Lowering of ``tcgen05.mma`` (PTX ISA, "tcgen05.mma"); ``mma`` executes it."""

from __future__ import annotations

from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx import syntax
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.tcgen05.descriptor import KINDS
from pytest_nvfp4.sim.tcgen05.group import group_of
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm

_VECTORS = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "scale_vec::4X": 4, "block32": 2, "block16": 4},
}
_COLLECTORS = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))


def _form(ins: syntax.Instruction) -> tuple[OpcodeReader, str, int, int]:
    """Parse an opcode: its reader, kind, group and scale factors per row."""
    group, read = group_of(ins, ordered=False)
    kind = read.one(*(f"kind::{kind}" for kind in KINDS)).removeprefix("kind::")
    scaled = read.has("block_scale")
    vector = read.maybe("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32")
    read.maybe(*_COLLECTORS)
    read.done()
    if scaled != KINDS[kind].scaled:
        raise read.refuse(".block_scale is required with the mx kinds and allowed with no others")
    if not scaled:
        if vector:
            raise read.refuse(f".{vector} without .block_scale")
        return read, kind, group, 0
    count = _VECTORS[kind].get(vector)
    if count is None:
        raise read.refuse(f"scale vector size {vector or '(none)'} for .kind::{kind}")
    return read, kind, group, count


def _lower(ins: syntax.Instruction, e: Emitter) -> None:
    read, kind, group, vector = _form(ins)
    operands = list(ins.operands)
    if len(operands) < 5:
        raise read.refuse(f"{len(operands)} operands")
    a_in_tmem = isinstance(operands[1], (syntax.Address, syntax.TensorAddress))
    d = e.address(operands[0])
    a = e.address(operands[1]) if a_in_tmem else e.value(operands[1], 64)
    b, descriptor = e.value(operands[2], 64), e.value(operands[3], 32)
    rest = operands[4:]
    sfa = sfb = "0"
    disable: list[str] = []
    shift = 0
    if vector:
        if len(rest) != 3:
            raise read.refuse(f"{len(operands)} operands; 7 are known")
        sfa, sfb = e.address(rest[0]), e.address(rest[1])
        rest = rest[2:]
    elif isinstance(rest[0], syntax.Vector):
        disable = e.values(rest[0], 32)
        if len(disable) != 4 * group:
            raise read.refuse(f"disable-output-lane of {len(disable)} words; it has {4 * group}")
        rest = rest[1:]
    if not rest:
        raise read.refuse("enable-input-d is missing")
    enable = e.predicate(rest[0])
    if len(rest) == 2:
        if kind not in ("f16", "tf32") or not isinstance(rest[1], syntax.Immediate) or not 0 <= rest[1].value <= 15:
            raise read.refuse(f"scale-input-d {rest[1]}; an immediate 0 to 15 of f16 and tf32")
        shift = rest[1].value
    elif len(rest) > 2:
        raise read.refuse(f"{len(operands)} operands")
    form = e.constant(MmaForm(kind, group, vector, a_in_tmem, shift, f"tcgen05.mma.kind::{kind}"), "form")
    lanes = "(" + "".join(f"{word}, " for word in disable) + ")"
    e.line(e.call(issue, "w", e.mask, d, a, b, descriptor, enable, lanes, sfa, sfb, form, str(e.at)))


LOWERINGS = {"tcgen05.mma": _lower}
