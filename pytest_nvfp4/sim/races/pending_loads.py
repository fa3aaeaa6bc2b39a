"""Loads of shared memory and TMEM that may not have read it yet when their warp arrives at a barrier.

Neither an arrive at an mbarrier nor ``bar.sync`` waits for the loads before it. Whoever is woken by it may start a
copy, which writes through the async proxy, while a load still waits for its turn, for example behind another warp's
stores. The PTX ISA ("Proxies") requires a ``fence.proxy.async`` between the two, in the warp that loads or in one
behind it. In practice it is enough that a value is used before the arrive, which an instruction can only do once the
load is done.

A ``tcgen05.ld`` is waited for by ``tcgen05.wait::ld``, or likewise by a use of its registers, and by nothing else:
whoever is woken may write or free the columns (PTX ISA, "tcgen05.wait"; flashinfer #5335).

A load counts only where an instruction behind the arrive may read what it has loaded. Warps without valid rows of a
ragged tile load the accumulator and use none of it: what they get does not matter.

Evidence for shared memory: measured on an H200. Of 12,000 calls of a kernel whose warps loaded the last words of a
stage right before they freed it, 26 had sums with words of the next stage; with a ``fence.proxy.async`` before the
arrive none had. In another kernel 16 warps load a stage of 4 KiB with bank conflicts, and one bulk copy fills it again:
13 % of 1.6 billion words were wrong with an arrive of each thread behind its loads, 11 % with ``bar.sync`` and the
arrive of one thread, none with a ``fence.proxy.async`` before the barrier, behind it, or before the copy, or with a
``fence.acq_rel.cta`` before the barrier. (ptxas lets BAR.SYNC wait for no LDS.)
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.deferred import renaming
from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.liveness import Liveness
from pytest_nvfp4.sim.ptx.syntax import Instruction


def pending_loads(flow: Flow, liveness: Liveness) -> Mapping[int, frozenset[int]]:
    """Return for each arrive at a barrier the loads before it that no instruction may have waited for.

    Only loads whose values may be read behind the arrive are among them.
    """
    instructions = flow.kernel.instructions
    copied = any(map(_copies, instructions))
    if not copied and not any(map(_arrives, instructions)):
        return {}
    found: dict[int, set[int]] = {}
    for ins in instructions:
        if _loads_tmem(ins) or (copied and _loads_shared(ins)):
            for at in _arrives_after(flow, liveness, ins.index):
                found.setdefault(at, set()).add(ins.index)
    return {at: frozenset(loads) for at, loads in found.items()}


def _arrives_after(flow: Flow, liveness: Liveness, load: int) -> set[int]:
    """Return the arrives that a path from a load reaches before anything waits for its values, and reads them then."""
    instructions, slots = flow.kernel.instructions, flow.slots
    tmem = _loads_tmem(instructions[load])
    waits, moves, frees = (_waits_for_tmem, _moves, _arrives) if tmem else (_orders, renaming, _frees)
    arrives: set[int] = set()
    seen: dict[int, frozenset[int]] = {}
    waiting = [(at, frozenset(slots[load].written)) for at in flow.successors(load)]
    while waiting:
        at, loaded = waiting.pop()
        if at >= len(instructions) or at == load or loaded <= seen.get(at, frozenset()):
            continue
        seen[at] = loaded = loaded | seen.get(at, frozenset())
        ins = instructions[at]
        if waits(ins):
            continue
        if not loaded.isdisjoint(slots[at].read):
            if not moves(ins):
                continue
            loaded |= slots[at].written
        if frees(ins) and not loaded.isdisjoint(liveness.live_before(at)):
            arrives.add(at)
        waiting += [(after, loaded) for after in flow.successors(at)]
    return arrives


def _loads_tmem(ins: Instruction) -> bool:
    return ins.parts[:2] == ("tcgen05", "ld")


def _loads_shared(ins: Instruction) -> bool:
    return ins.root == "ldmatrix" or (ins.root == "ld" and any(part.startswith("shared") for part in ins.parts))


def _arrives(ins: Instruction) -> bool:
    return ins.root == "mbarrier" and ins.parts[1].startswith("arrive")


def _frees(ins: Instruction) -> bool:
    """Return whether other warps may be woken by an instruction, which waits for none of its thread's loads."""
    return _arrives(ins) or (ins.root in ("bar", "barrier") and ins.parts[1] not in ("warp", "cluster"))


def _copies(ins: Instruction) -> bool:
    """Return whether an instruction may write shared memory through the async proxy."""
    return ins.parts[:3] == ("cp", "async", "bulk")


def _moves(ins: Instruction) -> bool:
    """Return whether an instruction may only name registers anew, with or without packing."""
    return ins.root == "mov"


def _waits_for_tmem(ins: Instruction) -> bool:
    return ins.parts[:2] == ("tcgen05", "wait::ld")


def _orders(ins: Instruction) -> bool:
    """Return whether an instruction waits for its thread's earlier loads."""
    if ins.parts[:2] == ("barrier", "cluster"):
        return True
    if ins.root == "fence":
        return not {"mbarrier_init", "proxy"} & set(ins.parts) or any(part.startswith("async") for part in ins.parts)
    return ins.root == "membar"
