"""Lowerings of the mbarrier instructions; ``mbarrier_ops`` executes them.

Source: PTX ISA, "mbarrier.init" to "mbarrier.try_wait".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Register, Sink
from pytest_nvfp4.sim.sync import mbarrier_ops
from pytest_nvfp4.sim.sync.mbarrier_ops import MbarrierForm

_SHARED = ("shared", "shared::cta", "shared::cluster")


_FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "init": mbarrier_ops.init,
    "inval": mbarrier_ops.invalidate,
    "expect_tx": mbarrier_ops.count_bytes,
    "complete_tx": mbarrier_ops.count_bytes,
}


def _form(m: OpcodeReader, e: Emitter, *, cluster: bool = False, **flags: bool) -> MbarrierForm:
    """Take ``{.space}.b64`` and return the parsed instruction. ``cluster``: whether it accepts shared::cluster."""
    space = m.maybe(*_SHARED)
    m.one("b64")
    m.done()
    if space == "shared::cluster" and not cluster:
        raise m.refuse("not defined for shared::cluster")
    return MbarrierForm(m.opcode, e.at, space == "shared::cluster", not space, **flags)


def _object(ins: Instruction, e: Emitter) -> None:
    """Lower ``mbarrier.init``, ``inval``, ``expect_tx`` and ``complete_tx``."""
    m = OpcodeReader(ins, 2)
    name = ins.parts[1]
    counts_bytes = name in ("expect_tx", "complete_tx")
    if counts_bytes and m.has("relaxed"):
        m.one("cta", "cluster")
    form = e.constant(_form(m, e, cluster=counts_bytes, expects=name == "expect_tx"), "form")
    place, *amounts = m.operands(1 if name == "inval" else 2)
    address = e.address(place)
    e.line(e.call(_FUNCTIONS[name], "w", e.mask, address, *(e.value(amount, 32) for amount in amounts), form))


def _arrive(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    kind = m.maybe("expect_tx", "noComplete")
    if m.has("release", "relaxed"):
        m.one("cta", "cluster")
    state, place, *amounts = m.operands(3) if kind else m.operands(2, 3)
    returns = not isinstance(state, Sink)
    form = _form(
        m,
        e,
        cluster=kind != "noComplete",
        expects=kind == "expect_tx",
        drop=ins.parts[1] == "arrive_drop",
        completes=kind != "noComplete",
        state=returns,
    )
    if form.cluster and returns:
        raise m.refuse("a shared::cluster barrier returns no state; the result must be _")
    amount = e.value(amounts[0], 32) if amounts else "1"
    text = e.call(mbarrier_ops.arrive, "w", e.mask, e.address(place), amount, e.constant(form, "form"))
    e.assign(state, text, 64)


def _wait_lowering(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    parity = m.has("parity")
    if m.has("acquire", "relaxed"):
        m.one("cta", "cluster")
    read = _form(m, e)
    operands = m.operands(3, 4) if ins.parts[1] == "try_wait" else m.operands(3)
    if len(operands) == 4:
        e.value(operands[3], 32)  # the suspend-time hint is checked and ignored
    place = e.address(operands[1])
    result = operands[0]
    form = e.constant(replace(read, unread=isinstance(result, Register) and not e.used(result.slot)), "form")
    function, bits = (mbarrier_ops.wait_parity, 32) if parity else (mbarrier_ops.wait_state, 64)
    name = e.temporary(e.call(function, "w", e.mask, place, e.value(operands[2], bits), form))
    e.park_if_none(name)
    e.assign_predicate(result, name)


def _pending_count(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    m.one("b64")
    count, state = m.end(2)
    e.assign(count, e.call(mbarrier_ops.pending_count, e.mask, e.value(state, 64)), 32)


LOWERINGS: Mapping[str, Lowering] = {
    **{f"mbarrier.{name}": _object for name in _FUNCTIONS},
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive_drop": _arrive,
    "mbarrier.test_wait": _wait_lowering,
    "mbarrier.try_wait": _wait_lowering,
    "mbarrier.pending_count": _pending_count,
}
BLOCKING = frozenset({"mbarrier.test_wait", "mbarrier.try_wait"})
