"""Accesses to memory, as shadows record them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol

from pytest_nvfp4.sim.races.clocks import Clock, Epoch
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.races.ticks import TickRow

ASYNC = 1
"""Flag: the access goes through the async proxy (bulk copies, TMA, operands of ``tcgen05`` and ``wgmma``)."""
STRONG = 2
"""Flag: an atomic, or a load or store with an order (``.volatile``, ``.relaxed`` and stronger).

Two strong accesses never race: morally strong operations are not a data race (PTX ISA, "Memory Consistency Model",
"Data-races"). Scopes that are too narrow for the pair are not checked.
"""


class TensorIssuer(Protocol):
    """A warp that issues tcgen05 instructions.

    Attributes:
        clock: What happened before the warp's next instruction.
        seen: By agent, the tcgen05 work that the warp's last ``fence::after_thread_sync`` ordered before later work.
        seen_issued: The same, with work that was only issued, and not complete, before the synchronisation.
    """

    clock: Clock
    seen: TickRow | None
    seen_issued: TickRow | None


class TensorUse(NamedTuple):
    """Use of tensor memory by one instruction.

    Attributes:
        kind: ``mma``, ``cp``, ``ld``, ``st`` or ``dealloc``.
        issuer: The warp.
        load: Of an ``ld``: the epoch of its completion, under the agent of the warp's loads.
        accumulator: Of an ``mma``: its kind and accumulator; equal for MMAs that the pipe executes in order.
    """

    kind: str
    issuer: TensorIssuer
    load: Epoch | None = None
    accumulator: object = None


class Access(NamedTuple):
    """One access to memory. Hot code reads the fields by index, which is faster than by name.

    Attributes:
        agent, tick: The epoch. The access happened before everything whose clock has this tick of the agent.
        flags: ``ASYNC``, ``STRONG``.
        at: Index of the instruction in its kernel.
        warp: The warp that executed the instruction.
        detail: The box of a tensor copy.
        use: Of tensor memory: the use that ``tensor_order`` checks, with warnings on.
    """

    agent: int
    tick: int
    flags: int
    at: int
    warp: WarpId
    detail: Any = None
    use: TensorUse | None = None


make_access = partial(tuple.__new__, Access)
"""Make an ``Access`` from a tuple of all its fields: half the time of the constructor."""
