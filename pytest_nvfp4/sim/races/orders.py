"""Memory order and scope of loads, stores, atomics and fences, as their opcodes say them.

PTX ISA, "Memory Consistency Model": ``.relaxed``, ``.acquire``, ``.release`` and ``.acq_rel`` are strong; ``.volatile``
is relaxed at system scope; ``atom`` and ``red`` without an order are relaxed at GPU scope; ``membar.{cta,gl,sys}`` is
``fence.sc`` of scope cta, gpu or sys.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.sim.ptx.syntax import Instruction

__all__ = ["CLUSTER", "CTA", "GPU", "Order", "fence_of", "is_sc", "order_of"]

CTA, CLUSTER, GPU = range(3)
"""Scopes; ``.sys`` is as wide as ``.gpu`` here, where there is one device."""
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}


@dataclass(frozen=True, slots=True)
class Order:
    """What an access orders. A weak access has none of it."""

    strong: bool = False
    acquires: bool = False
    releases: bool = False
    updates: bool = False
    """A read-modify-write: it goes on with the release sequence that it finds."""
    scope: int = GPU


_WEAK = Order()


def order_of(instruction: Instruction) -> Order:
    """The order of a load, store or atomic."""
    parts = instruction.parts
    if parts[:2] == ("cp", "reduce"):
        return Order(strong=True, updates=True)
    atomic = instruction.root in ("atom", "red")
    if not atomic and not {"volatile", "relaxed", "acquire", "release"} & set(parts):
        return _WEAK
    scope = GPU
    for part in parts[1:]:
        if part in ("cta", "cluster", "gpu", "sys"):
            scope = _SCOPES[part]
    return Order(
        strong=True,
        acquires="acquire" in parts or "acq_rel" in parts,
        releases="release" in parts or "acq_rel" in parts,
        updates=atomic,
        scope=scope,
    )


def is_sc(kind: str) -> bool:
    """Whether a thread fence's kind is sequentially consistent at the device's scope: membar.gl, fence.sc.gpu ..."""
    return fence_of(kind) == GPU and (kind in _SCOPES or kind.startswith("sc."))


def fence_of(kind: str) -> int | None:
    """The scope of a thread fence's kind (``acq_rel.gpu``, ``gl`` ...); None for another fence."""
    parts = kind.split(".")
    if len(parts) == 1:
        return _SCOPES.get(kind)
    if parts[0] in ("sc", "acq_rel", "acquire", "release"):
        return _SCOPES.get(parts[-1])
    return None
