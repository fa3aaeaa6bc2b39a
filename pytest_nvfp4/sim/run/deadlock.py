"""The report of a deadlock: every warp, where it is, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.scheduler import Scheduler

__all__ = ["deadlock"]

_CTAS = 4


def deadlock(scheduler: Scheduler) -> Fault:
    """Why nothing can go on. The place is that of the first warp that waits."""
    grid = scheduler.grid
    spinning = set(scheduler.spinning)
    notes: list[str] = []
    first = None
    stuck = 0
    for cluster in scheduler.resident:
        for cta in cluster.ctas:
            if cta.exited == len(cta.warps):
                continue
            stuck += 1
            if stuck > _CTAS:
                continue
            for warp in cta.warps:
                for group in sorted(warp.groups, key=lambda g: g.pc):
                    if first is None:
                        first = (warp, group)
                    if group.waiting is not None:
                        what = f"waits for {group.waiting.waiting_for()}"
                    elif warp in spinning:
                        what = "reads memory again and again that nobody changes"
                    else:
                        what = "can run"
                    lanes = "" if group.mask == warp.live else f" lanes {group.mask:#010x}"
                    notes.append(f"CTA {cta.index} warp {warp.index}{lanes} at {grid.say(group.pc)} {what}")
                if not warp.groups:
                    notes.append(f"CTA {cta.index} warp {warp.index} has ended")
    if stuck > _CTAS:
        notes.append(f"and {stuck - _CTAS} more CTAs")
    waiting = grid.clusters_left
    if waiting:
        notes.append(f"{waiting} clusters have not started: {grid.capacity} CTAs fit on the device at once")
    fault = Fault(
        "deadlock",
        f"no warp can go on in {stuck} CTA{'s' if stuck > 1 else ''}",
        hint="look at what each warp waits for: a missing arrive, a wrong phase or count, or an expect_tx that no copy "
        "meets",
        notes=tuple(notes),
    )
    if first is not None:
        fault.where = grid.where(first[0], first[1].pc, mask=first[1].mask)
    return fault
