"""What the order of two accesses to tensor memory rests on, and what of it a kernel leaves out.

PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations", as it is read here. ``mma``, ``cp``,
``shift``, ``ld`` and ``st`` are asynchronous: not even those of one thread follow each other, but for the *pipelined*
pairs (``mma`` to ``mma`` with the same accumulator, shape and kind; ``cp`` to ``mma``). ``alloc``, ``dealloc``,
``commit``, ``wait`` and ``fence`` are synchronous. Work of ``mma`` and ``cp`` is known to be complete by a ``commit``
to an mbarrier that was waited for, which needs no ``fence::before_thread_sync``; work of ``ld`` and ``st`` by
``wait::ld`` and ``wait::st`` in the thread that issued it. A barrier, arrive or flag orders asynchronous tcgen05
work of two threads only with ``fence::before_thread_sync`` before it in the first and ``fence::after_thread_sync``
behind it in the second; also the thread that waits for its own commit needs the latter. With both fences a
``.relaxed`` arrive and wait are enough, as in the ISA's own examples ("Canonical synchronization patterns").

Two accesses of which one writes; "sync" is any order of the threads (a barrier, an mbarrier, a flag):

=============  ==========  ==================================  ========================  ==============================
first          by          second                              error without             a warning without
=============  ==========  ==================================  ========================  ==============================
mma            same warp   mma, same accumulator and kind      --                        -- (pipelined)
cp             same warp   mma                                 --                        -- (pipelined)
mma, cp        same warp   another mma or cp                   --                        commit, wait; then after
mma, cp        other warp  mma, cp                             --                        as in one warp, and sync, with
                                                                                         before and after or by commit
mma, cp        any         ld, st                              commit, wait              after
mma, cp        any         dealloc                             commit, wait              --
ld             same warp   all that write                      --                        wait::ld
ld             other warp  mma, cp, st                         sync                      wait::ld, before, after
ld             other warp  dealloc                             sync                      wait::ld, before
st             same warp   mma, cp, dealloc                    wait::st                  --
st             same warp   ld, st                              --                        wait::st
st             other warp  all but dealloc                     sync, wait::st            before, after
st             other warp  dealloc                             sync, wait::st            before
tcgen05.ld     same warp   use of a register that it loads     --                        wait::ld
=============  ==========  ==================================  ========================  ==============================

What is an error and what a warning: the ISA wants all of it, except for the last line, where it respects the true
register dependency. In the last column is what NVIDIA's kernels leave out without harm known: fences around mbarriers
and barriers, ``wait::ld``, the wait between the MMAs that read scale factors and the ``cp`` that replaces them, and
``wait::st`` between a store and a load of one warp (which transpose through tensor memory); what the load has seen is
stored, then, also for what others do after it.

Left to others: operands in shared memory are ordered by the ordinary means (mbarriers, proxy fences). ``alloc`` begins
the history of its columns; that its address must be ordered before its use is seen in shared memory. A warp is one
agent: what one of its lanes does is ordered with the others'. Two warps that give work to one pipe with no order at all
between them are told of as if the fences were what is missing, and so as a warning only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.clocks import BEFORE, ISSUED, TENSOR, Ticks
from pytest_nvfp4.sim.races.shadow import Shadow

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.agents import WarpAgent

__all__ = [
    "AFTER", "BEFORE_SYNC", "COMMIT", "WAIT_LD", "WAIT_ST", "TensorShadow", "TensorUse", "missing", "ordered_by_fences",
]  # fmt: skip

COMMIT = "a wait for a tcgen05.commit"
WAIT_LD = "tcgen05.wait::ld"
WAIT_ST = "tcgen05.wait::st"
BEFORE_SYNC = "tcgen05.fence::before_thread_sync"
AFTER = "tcgen05.fence::after_thread_sync"

_PIPE = frozenset({"mma", "cp"})

Omission = Callable[["TensorShadow", int, Access, bool, Access, bool, tuple[str, ...]], None]
"""Told of what is missing: the shadow, the part, the earlier access and whether it writes, the later one and whether
it writes, and the instructions that are missing."""


class TensorUse(NamedTuple):
    """How an instruction uses tensor memory.

    Attributes:
        kind: ``mma``, ``cp``, ``ld``, ``st`` or ``dealloc``.
        issuer: The warp.
        lag: Of an ``ld``: the agent of its warp's loads and the number of this one.
        accumulator: Of an ``mma``: what is the same in MMAs that follow each other.
    """

    kind: str
    issuer: WarpAgent
    lag: tuple[int, int] | None = None
    accumulator: object = None


def missing(old: Access, new: Access, *, old_writes: bool, new_writes: bool) -> tuple[str, ...]:
    """What the table's last column wants between two accesses that are ordered otherwise, and that is not there."""
    first, second = old.use, new.use
    if first is None or second is None:
        return ()
    issuer = second.issuer
    same = first.issuer is issuer
    ticks = issuer.clock.ticks
    piped = first.kind in _PIPE
    if piped and second.kind in _PIPE:
        if _pipelined(first, second, writes=old_writes and new_writes):
            if same or _holds(issuer.seen_issued, old.agent, old.tick):
                return ()
            sent = max(ticks[TENSOR, old.agent], ticks[ISSUED, old.agent]) >= old.tick
            return (AFTER,) if sent else (BEFORE_SYNC, AFTER)
        if max(ticks[BEFORE, old.agent], ticks[TENSOR, old.agent]) < old.tick:
            return (COMMIT,)
        return () if _holds(issuer.seen, old.agent, old.tick) else (AFTER,)
    found: list[str] = []
    if first.lag is not None and max(ticks[BEFORE, first.lag[0]], ticks[TENSOR, first.lag[0]]) < first.lag[1]:
        found.append(WAIT_LD)
    if same and not piped:
        if first.kind == "st" and ticks[BEFORE, old.agent] < old.tick:
            found.append(WAIT_ST)
        return tuple(found)
    if ticks[TENSOR, old.agent] < old.tick:
        found.append(BEFORE_SYNC)
    if second.kind != "dealloc" and not _holds(issuer.seen, old.agent, old.tick):
        found.append(AFTER)
    return tuple(found)


