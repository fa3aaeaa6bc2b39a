"""Bulk async-groups: bulk stores that a thread committed and waited for.

Rules (PTX ISA, "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "Bulk async-groups"):

- Groups belong to the thread that issued and committed the copies. ``commit_group`` puts all copies since the last
  one into a new group, which may be empty. ``wait_group N`` waits until at most the ``N`` most recent groups are
  pending; with ``.read`` only their reads of shared memory must be complete.
- A thread that exits while its stores may still read shared memory is a finding: the memory exists as long as its CTA
  (PTX ISA, "Shared State Space"), and nothing orders the reads before the end. Its kind is ``exit-before-read``, which
  is not an error: two of NVIDIA's attention kernels end this way, one without the last wait, one without the last
  commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp

_PENDING, _READ, _DONE = range(3)


@dataclass(slots=True, eq=False)
class OutboundCopy:
    """One bulk store or reduction in flight: it reads shared memory, and writes the destination later.

    Args:
        read_action: Reads the source and returns the argument of ``write_action``.
    """

    thread: BulkThread
    at: int
    read_action: Callable[[], Any]
    write_action: Callable[[Any], None]
    _: KW_ONLY
    what: str
    state: int = _PENDING
    data: Any = None

    def read(self) -> None:
        """Read the source and wake the thread."""
        self.data = self.read_action()
        self.state = _READ
        if self.thread.waiters:
            wake_all(self.thread)

    def write(self) -> None:
        """Write the destination and wake the thread. Raises Fault."""
        try:
            self.write_action(self.data)
        except Fault as fault:
            if fault.where is None:
                warp = self.thread.warp
                fault.where = warp.cta.launch.where(warp, self.at, mask=1 << self.thread.lane)
            raise
        self.data = None
        self.state = _DONE
        self.thread.warp.cta.launch.machine.changes += 1
        if self.thread.waiters:
            wake_all(self.thread)


class BulkThread:
    """Bulk async-groups of one thread.

    Attributes:
        open: Copies that are not committed.
        groups: Committed groups that no wait has found complete, oldest first.
        unread: Number of the newest groups that no wait has covered, not even ``.read``.
    """

    def __init__(self, warp: Warp, lane: int) -> None:
        self.warp = warp
        self.lane = lane
        self.open: list[OutboundCopy] = []
        self.groups: deque[list[OutboundCopy]] = deque()
        self.waiters: list[Group] = []
        self.unread = 0

    def waiting_for(self) -> str:
        """Return what the thread waits for, for the report of a deadlock."""
        pending = sum(any(copy.state != _DONE for copy in group) for group in self.groups)
        return f"bulk groups of warp {self.warp.index} lane {self.lane}: {pending} of {len(self.groups)} pending"

    def reached(self, allowed: int, state: int) -> bool:
        """Return whether all groups but the ``allowed`` newest have reached a state."""
        for number in range(len(self.groups) - allowed):
            for copy in self.groups[number]:
                if copy.state < state:
                    return False
        return True

    def settle(self, allowed: int, *, read: bool) -> None:
        """Drop the groups that a successful wait covers; after ``.read`` those that are complete."""
        self.unread = min(self.unread, allowed)
        while len(self.groups) > allowed and (not read or all(copy.state == _DONE for copy in self.groups[0])):
            self.groups.popleft()


class BulkGroups:
    """Bulk async-groups of a CTA's threads: ``cta.unit(BulkGroups)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.threads: dict[tuple[int, int], BulkThread] = {}

    def thread(self, warp: Warp, lane: int) -> BulkThread:
        """Return the groups of one thread."""
        thread = self.threads.get((warp.index, lane))
        if thread is None:
            thread = self.threads[warp.index, lane] = BulkThread(warp, lane)
        return thread

    def warp_exited(self, warp: Warp) -> None:
        """Report stores that an exiting warp did not commit or wait for."""
        launch = self.cta.launch
        for (index, lane), thread in self.threads.items():
            if index != warp.index:
                continue
            if thread.open:
                first = thread.open[0]
                launch.report(
                    "exit-before-read",
                    f"the thread exits without cp.async.bulk.commit_group after this {first.what}",
                    hint="commit and wait before the end, or shared memory may be reused while it is still read",
                    where=launch.where(warp, first.at, mask=1 << lane),
                )
            unread = [group for group in list(thread.groups)[len(thread.groups) - thread.unread :] if group]
            if unread:
                first = unread[0][0]
                launch.report(
                    "exit-before-read",
                    f"the thread exits without waiting for this {first.what}",
                    hint="execute <cp.async.bulk.wait_group.read 0> before the end: shared memory lasts as long as the "
                    "CTA",
                    where=launch.where(warp, first.at, mask=1 << lane),
                )


def submit_outbound(copy: OutboundCopy) -> None:
    """Submit a store to the scheduler and add it to the thread's open group."""
    thread = copy.thread
    thread.open.append(copy)
    asynchronous = thread.warp.cta.launch.machine.asynchronous
    asynchronous.submit(copy, copy.read, what=copy.what)
    asynchronous.submit(copy, copy.write, what=copy.what)


def commit_group(w: Warp, mask: int, at: int) -> None:
    """Execute ``cp.async.bulk.commit_group`` in the lanes of a mask."""
    threads = w.cta.unit(BulkGroups).threads
    for lane in lanes(mask):
        thread = threads.get((w.index, lane))
        if thread is not None and (thread.open or thread.groups):
            # A wait counts groups from the newest, so that empty groups count too; those before the first copy do not.
            thread.groups.append(thread.open)
            thread.open = []
            thread.unread += 1
    machine = w.cta.launch.machine
    if machine.monitor is not None:
        machine.monitor.bulk_commit(w, mask, at)


def wait_group(w: Warp, mask: int, at: int, allowed: int, read: bool) -> bool | None:
    """Execute ``cp.async.bulk.wait_group``: return True once it holds in all lanes, None while the warp must wait."""
    unit = w.cta.unit(BulkGroups)
    state = _READ if read else _DONE
    for lane in lanes(mask):
        thread = unit.threads.get((w.index, lane))
        if thread is not None and not thread.reached(allowed, state):
            w.wait_for(thread)
            return None
    for lane in lanes(mask):
        thread = unit.threads.get((w.index, lane))
        if thread is not None:
            thread.settle(allowed, read=read)
    machine = w.cta.launch.machine
    if machine.monitor is not None:
        machine.monitor.bulk_wait(w, mask, at, allowed, read)
    return True
