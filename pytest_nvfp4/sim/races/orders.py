"""Memory order and scope of loads, stores, atomics and fences, from their opcodes.

PTX ISA, "Memory Consistency Model": ``.relaxed``, ``.acquire``, ``.release`` and ``.acq_rel`` are strong; ``.volatile``
is relaxed at system scope; ``atom`` and ``red`` without an order are relaxed at GPU scope; ``membar.{cta,gl,sys}`` is
``fence.sc`` of scope cta, gpu or sys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from pytest_nvfp4.sim.ptx.syntax import Instruction

CTA, CLUSTER, GPU = range(3)
"""Scopes, from narrow to wide. ``.sys`` equals ``.gpu``, because the simulation has one device."""
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}


@dataclass(frozen=True, slots=True)
class Order:
    """Memory order of an access. A weak access has the defaults.

    Attributes:
        strong: Whether the access is strong.
        acquires, releases: Whether it is an acquire or a release by itself.
        updates: Whether it is a read-modify-write, which continues the release sequence of the value it reads.
        scope: Its scope.
        returns: Whether it returns the value that it has read and updated: ``atom``, and not ``red``.
    """

    strong: bool = False
    acquires: bool = False
    releases: bool = False
    updates: bool = False
    scope: int = GPU
    returns: bool = False


_WEAK = Order()


def order_of(instruction: Instruction) -> Order:
    """Return the order of a load, store, atomic or reducing copy."""
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
        returns=instruction.root == "atom",
    )


@cache
def is_sc(kind: str) -> bool:
    """Return whether a fence is sequentially consistent at the scope of the device: membar.gl, fence.sc.gpu ..."""
    return fence_scope(kind) == GPU and (kind in _SCOPES or kind.startswith("sc."))


@cache
def fence_scope(kind: str) -> int | None:
    """Return the scope of a thread fence (``acq_rel.gpu``, ``gl`` ...); None for any other fence."""
    parts = kind.split(".")
    if len(parts) == 1:
        return _SCOPES.get(kind)
    if parts[0] in ("sc", "acq_rel", "acquire", "release"):
        return _SCOPES.get(parts[-1])
    return None
