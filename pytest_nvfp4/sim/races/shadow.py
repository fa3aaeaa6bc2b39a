"""What happened last to each part of one memory: its last write, and the reads since.

A write is checked against the last write and the reads since, a read against the last write. Earlier accesses need no
look: they happened before the last write, or were reported when that was made. Two strong accesses never race, so that
a strong write may come after others that it does not know, and is not known to those after it: what it came after needs
a look too, and is kept (``covered``) until the next weak write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.clocks import ASYNC_SHARED, BEFORE, Ticks
from pytest_nvfp4.sim.races.partition import Partition

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.agents import ClusterAgents

__all__ = ["Conflict", "Shadow"]

Conflict = Callable[["Shadow", int, Access, bool, Access, bool, bool, Ticks], None]
"""Told of a pair that is not ordered: the shadow, the part, the earlier access and whether it writes, the later one and
whether it writes, whether only a proxy fence is missing, and the clock that does not have the earlier one."""

Reads = Access | dict[int, Access] | None


class Shadow:
    """The state of one memory, one CTA's.

    Args:
        partition: Its parts, shared with the same memory of the launch's other CTAs.
        conflict: Told of every pair of accesses that is not ordered.
        agents: Of the cluster that the memory is in.
        name: What memory it is, for messages.
        in_order: Whether the accesses of each agent to this memory follow each other, and none is through the async
            proxy. So it is with tensor memory: a pipe, a warp, and its stores.
    """

    __slots__ = ("agents", "conflict", "covered", "in_order", "name", "partition", "reads", "writes")

    def __init__(
        self, partition: Partition, conflict: Conflict, *, agents: ClusterAgents | None = None, name: str = "",
        in_order: bool = False,
    ) -> None:  # fmt: skip
        self.partition = partition
        self.conflict = conflict
        self.agents = agents
        self.name = name
        self.in_order = in_order
        self.writes: list[Access | None] = [None]
        self.reads: list[Reads] = [None]
        self.covered: dict[int, dict[tuple[int, bool, int], Access]] = {}
        """By part: the accesses before its strong writes, by agent, whether they write, and whether they are strong."""

    def _follow(self) -> None:
        """Take over the splits that the partition has made since."""
        writes, reads = self.writes, self.reads
        for parent in self.partition.parents[len(writes) :]:
            writes.append(writes[parent])
            known = reads[parent]
            reads.append(dict(known) if known.__class__ is dict else known)
            if parent in self.covered:
                self.covered[len(writes) - 1] = dict(self.covered[parent])

    def read(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and note a read; ``ticks`` is the clock of whoever reads."""
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
                if ticks[BEFORE, old[0]] < old[1]:
                    if not old[2] & access[2] & STRONG:
                        self.conflict(self, part, old, True, access, False, False, ticks)
                elif access[2] & ASYNC and not old[2] & ASYNC and ticks[ASYNC_SHARED, old[0]] < old[1]:
                    self.conflict(self, part, old, True, access, False, True, ticks)
                if covered and part in covered:
                    self._check_covered(part, access, ticks, writes=False)
            if known is None:
                reads[part] = access
            elif known.__class__ is dict:
                known[agent] = access
            elif known[0] == agent:
                reads[part] = access
            else:
                reads[part] = {known[0]: known, agent: access}  # type: ignore[dict-item]

    def write(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and note a write; ``ticks`` is the clock of whoever writes."""
        writes, reads = self.writes, self.reads
        if len(writes) != len(self.partition.parents):
            self._follow()
        covered = self.covered
        strong = access[2] & STRONG
        ordered = access[0] if self.in_order else None
        # What was judged in one part is not looked at again in the next: parts are often written and read together.
        judged: Reads = None
        for part in parts:
            # Reads first: who overwrites what is still read has most likely not waited for the reader.
            known = reads[part]
            if known is not None:
                if known is judged:
                    pass
                elif known.__class__ is dict:
                    for one in known.values():
                        if one[0] != ordered and ticks[BEFORE, one[0]] < one[1] and not one[2] & access[2] & STRONG:
                            self.conflict(self, part, one, False, access, True, False, ticks)
                elif known[0] == ordered:
                    pass
                elif ticks[BEFORE, known[0]] < known[1] and not known[2] & access[2] & STRONG:  # type: ignore[operator]
                    self.conflict(self, part, known, False, access, True, False, ticks)  # type: ignore[arg-type]
                judged = known
                if strong:
                    self._cover(part, known)
                reads[part] = None
        judged = None
        for part in parts:
            old = writes[part]
            if old is not None and old is not judged and old[0] != ordered:
                judged = old
                if ticks[BEFORE, old[0]] < old[1]:
                    if not old[2] & access[2] & STRONG:
                        self.conflict(self, part, old, True, access, True, False, ticks)
                elif access[2] & ASYNC and not old[2] & ASYNC and ticks[ASYNC_SHARED, old[0]] < old[1]:
                    self.conflict(self, part, old, True, access, True, True, ticks)
            if covered and part in covered:
                self._check_covered(part, access, ticks, writes=True)
            if strong:
                if old is not None:
                    covered.setdefault(part, {})[old[0], True, old[2] & STRONG] = old
            elif covered:
                covered.pop(part, None)
            writes[part] = access

    def _cover(self, part: int, known: Access | dict[int, Access]) -> None:
        """Keep the reads that a strong write comes after."""
        covered = self.covered.setdefault(part, {})
        for one in known.values() if isinstance(known, dict) else (known,):
            covered[one[0], False, one[2] & STRONG] = one

    def _check_covered(self, part: int, access: Access, ticks: Ticks, *, writes: bool) -> None:
        before = ticks[BEFORE]
        for (agent, wrote, strong), one in self.covered[part].items():
            if (wrote or writes) and before[agent] < one[1] and not strong & access[2]:
                self.conflict(self, part, one, wrote, access, writes, False, ticks)

    def dissolve(self) -> None:
        """The memory is gone: let go of the accesses, whose warps know it."""
        self.writes.clear()
        self.reads.clear()
        self.covered.clear()

    def forget(self, parts: Sequence[int]) -> None:
        """What was there is gone, and so is its history."""
        if len(self.writes) != len(self.partition.parents):
            self._follow()
        for part in parts:
            self.covered.pop(part, None)
            self.writes[part] = None
            self.reads[part] = None
