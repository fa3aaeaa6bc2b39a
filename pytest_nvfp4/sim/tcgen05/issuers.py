"""Which thread started which tcgen05 operations, and whether a ``tcgen05.commit`` of that thread followed.

PTX ISA, "tcgen05.commit": an arrival "tracks the completion of all prior async tcgen05 operations initiated by the
executing thread". A commit of another thread tracks none of them, although the values come out right wherever the
tensor core happens to be fast enough, here too. Two findings of kind ``commit``:

- a commit of a thread that has started nothing, while other lanes of its warp have operations that nobody committed;
- an MMA that no commit of its thread follows until the CTA ends: nothing can have waited for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["Issuers"]

_HINT = (
    "issue the commit from the thread that issued the operations: one elect.sync (cute.arch.elect_one) with the same "
    "member mask, or the same lane, for MMA, copies and commit"
)


class Issuers:
    """``cta.unit(Issuers)``."""

    __slots__ = ("cta", "known", "open")

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.known: set[tuple[Warp, int]] = set()
        """Threads that have started anything: warp, mask of the lane."""
        self.open: dict[tuple[Warp, int], tuple[int, int]] = {}
        """By thread: operations since its last commit, and the last MMA among them (-1 for none), by instruction."""

    def issued(self, w: Warp, mask: int, at: int, *, mma: bool) -> None:
        """A thread starts an operation."""
        thread = (w, mask)
        count, last = self.open.get(thread, (0, -1))
        if not count:
            self.known.add(thread)
        self.open[thread] = (count + 1, at if mma else last)

    def committed(self, w: Warp, mask: int, *, what: str) -> None:
        """A thread commits what it has started."""
        thread = (w, mask)
        if self.open.pop(thread, None) is not None or thread in self.known:
            return
        others = [(lane, count) for (warp, lane), (count, _) in self.open.items() if warp is w]
        if not others:
            return
        told = ", ".join(f"{count} by lane {lane.bit_length() - 1}" for lane, count in others[:4])
        self.cta.launch.report(
            "commit",
            f"{what} by lane {mask.bit_length() - 1} of warp {w.index} waits for no operation: it tracks those of its "
            f"own thread, which has started none, and the warp's operations without a commit are {told}",
            hint=_HINT,
        )

    def at_exit(self) -> None:
        """Report MMAs that nobody committed."""
        launch = self.cta.launch
        for (warp, lane), (_, last) in self.open.items():
            if last >= 0:
                launch.report(
                    "commit",
                    f"the CTA ended, and no tcgen05.commit of lane {lane.bit_length() - 1} of warp {warp.index} "
                    "follows its last MMA: nothing can have waited for it",
                    hint=_HINT,
                    where=launch.where(warp, last, mask=lane),
                )
