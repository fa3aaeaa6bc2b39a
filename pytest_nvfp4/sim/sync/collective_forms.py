"""Lowerings of the warp collectives; ``collective`` executes them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.sync import collective


def _shfl(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("sync")
    mode = m.one("up", "down", "bfly", "idx")
    m.one("b32")
    result, a, b, c, members = m.end(5)
    value, predicate = e.pair(result)
    fixed = all(isinstance(o, Immediate) for o in (b, c, members))
    if fixed and members.value & FULL == FULL:  # type: ignore[union-attr]
        plan = collective.shuffle_plan(mode, b.value & FULL, c.value & FULL)  # type: ignore[union-attr]
        name = e.constant(plan, f"shuffle_{mode}")
        if value is not result:
            e.assign_predicate(predicate, f"{name}.predicate({e.mask})")
        e.assign(
            value,
            e.call(collective.shuffle_fixed, "w", e.mask, e.value(a, 32), name, e.constant(ins.opcode, "what")),
            32,
        )
        return
    operands = (e.value(operand, 32) for operand in (a, b, c, members))
    got, inside = e.temporary(), e.temporary()
    e.line(f"{got}, {inside} = {e.call(collective.shuffle, 'w', e.mask, *operands, repr(mode))}")
    e.assign(value, got, 32)
    if value is not result:
        e.assign_predicate(predicate, inside)


def _vote(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("sync")
    mode = m.one("all", "any", "uni", "ballot")
    m.one("b32" if mode == "ballot" else "pred")
    result, a, members = m.end(3)
    call = e.call(collective.vote, "w", e.mask, e.predicate(a), e.value(members, 32), repr(mode))
    if mode == "ballot":
        e.assign(result, call, 32)
    else:
        e.assign_predicate(result, call)


def _match(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    mode = m.one("any", "all")
    m.one("sync")
    bits = int(m.one("b32", "b64")[1:])
    result, a, members = m.end(3)
    if mode == "any":
        e.assign(result, e.call(collective.match_any, "w", e.mask, e.value(a, bits), e.value(members, 32)), 32)
        return
    value, predicate = e.pair(result)
    found, same = e.temporary(), e.temporary()
    e.line(f"{found}, {same} = {e.call(collective.match_all, 'w', e.mask, e.value(a, bits), e.value(members, 32))}")
    e.assign(value, found, 32)
    if value is not result:
        e.assign_predicate(predicate, same)


def _redux(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("sync")
    name = m.one("add", "min", "max", "and", "or", "xor")
    magnitude = m.has("abs")
    nan = m.has("NaN")
    kind = m.one("u32", "s32", "b32", "f32")
    m.done()
    if kind == "f32" and name in ("min", "max"):
        operation = collective.minmax(min if name == "min" else max, magnitude=magnitude, nan=nan)
    elif (name, kind) in collective.REDUCTIONS and not magnitude and not nan:
        operation = collective.REDUCTIONS[name, kind]
    else:
        raise Unsupported(f"{ins.opcode}: no such reduction")
    result, a, members = m.operands(3)
    function = e.constant(operation, "reduction")
    e.assign(result, e.call(collective.redux, "w", e.mask, e.value(a, 32), e.value(members, 32), function), 32)


def _elect(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("sync")
    result, members = m.end(2)
    lane, predicate = e.pair(result)
    chosen, holds = e.temporary(), e.temporary()
    call = e.call(collective.elect, "w", e.mask, e.value(members, 32))
    if isinstance(members, Immediate) and members.value & FULL == FULL:
        call = f"w.elected if {e.mask} == {FULL} else {call}"
    e.line(f"{chosen}, {holds} = {call}")
    e.assign(lane, chosen, 32)
    e.assign_predicate(predicate, holds)


def _activemask(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("b32")
    (result,) = m.end(1)
    e.assign(result, e.mask, 32)


def _bar_warp(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.one("warp")
    m.one("sync")
    (members,) = m.end(1)
    value = e.value(members, 32)
    call = e.call(collective.warp_barrier, "w", e.mask, value, str(e.at))
    if isinstance(members, Immediate):
        call = f"if {e.mask} != {value} or w.cta.launch.machine.monitor is not None: {call}"
    e.line(call)


LOWERINGS: Mapping[str, Lowering] = {
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "elect": _elect,
    "activemask": _activemask,
    "bar.warp": _bar_warp,
}
