"""What happened last to each part of one memory: its last write, and the reads since.

A write is checked against the last write and the reads since, a read against the last write. Earlier accesses need no
look: they happened before the last write, or were reported when that was made.
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
    """

    __slots__ = ("agents", "conflict", "name", "partition", "reads", "writes")

    def __init__(
        self, partition: Partition, conflict: Conflict, *, agents: ClusterAgents | None = None, name: str = ""
    ) -> None:
        self.partition = partition
        self.conflict = conflict
        self.agents = agents
        self.name = name
        self.writes: list[Access | None] = [None]
        self.reads: list[Reads] = [None]

    def _follow(self) -> None:
        """Take over the splits that the partition has made since."""
        writes, reads = self.writes, self.reads
        for parent in self.partition.parents[len(writes) :]:
            writes.append(writes[parent])
            known = reads[parent]
            reads.append(dict(known) if known.__class__ is dict else known)

    def read(self, parts: Sequence[int], access: Access, ticks: Ticks) -> None:
        """Check and note a read; ``ticks`` is the clock of whoever reads."""
        writes, reads = self.writes, self.reads
        if len(writes) != len(self.partition.parents):
            self._follow()
        before = ticks[BEFORE]
        agent = access[0]
        for part in parts:
            old = writes[part]
            known = reads[part]
            if old is not None:
                if before[old[0]] < old[1]:
                    if not old[2] & access[2] & STRONG:
                        self.conflict(self, part, old, True, access, False, False, ticks)
                elif access[2] & ASYNC and not old[2] & ASYNC and ticks[ASYNC_SHARED, old[0]] < old[1]:
                    self.conflict(self, part, old, True, access, False, True, ticks)
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
        before = ticks[BEFORE]
        for part in parts:
            # Reads first: who overwrites what is still read has most likely not waited for the reader.
            known = reads[part]
            if known is not None:
                if known.__class__ is dict:
                    for one in known.values():
                        if before[one[0]] < one[1] and not one[2] & access[2] & STRONG:
                            self.conflict(self, part, one, False, access, True, False, ticks)
                elif before[known[0]] < known[1] and not known[2] & access[2] & STRONG:  # type: ignore[operator]
                    self.conflict(self, part, known, False, access, True, False, ticks)  # type: ignore[arg-type]
                reads[part] = None
        for part in parts:
            old = writes[part]
            if old is not None:
                if before[old[0]] < old[1]:
                    if not old[2] & access[2] & STRONG:
                        self.conflict(self, part, old, True, access, True, False, ticks)
                elif access[2] & ASYNC and not old[2] & ASYNC and ticks[ASYNC_SHARED, old[0]] < old[1]:
                    self.conflict(self, part, old, True, access, True, True, ticks)
            writes[part] = access

    def forget(self, parts: Sequence[int]) -> None:
        """What was there is gone, and so is its history."""
        if len(self.writes) != len(self.partition.parents):
            self._follow()
        for part in parts:
            self.writes[part] = None
            self.reads[part] = None
