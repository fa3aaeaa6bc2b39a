"""Cluster launch control: a cluster takes over the work of one that has not started (PTX ISA,
"clusterlaunchcontrol.try_cancel" and "clusterlaunchcontrol.query_cancel").

- ``try_cancel`` takes the next cluster off the grid's queue, if there is one, and writes 16 bytes at a 16-byte aligned
  place of the own shared memory; then it completes 16 bytes at the mbarrier. With ``.multicast::cluster::all`` the
  response and the completion happen at the same offsets in every CTA of the cluster, none of which may have exited.
- One lane issues it: every lane that does takes a cluster away, which can only be a mistake (fault).
- A CTA that has seen a request fail (``is_canceled`` was false) must not issue another: a finding.
- The response is opaque; ours is no pattern that a program could use by chance. A query of anything else is a fault.
  The coordinates of a failed response are undefined: they read as 0xdeadbeef, because compilers query before they test.

Counters: ``clc.requests``, ``clc.cancelled``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, Predicate, lanes, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Vector
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.sync import mbarrier
from pytest_nvfp4.sim.sync.addresses import locate, shared_address
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "LaunchControl"]

RESPONSE_BYTES = 16
_MAGIC = 0xC1C0_5EED_F1A6_D00D
_VEIL = 0xDEAD_BEEF_DEAD_BEEF
_UNDEFINED = 0xDEAD_BEEF
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ClcForm:
    """A try_cancel: its name, whether it answers all CTAs, whether its addresses are generic, where it stands."""

    what: str
    multicast: bool
    generic: bool
    at: int


class LaunchControl:
    """What a CTA knows of its requests: ``cta.unit(LaunchControl)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.saw_failure = False


def encode(first: tuple[int, int, int] | None) -> bytes:
    """A response: of success with the first CTA of the cancelled cluster, or of failure."""
    if first is None:
        return (_VEIL | ((_MAGIC ^ _VEIL) & _WORD) << 64).to_bytes(RESPONSE_BYTES, "little")
    x, y, z = first
    return ((x | y << 32 | z << 48) ^ _VEIL | (_MAGIC & _WORD) << 64).to_bytes(RESPONSE_BYTES, "little")


def decode(response: int, *, what: str) -> tuple[int, int, int] | None:
    """The first CTA of a response, or None if it failed. Raises Fault for bytes that are no response."""
    tag = response >> 64
    if tag == _MAGIC:
        place = (response & _WORD) ^ _VEIL
        return place & 0xFFFF_FFFF, place >> 32 & 0xFFFF, place >> 48
    if tag == _MAGIC ^ _VEIL and response & _WORD == _VEIL:
        return None
    raise Fault(
        "clc",
        f"{what}: {response:#034x} is not a response of clusterlaunchcontrol.try_cancel",
        hint="wait for the mbarrier before the response is loaded, and load all 16 bytes of it",
    )


def try_cancel(w: Warp, mask: int, place: Bits, barrier: Bits, form: ClcForm) -> None:
    """clusterlaunchcontrol.try_cancel by one lane."""
    if mask & (mask - 1):
        raise Fault(
            "multi-lane",
            f"{form.what} by {mask.bit_count()} lanes: each takes a cluster off the queue",
            hint="elect one lane around it (elect.sync)",
        )
    lane = lanes(mask)[0]
    cta = w.cta
    launch = cta.launch
    if cta.unit(LaunchControl).saw_failure:
        launch.report(
            "clc",
            f"{form.what} after this CTA has seen a request fail, which is undefined",
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

    monitor = launch.machine.monitor
    if monitor is not None:
        monitor.copy_in(
            w, form.at, [CopyTarget(t, index, b) for t, b in zip(targets, barriers, strict=True)], RESPONSE_BYTES
        )

    def answer() -> None:
        first = launch.cancel_next()
        launch.counters["clc.requests"] += 1
        launch.counters["clc.cancelled"] += first is not None
        data = np.frombuffer(encode(first), np.uint8)
        for target, found in zip(targets, barriers, strict=True):
            target.shared.write(index, data, what=form.what)
            mbarrier.complete_tx(found, RESPONSE_BYTES, who=form.what)
        launch.machine.changes += 1

    launch.machine.asynchronous.submit(("clc", cta), answer, what=form.what)


def is_canceled(w: Warp, mask: int, response: Any) -> Predicate:
    """query_cancel.is_canceled."""
    what = "clusterlaunchcontrol.query_cancel.is_canceled"
    if isinstance(response, int):
        good: Predicate = decode(response, what=what) is not None
        failed = not good
    else:
        good = np.zeros(32, np.bool_)
        for lane in lanes(mask):
            good[lane] = decode(int(response[lane]), what=what) is not None
        failed = any(not good[lane] for lane in lanes(mask))
    if failed:
        w.cta.unit(LaunchControl).saw_failure = True
    return good


def first_ctaid(mask: int, response: Any) -> tuple[Bits, Bits, Bits]:
    """query_cancel.get_first_ctaid: x, y and z."""
    what = "clusterlaunchcontrol.query_cancel.get_first_ctaid"
    nowhere = (_UNDEFINED,) * 3
    if isinstance(response, int):
        return decode(response, what=what) or nowhere
    found = np.zeros((3, 32), np.uint32)
    for lane in lanes(mask):
        found[:, lane] = decode(int(response[lane]), what=what) or nowhere
    return found[0], found[1], found[2]


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
