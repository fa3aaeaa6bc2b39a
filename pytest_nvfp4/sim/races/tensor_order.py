"""The order of two accesses to tensor memory, and the instructions for it that a kernel omits.

PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations", as interpreted here. ``mma``, ``cp``,
``shift``, ``ld`` and ``st`` are asynchronous: even those of one thread are unordered, except for the *pipelined
instruction pairs* (``mma`` to ``mma`` with the same accumulator, shape and kind; ``cp`` to ``mma``). ``alloc``,
``dealloc``, ``commit``, ``wait`` and ``fence`` are synchronous. A wait for an mbarrier that a ``commit`` arrives at
shows that the work of ``mma`` and ``cp`` is complete, without ``fence::before_thread_sync``; ``wait::ld`` and
``wait::st`` in the issuing thread show it of ``ld`` and ``st``. A barrier, arrive or flag orders asynchronous tcgen05
work of two threads only with ``fence::before_thread_sync`` before it in the first and ``fence::after_thread_sync``
behind it in the second; a thread that waits for its own commit needs the latter too. With both fences, a ``.relaxed``
arrive and wait are enough, as in the ISA's own examples ("Canonical synchronization patterns").

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

Errors and warnings: the ISA requires all of it, except in the last line, where it respects the true register
dependency. The last column has what NVIDIA's kernels omit without known harm: fences around mbarriers and barriers,
``wait::ld``, the wait between the MMAs that read scale factors and the ``cp`` that replaces them, and ``wait::st``
between a store and a load of one warp (in transposes through tensor memory). A value that such a load has read counts
as stored, also for accesses ordered behind the load. A missing ``wait::ld`` is an error if nothing has used a register
of the load before the arrive that another warp waits for, and something may behind it (``pending_loads``).

Checked elsewhere: operands in shared memory, by the ordinary rules (mbarriers, proxy fences). ``alloc`` begins the
history of its columns; the order of its address before its use is checked in shared memory. A warp is one agent, so the
accesses of its lanes are ordered. Two warps that issue to one pipe with no order at all between them are reported as if
only the fences were missing, and so as a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_nvfp4.sim.races.access import Access, TensorUse
from pytest_nvfp4.sim.races.shadow import Conflict, Shadow
from pytest_nvfp4.sim.races.ticks import BEFORE, ISSUED, TENSOR, TickRow, Ticks

COMMIT = "a wait for a tcgen05.commit"
WAIT_LD = "tcgen05.wait::ld"
WAIT_ST = "tcgen05.wait::st"
BEFORE_SYNC = "tcgen05.fence::before_thread_sync"
AFTER = "tcgen05.fence::after_thread_sync"

_PIPE = frozenset({"mma", "cp"})


def missing_between(old: Access, new: Access, *, old_writes: bool, new_writes: bool) -> tuple[str, ...]:
    """Return the instructions of the table's last column that are missing between two otherwise ordered accesses."""
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
    missing: list[str] = []
    load = first.load
    if load is not None and max(ticks[BEFORE, load.agent], ticks[TENSOR, load.agent]) < load.tick:
        missing.append(WAIT_LD)
    if same and not piped:
        if first.kind == "st" and ticks[BEFORE, old.agent] < old.tick:
            missing.append(WAIT_ST)
        return tuple(missing)
    if ticks[TENSOR, old.agent] < old.tick:
        missing.append(BEFORE_SYNC)
    if second.kind != "dealloc" and not _holds(issuer.seen, old.agent, old.tick):
        missing.append(AFTER)
    return tuple(missing)


def ordered_by_fences(old: Access, new: Access) -> bool:
    """Return whether tcgen05 fences around a relaxed barrier order two accesses to tensor memory."""
    if new.use is None:
        return False
    if new.use.kind == "dealloc":
        return bool(new.use.issuer.clock.ticks[TENSOR, old.agent] >= old.tick)
    return _holds(new.use.issuer.seen, old.agent, old.tick)


def _pipelined(first: TensorUse, second: TensorUse, *, writes: bool) -> bool:
    """Return whether two operations of a pipe are a pipelined instruction pair, executed in the order of issue."""
    if second.kind != "mma":
        return False
    return first.kind == "cp" or (writes and first.accumulator == second.accumulator)


def _holds(row: TickRow | None, agent: int, tick: int) -> bool:
    """Return whether a row of a clock, which may be from a time with fewer agents, has an agent's tick."""
    return row is not None and agent < row.size and bool(row[agent] >= tick)


class Omissions:
    """Pairs of instructions of a launch that were reported for what is missing between them.

    Attributes:
        pairs: The two instructions, and what is missing.
        commits: Those that lack only a commit: every step of a main loop repeats them.
    """

    def __init__(self) -> None:
        self.pairs: set[tuple[int, int, tuple[str, ...]]] = set()
        self.commits: set[tuple[int, int]] = set()


@dataclass(eq=False)
class TensorShadow(Shadow):
    """The history of a tensor memory, in which missing fences and waits are reported too."""

    reported: Omissions = field(kw_only=True)

    def read(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and record a read."""
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
            # Fast path: the pipelined pair in the main loop of every kernel.
            if first.issuer is issuer and first.kind == "cp" and use.kind == "mma":  # type: ignore[union-attr]
                continue
            if ticks[BEFORE, old[0]] >= old[1] or ordered_by_fences(old, access):
                self._check_missing(part, old, access, ticks, old_writes=True, new_writes=False)
        super().read(parts, access, ticks)

    def write(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and record a write."""
        if len(self.writes) != len(self.partition.parents):
            self._follow()
        before = ticks[BEFORE]
        use = access[6]
        reads, commits, at = self.reads, self.reported.commits, access[3]
        for part in parts:
            known = reads[part]
            if known is not None and known.__class__ is not dict and (known[3], at) in commits:
                continue
            lacking = False
            if known is not None:
                for old in known.values() if isinstance(known, dict) else (known,):
                    if before[old[0]] >= old[1] or ordered_by_fences(old, access):
                        lacking |= self._check_missing(part, old, access, ticks, old_writes=False, new_writes=True)
            last = self.writes[part]
            # A write that lacks the order behind a value's readers lacks it behind its writer too.
            if last is None or lacking:
                continue
            first = last[6]
            if first.issuer is use.issuer and first.kind == "mma" and first.accumulator == use.accumulator:  # type: ignore[union-attr]
                continue
            if before[last[0]] >= last[1] or ordered_by_fences(last, access):
                self._check_missing(part, last, access, ticks, old_writes=True, new_writes=True)
        super().write(parts, access, ticks)

    def _check_missing(
        self, part: int, old: Access, new: Access, ticks: Ticks, *, old_writes: bool, new_writes: bool
    ) -> bool:
        """Report the instructions that are missing between two ordered accesses, and return whether there are any."""
        missing = missing_between(old, new, old_writes=old_writes, new_writes=new_writes)
        if not missing:
            return False
        key = (old.at, new.at, missing)
        if key not in self.reported.pairs:
            self.reported.pairs.add(key)
            if missing == (COMMIT,):
                self.reported.commits.add((old.at, new.at))
            self.report(Conflict(self, part, old, old_writes, new, new_writes, ticks, missing=missing))
        return True
