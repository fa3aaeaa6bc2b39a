"""Cluster launch control: a running cluster cancels one that has not started, and takes over its work.

Rules (PTX ISA, "clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel"):

- ``try_cancel`` removes the next cluster from the grid's queue, if there is one, writes a response of 16 bytes to
  shared memory of the own CTA (aligned to 16 bytes), and completes 16 bytes at the mbarrier. With
  ``.multicast::cluster::all`` the response and the completion go to the same offsets in every CTA of the cluster, none
  of which may have exited.
- One lane issues it: each issuing lane cancels a cluster, so several lanes are a fault.
- A CTA that has observed a failed request (``is_canceled`` is false) must not issue another: a finding.
- The response is opaque. A query of other bytes is a fault, which the response's tag makes detectable. The coordinates
  of a failed response are undefined and read as 0xdeadbeef, without a fault: compilers query them before the test.

Counters: ``clc.requests``, ``clc.cancelled``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, Predicate, lanes, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Vector
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync import mbarrier
from pytest_nvfp4.sim.sync.addresses import locate, shared_address
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile

RESPONSE_BYTES = 16
_MAGIC = 0xC1C0_5EED_F1A6_D00D
_VEIL = 0xDEAD_BEEF_DEAD_BEEF
_UNDEFINED = 0xDEAD_BEEF
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ClcForm:
    """Parsed try_cancel; ``at`` is its index in the kernel."""

    what: str
    multicast: bool
    generic: bool
    at: int


class LaunchControl:
    """State of a CTA's requests: ``cta.unit(LaunchControl)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.saw_failure = False


def encode(first: tuple[int, int, int] | None) -> bytes:
    """Encode a response: the first CTA of the cancelled cluster, or None for a failed request."""
    if first is None:
        return (_VEIL | ((_MAGIC ^ _VEIL) & _WORD) << 64).to_bytes(RESPONSE_BYTES, "little")
    x, y, z = first
    return ((x | y << 32 | z << 48) ^ _VEIL | (_MAGIC & _WORD) << 64).to_bytes(RESPONSE_BYTES, "little")


def decode(response: int, *, what: str) -> tuple[int, int, int] | None:
    """Return the first CTA in a response, or None if the request failed. Raises Fault for other bytes."""
    tag = response >> 64
    if tag == _MAGIC:
        place = (response & _WORD) ^ _VEIL
        return place & 0xFFFF_FFFF, place >> 32 & 0xFFFF, place >> 48
    if tag == _MAGIC ^ _VEIL and response & _WORD == _VEIL:
        return None
    raise Fault(
        "clc",
        f"{what}: {response:#034x} is not a response of clusterlaunchcontrol.try_cancel",
        hint="wait for the mbarrier before loading the response, and load all 16 bytes",
    )


