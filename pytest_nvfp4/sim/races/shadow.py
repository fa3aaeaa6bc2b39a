"""The history of one memory: the last write to each of its parts, and the reads since.

A write is checked against the last write and the reads since, a read against the last write. Earlier accesses need no
check: they happened before the last write, or were reported with it. Two strong accesses never race, so a strong write
may follow accesses that are unordered with it, and later accesses may be ordered behind it alone. Therefore the
accesses before it are checked too, and stay (``covered``) until the next weak write. So do an agent's weak reads before
its strong one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.clocks import Clocks
from pytest_nvfp4.sim.races.partition import Partition
from pytest_nvfp4.sim.races.ticks import ASYNC_SHARED, BEFORE, VISIBLE, Ticks


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses to one part of a memory that lack an order.

    Attributes:
        shadow, part: The memory and its part.
        old, new: The earlier and the later access.
        old_writes, new_writes: Whether each writes.
        ticks: The clock of the later access.
        proxy: Whether the accesses are ordered, and only a proxy fence is missing: behind a write, or behind a load
            that may be pending (``pending_loads``). In TMEM a wait for such a load is missing.
        missing: Of accesses that are ordered: the tcgen05 instructions that are missing (``tensor_order``).
    """

    shadow: Shadow
    part: int
    old: Access
    old_writes: bool
    new: Access
    new_writes: bool
    ticks: Ticks
    proxy: bool = False
    missing: tuple[str, ...] = ()


Reads = Access | dict[int, Access] | None


class _Covered(NamedTuple):
    agent: int
    writes: bool
    strong: int