def ordered_by_fences(old: Access, new: Access) -> bool:
    """Whether tcgen05 fences order two accesses to tensor memory around a barrier that is relaxed, as in the ISA."""
    if new.use is None:
        return False
    if new.use.kind == "dealloc":
        return bool(new.use.issuer.clock.ticks[TENSOR, old.agent] >= old.tick)
    return _holds(new.use.issuer.seen, old.agent, old.tick)


def _pipelined(first: TensorUse, second: TensorUse, *, writes: bool) -> bool:
    """Whether two operations of a pipe are executed in the order of their issue."""
    if second.kind != "mma":
        return False
    return first.kind == "cp" or (writes and first.accumulator == second.accumulator)


def _holds(row: NDArray[np.int64] | None, agent: int, tick: int) -> bool:
    """Whether what a warp had seen at its last fence has an agent's tick."""
    return row is not None and agent < row.size and bool(row[agent] >= tick)


class TensorShadow(Shadow):
    """The shadow of a tensor memory in which also fences and waits are judged.

    ``omission`` is told of what is missing between accesses that are ordered otherwise.
    """

    __slots__ = ("commits", "omission", "told")

    omission: Omission
    told: set[tuple[int, int, tuple[str, ...]]]
    """What was told of, by the two instructions."""
    commits: set[tuple[int, int]]
    """Those of them between which a commit is missing: the same pairs come again with every step of a main loop."""

    def read(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Judge, check and note a read."""
        if len(self.writes) != len(self.partition.parents):
            self._follow()
        writes = self.writes
        use = access[6]
        issuer = use.issuer  # type: ignore[union-attr]
        for part in parts:
            old = writes[part]
            if old is None:
                continue
            first = old[6]
            # In the main loop of every kernel: nothing to judge.
            if first.issuer is issuer and first.kind == "cp" and use.kind == "mma":  # type: ignore[union-attr]
                continue
            if ticks[BEFORE, old[0]] >= old[1] or ordered_by_fences(old, access):
                self._judge(part, old, access, old_writes=True, new_writes=False)
        super().read(parts, access, ticks)

    def write(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Judge, check and note a write."""
        if len(self.writes) != len(self.partition.parents):
            self._follow()
        before = ticks[BEFORE]
        use = access[6]
        reads, commits, at = self.reads, self.commits, access[3]
        for part in parts:
            known = reads[part]
            if known is not None and known.__class__ is not dict and (known[3], at) in commits:
                continue
            told = False
            if known is not None:
                several = known.values() if isinstance(known, dict) else (known,)
                for old in several:
                    if before[old[0]] >= old[1] or ordered_by_fences(old, access):
                        told = self._judge(part, old, access, old_writes=False, new_writes=True) or told
            last = self.writes[part]
            # Who did not wait for the readers of a value did not wait for its writer either.
            if last is None or told:
                continue
            first = last[6]
            if first.issuer is use.issuer and first.kind == "mma" and first.accumulator == use.accumulator:  # type: ignore[union-attr]
                continue
            if before[last[0]] >= last[1] or ordered_by_fences(last, access):
                self._judge(part, last, access, old_writes=True, new_writes=True)
        super().write(parts, access, ticks)

    def _judge(self, part: int, old: Access, new: Access, *, old_writes: bool, new_writes: bool) -> bool:
        wanted = missing(old, new, old_writes=old_writes, new_writes=new_writes)
        if not wanted:
            return False
        key = (old.at, new.at, wanted)
        if key not in self.told:
            self.told.add(key)
            if wanted == (COMMIT,):
                self.commits.add(key[:2])
            self.omission(self, part, old, old_writes, new, new_writes, wanted)
        return True
