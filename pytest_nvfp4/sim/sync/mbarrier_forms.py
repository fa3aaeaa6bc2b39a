"""What the opcodes of the mbarrier instructions say, and their code; ``mbarrier_ops`` runs them.

Source: PTX ISA, "mbarrier.init" to "mbarrier.try_wait".
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Sink
from pytest_nvfp4.sim.sync.mbarrier_ops import (
    MbarrierForm,
    arrive,
    complete,
    expect,
    init,
    invalidate,
    pending_count,
    wait_parity,
    wait_state,
)

__all__ = ["BLOCKING", "LOWERINGS"]

_SHARED = ("shared", "shared::cta", "shared::cluster")


def _form(m: OpcodeReader, *, cluster: bool) -> tuple[bool, bool]:
    """Takes ``{.space}.b64``: whether it is shared::cluster, and whether it is generic."""
    space = m.maybe(*_SHARED)
    m.one("b64")
    m.done()
    if space == "shared::cluster" and not cluster:
        raise m.refuse("not defined for shared::cluster")
    return space == "shared::cluster", not space


def _init(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    cluster, generic = _form(m, cluster=False)
    place, count = m.operands(2)
    form = e.constant(MbarrierForm(ins.opcode, e.at, cluster, generic), "form")
    e.line(e.call(init, "w", e.mask, e.address(place), e.value(count, 32), form))


def _inval(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    cluster, generic = _form(m, cluster=False)
    (place,) = m.operands(1)
    form = e.constant(MbarrierForm(ins.opcode, e.at, cluster, generic), "form")
    e.line(e.call(invalidate, "w", e.mask, e.address(place), form))


def _transaction(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    if m.has("relaxed"):
        m.one("cta", "cluster")
    cluster, generic = _form(m, cluster=True)
    place, size = m.operands(2)
    form = e.constant(MbarrierForm(ins.opcode, e.at, cluster, generic), "form")
    function = expect if ins.parts[1] == "expect_tx" else complete
    e.line(e.call(function, "w", e.mask, e.address(place), e.value(size, 32), form))


def _arrive(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    kind = m.maybe("expect_tx", "noComplete")
    if m.has("release", "relaxed"):
        m.one("cta", "cluster")
    cluster, generic = _form(m, cluster=kind != "noComplete")
    operands = m.operands(3) if kind else m.operands(2, 3)
    state, place = operands[0], operands[1]
    wanted = not isinstance(state, Sink)
    if cluster and wanted:
        raise Unsupported(f"{ins.opcode}: a shared::cluster barrier gives no state; the result must be _")
    amount = e.value(operands[2], 32) if len(operands) == 3 else "1"
    form = MbarrierForm(
        ins.opcode,
        e.at,
        cluster,
        generic,
        expects=kind == "expect_tx",
        drop=ins.parts[1] == "arrive_drop",
        completes=kind != "noComplete",
        state=wanted,
    )
    text = e.call(arrive, "w", e.mask, e.address(place), amount, e.constant(form, "form"))
    e.assign(state, text, 64)


def _wait_lowering(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    parity = m.has("parity")
    if m.has("acquire", "relaxed"):
        m.one("cta", "cluster")
    cluster, generic = _form(m, cluster=False)
    operands = m.operands(3, 4) if ins.parts[1] == "try_wait" else m.operands(3)
    if len(operands) == 4:
        e.value(operands[3], 32)  # the suspend-time hint: it must be a value, and means nothing here
    form = e.constant(MbarrierForm(ins.opcode, e.at, cluster, generic), "form")
    place = e.address(operands[1])
    if parity:
        call = e.call(wait_parity, "w", e.mask, place, e.value(operands[2], 32), form)
    else:
        call = e.call(wait_state, "w", e.mask, place, e.value(operands[2], 64), form)
    name = e.temporary(call)
    e.park_if_none(name)
    e.assign_predicate(operands[0], name)


def _pending_count(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    m.one("b64")
    count, state = m.end(2)
    e.assign(count, e.call(pending_count, e.mask, e.value(state, 64)), 32)


LOWERINGS: Mapping[str, Lowering] = {
    "mbarrier.init": _init,
    "mbarrier.inval": _inval,
    "mbarrier.expect_tx": _transaction,
    "mbarrier.complete_tx": _transaction,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive_drop": _arrive,
    "mbarrier.test_wait": _wait_lowering,
    "mbarrier.try_wait": _wait_lowering,
    "mbarrier.pending_count": _pending_count,
}
BLOCKING = frozenset({"mbarrier.test_wait", "mbarrier.try_wait"})