@dataclass(slots=True, eq=False)
class Shadow:
    """The history of one memory of a CTA.

    Args:
        partition: Its parts, shared with the same memory of the launch's other CTAs.
        report: Called with every conflict.
        clocks: Clocks of the memory's cluster.
        name: Name of the memory in messages.
        in_order: Whether the accesses of each agent to this memory are in order, and none uses the async proxy. That
            holds for tensor memory: for a pipe, a warp, and a warp's stores.

    Attributes:
        covered: By part, the accesses before its strong writes, and weak reads before strong ones of their agents.
        mixed: The agents whose reads of some part were of several instructions, of which the last one is known.
    """

    partition: Partition
    report: Callable[[Conflict], None]
    _: KW_ONLY
    clocks: Clocks
    name: str = ""
    in_order: bool = False
    writes: list[Access | None] = field(default_factory=lambda: [None])
    reads: list[Reads] = field(default_factory=lambda: [None])
    covered: dict[int, dict[_Covered, Access]] = field(default_factory=dict)
    mixed: set[int] = field(default_factory=set)

    def _follow(self) -> None:
        """Adopt the splits that the partition has made since."""
        writes, reads = self.writes, self.reads
        for parent in self.partition.parents[len(writes) :]:
            writes.append(writes[parent])
            known = reads[parent]
            reads.append(dict(known) if known.__class__ is dict else known)
            if parent in self.covered:
                self.covered[len(writes) - 1] = dict(self.covered[parent])

    def read(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and record a read; ``ticks`` is the clock of its agent."""
        writes, reads = self.writes, self.reads
        if len(writes) != len(self.partition.parents):
            self._follow()
        covered = self.covered
        agent = access[0]
        ordered = agent if self.in_order else None
        for part in parts:
            old = writes[part]
            known = reads[part]
            if old is not None and old[0] != ordered:
                if ticks[VISIBLE, old[0]] < old[1]:
                    if not old[2] & access[2] & STRONG:
                        self.report(Conflict(self, part, old, True, access, False, ticks))
                elif access[2] & ASYNC and not old[2] & ASYNC and ticks[ASYNC_SHARED, old[0]] < old[1]:
                    self.report(Conflict(self, part, old, True, access, False, ticks, proxy=True))
                if covered and part in covered:
                    self._check_covered(part, access, ticks, writes=False)
            if known is None:
                reads[part] = access
            elif known.__class__ is dict:
                if agent in known:
                    self._replace(part, known[agent], access)
                known[agent] = access
            elif known[0] == agent:
                self._replace(part, known, access)  # type: ignore[arg-type]
                reads[part] = access
            else:
                reads[part] = {known[0]: known, agent: access}  # type: ignore[dict-item]

    def write(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and record a write; ``ticks`` is the clock of its agent."""
        writes, reads = self.writes, self.reads
        if len(writes) != len(self.partition.parents):
            self._follow()
        covered = self.covered
        strong = access[2] & STRONG
        ordered = access[0] if self.in_order else None
        if self.clocks.pending and (self.in_order or access[2] & ASYNC):
            self._check_pending(parts, access, ticks)
        # An access checked in one part is not checked again in the next: parts are often written and read together.
        checked: Reads = None
        for part in parts:
            # Reads first: a write that is ordered neither behind the readers nor behind the last writer has most
            # likely missed its wait for the readers, and only the first conflict is reported.
            known = reads[part]
            if known is not None:
                if known is checked:
                    pass
                elif known.__class__ is dict:
                    for read in known.values():
                        if read[0] != ordered and ticks[BEFORE, read[0]] < read[1] and not read[2] & access[2] & STRONG:
                            self.report(Conflict(self, part, read, False, access, True, ticks))
                elif known[0] == ordered:
                    pass
                elif ticks[BEFORE, known[0]] < known[1] and not known[2] & access[2] & STRONG:  # type: ignore[operator,index]
                    self.report(Conflict(self, part, known, False, access, True, ticks))  # type: ignore[arg-type]
                checked = known
                if strong:
                    self._cover(part, known)
                reads[part] = None
        checked = None
        for part in parts:
            old = writes[part]
            if old is not None and old is not checked and old[0] != ordered:
                checked = old
                if ticks[VISIBLE, old[0]] < old[1]:
                    if not old[2] & access[2] & STRONG:
                        self.report(Conflict(self, part, old, True, access, True, ticks))
                elif access[2] & ASYNC and not old[2] & ASYNC and ticks[ASYNC_SHARED, old[0]] < old[1]:
                    self.report(Conflict(self, part, old, True, access, True, ticks, proxy=True))
            if covered and part in covered:
                self._check_covered(part, access, ticks, writes=True)
            if strong:
                if old is not None:
                    covered.setdefault(part, {})[_Covered(old[0], True, old[2] & STRONG)] = old
            elif covered:
                covered.pop(part, None)
            writes[part] = access

    def _check_pending(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Report loads before the write that are ordered by an arrive that did not wait for them, and by no fence."""
        pending = self.clocks.pending
        checked: Reads = None
        for part in parts:
            known = self.reads[part]
            if known is None or known is checked:
                continue
            checked = known
            for read in known.values() if isinstance(known, dict) else (known,):
                behind = pending.get((read[4], read[1]))
                if behind is None or read[3] not in behind.last or ticks[BEFORE, read[0]] < read[1]:
                    continue
                if not self.in_order and ticks[ASYNC_SHARED, read[0]] >= read[1]:
                    continue
                if ticks[BEFORE, behind.agent] <= behind.last[read[3]]:
                    self.report(Conflict(self, part, read, False, access, True, ticks, proxy=True))

    def _replace(self, part: int, old: Access, new: Access) -> None:
        """Replace a read by a later one of its agent. A weak one, which races with strong writes, stays covered."""
        if old[3] != new[3]:
            self.mixed.add(new[0])
        if new[2] & STRONG and not old[2] & STRONG:
            self._cover(part, old)

    def _cover(self, part: int, known: Access | dict[int, Access]) -> None:
        covered = self.covered.setdefault(part, {})
        for read in known.values() if isinstance(known, dict) else (known,):
            key = _Covered(read[0], False, read[2] & STRONG)
            if key in covered and covered[key][3] != read[3]:
                self.mixed.add(read[0])
            covered[key] = read

    def _check_covered(self, part: int, access: Access, ticks: Ticks, *, writes: bool) -> None:
        for (agent, wrote, strong), old in self.covered[part].items():
            if (wrote or writes) and ticks[VISIBLE if wrote else BEFORE, agent] < old[1] and not strong & access[2]:
                self.report(Conflict(self, part, old, wrote, access, writes, ticks))

    def dissolve(self) -> None:
        """Release the accesses, whose warps refer back to the memory, at its end."""
        self.writes.clear()
        self.reads.clear()
        self.covered.clear()

    def forget(self, parts: Sequence[int]) -> None:
        """Clear the history of parts, whose contents have ended."""
        if len(self.writes) != len(self.partition.parents):
            self._follow()
        for part in parts:
            self.covered.pop(part, None)
            self.writes[part] = None
            self.reads[part] = None
