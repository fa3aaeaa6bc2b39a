"""What the opcode of ``tcgen05.mma`` says, and its code; ``mma`` runs it.

Source: PTX ISA, "tcgen05.mma".
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx import syntax
from pytest_nvfp4.sim.tcgen05.descriptor import KINDS
from pytest_nvfp4.sim.tcgen05.group import group_of
from pytest_nvfp4.sim.tcgen05.mma import issue
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaForm

__all__ = ["LOWERINGS"]

_VECTORS = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "scale_vec::4X": 4, "block32": 2, "block16": 4},
}
_COLLECTORS = frozenset(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))


def _form(ins: syntax.Instruction) -> tuple[str, int, int]:
    """Kind, group and scale factors a row, from the opcode."""
    group, rest = group_of(ins)
    kind = ""
    vector = ""
    scaled = False
    for part in rest:
        if part.startswith("kind::") and not kind:
            kind = part[6:]
        elif part == "block_scale":
            scaled = True
        elif part in ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32") and not vector:
            vector = part
        elif part not in _COLLECTORS:
            raise Unsupported(f"{ins.opcode}: .{part} of tcgen05.mma")
    if kind not in KINDS:
        raise Unsupported(f"{ins.opcode}: .kind::{kind}")
    if scaled != KINDS[kind].scaled:
        raise Unsupported(f"{ins.opcode}: .block_scale goes with the mx kinds and with them only")
    if not scaled:
        if vector:
            raise Unsupported(f"{ins.opcode}: .{vector} without .block_scale")
        return kind, group, 0
    count = _VECTORS[kind].get(vector)
    if count is None:
        raise Unsupported(f"{ins.opcode}: scale vector size {vector or '(none)'} for .kind::{kind}")
    return kind, group, count


def _lower(ins: syntax.Instruction, e: Emitter) -> None:
    kind, group, vector = _form(ins)
    operands = list(ins.operands)
    if len(operands) < 5:
        raise Unsupported(f"{ins.opcode}: {len(operands)} operands")
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
            raise Unsupported(f"{ins.opcode}: {len(operands)} operands; 7 are known")
        sfa, sfb = e.address(rest[0]), e.address(rest[1])
        rest = rest[2:]
    elif isinstance(rest[0], syntax.Vector):
        disable = e.values(rest[0], 32)
        if len(disable) != 4 * group:
            raise Unsupported(f"{ins.opcode}: disable-output-lane of {len(disable)} words; it has {4 * group}")
        rest = rest[1:]
    if not rest:
        raise Unsupported(f"{ins.opcode}: enable-input-d is missing")
    enable = e.predicate(rest[0])
    if len(rest) == 2:
        if kind not in ("f16", "tf32") or not isinstance(rest[1], syntax.Immediate) or not 0 <= rest[1].value <= 15:
            raise Unsupported(f"{ins.opcode}: scale-input-d {rest[1]}; an immediate 0 to 15 of f16 and tf32")
        shift = rest[1].value
    elif len(rest) > 2:
        raise Unsupported(f"{ins.opcode}: {len(operands)} operands")
    form = e.constant(MmaForm(kind, group, vector, a_in_tmem, shift, f"tcgen05.mma.kind::{kind}"), "form")
    lanes = "(" + "".join(f"{word}, " for word in disable) + ")"
    e.line(e.call(issue, "w", e.mask, d, a, b, descriptor, enable, lanes, sfa, sfb, form, str(e.at)))


LOWERINGS = {"tcgen05.mma": _lower}