def try_cancel(w: Warp, mask: int, place: Bits, barrier: Bits, form: ClcForm) -> None:
    """Execute clusterlaunchcontrol.try_cancel in one lane."""
    if mask & (mask - 1):
        raise Fault(
            "multi-lane",
            f"{form.what}: issued by {mask.bit_count()} lanes, each of which cancels a cluster",
            hint="elect one lane around it (elect.sync)",
        )
    lane = lanes(mask)[0]
    w.does.add("schedule")
    cta = w.cta
    launch = cta.launch
    if cta.unit(LaunchControl).saw_failure:
        launch.report(
            "clc",
            f"{form.what}: issued after a request of this CTA failed, which is undefined",
            hint="leave the loop once is_canceled is false",
        )
    address = shared_address(value_in(place, lane), generic=form.generic, what=form.what)
    at = shared_address(value_in(barrier, lane), generic=form.generic, what=form.what)
    _, index = locate(cta, address, RESPONSE_BYTES, cluster=False, align=RESPONSE_BYTES, what=form.what)
    _, signal = locate(cta, at, mbarrier.SIZE, cluster=False, align=mbarrier.SIZE, what=form.what)
    targets = cta.cluster.ctas if form.multicast else [cta]
    barriers = []
    for target in targets:
        cta.peer(target.rank, what=form.what)
        target.shared.refuse_opaque(index, index + RESPONSE_BYTES, what=form.what)
        barriers.append(target.unit(MbarrierFile).at(signal, what=form.what))

    if (monitor := launch.machine.monitor) is not None:
        monitor.copy_in(
            w, form.at, [CopyTarget(t, index, b) for t, b in zip(targets, barriers, strict=True)], RESPONSE_BYTES
        )

    def respond() -> None:
        first = launch.cancel_next()
        launch.counters["clc.requests"] += 1
        launch.counters["clc.cancelled"] += first is not None
        data = np.frombuffer(encode(first), np.uint8)
        for target, resolved in zip(targets, barriers, strict=True):
            target.shared.write(index, data, what=form.what)
            mbarrier.complete_tx(resolved, RESPONSE_BYTES, who=form.what, source=(w, form.at))
        launch.machine.changes += 1

    launch.machine.asynchronous.submit(("clc", cta), respond, what=form.what)


def is_canceled(w: Warp, mask: int, response: Any) -> Predicate:
    """Execute query_cancel.is_canceled."""
    what = "clusterlaunchcontrol.query_cancel.is_canceled"
    if isinstance(response, int):
        canceled: Predicate = decode(response, what=what) is not None
        failed = not canceled
    else:
        canceled = np.zeros(32, np.bool_)
        for lane in lanes(mask):
            canceled[lane] = decode(int(response[lane]), what=what) is not None
        failed = any(not canceled[lane] for lane in lanes(mask))
    if failed:
        w.cta.unit(LaunchControl).saw_failure = True
    return canceled


def first_ctaid(mask: int, response: Any) -> tuple[Bits, Bits, Bits]:
    """Execute query_cancel.get_first_ctaid; return x, y and z."""
    what = "clusterlaunchcontrol.query_cancel.get_first_ctaid"
    undefined = (_UNDEFINED,) * 3
    if isinstance(response, int):
        return decode(response, what=what) or undefined
    index = np.zeros((3, 32), np.uint32)
    for lane in lanes(mask):
        index[:, lane] = decode(int(response[lane]), what=what) or undefined
    return index[0], index[1], index[2]


# ---- lowering ----------------------------------------------------------------------------------------------------


def _try_cancel(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    m.one("async")
    generic = not m.has("shared::cta")
    m.one("mbarrier::complete_tx::bytes")
    multicast = m.has("multicast::cluster::all")
    m.one("b128")
    place, barrier = m.end(2)
    form = e.constant(ClcForm(ins.opcode, multicast, generic, e.at), "form")
    e.line(e.call(try_cancel, "w", e.mask, e.address(place), e.address(barrier), form))


def _query(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    which = m.one("is_canceled", "get_first_ctaid", *(f"get_first_ctaid::{axis}" for axis in "xyz"))
    if which == "is_canceled":
        m.one("pred")
    else:
        if which == "get_first_ctaid":
            m.one("v4")
        m.one("b32")
    m.one("b128")
    result, response = m.end(2)
    value = e.value(response, 128)
    if which == "is_canceled":
        e.assign_predicate(result, e.call(is_canceled, "w", e.mask, value))
        return
    call = e.call(first_ctaid, e.mask, value)
    if which == "get_first_ctaid":
        # The fourth element has no meaning in the ISA.
        assert isinstance(result, Vector)
        e.assign_all(result, f"(*{call}, {_UNDEFINED})", 32)
    else:
        e.assign(result, f"{call}[{'xyz'.index(which[-1])}]", 32)


LOWERINGS: Mapping[str, Lowering] = {
    "clusterlaunchcontrol.try_cancel": _try_cancel,
    "clusterlaunchcontrol.query_cancel": _query,
}
