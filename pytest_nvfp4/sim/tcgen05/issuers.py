"""Which thread issued which tcgen05 operations, and whether that thread committed them.

PTX ISA, "tcgen05.commit": an arrival "tracks the completion of all prior async tcgen05 operations initiated by the
executing thread". The commit of another thread tracks none of them, although the values are right wherever the tensor
core happens to be fast enough, as it always is in the simulator. Two findings of kind ``commit``:

- a commit of a thread that issued nothing, while other lanes of its warp have uncommitted operations;
- an MMA that its thread never commits: nothing can wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp

_HINT = (
    "issue the commit from the thread that issued the operations: one <elect.sync> with the same "
    "member mask, or the same lane, for MMA, copies and commit"
)


@dataclass(slots=True)
class _Uncommitted:
    """Operations of a thread since its last commit; ``last_mma`` is an instruction index, -1 for none."""

    operations: int = 0
    last_mma: int = -1


class Issuers:
    """Issuing threads of one CTA: ``cta.unit(Issuers)``. A thread is a warp and the mask of one lane."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._issued: set[tuple[Warp, int]] = set()
        """Threads that issued at least one operation."""
        self._uncommitted: dict[tuple[Warp, int], _Uncommitted] = {}

    def issued(self, w: Warp, mask: int, at: int, *, mma: bool) -> None:
        """Record that a thread issues an operation."""
        thread = (w, mask)
        uncommitted = self._uncommitted.get(thread)
        if uncommitted is None:
            self._issued.add(thread)
            uncommitted = self._uncommitted[thread] = _Uncommitted()
        uncommitted.operations += 1
        if mma:
            uncommitted.last_mma = at

    def committed(self, w: Warp, mask: int, *, what: str) -> None:
        """Record that a thread commits its operations; report a commit that tracks none of its warp's."""
        thread = (w, mask)
        if self._uncommitted.pop(thread, None) is not None or thread in self._issued:
            return
        others = [(lane, left.operations) for (warp, lane), left in self._uncommitted.items() if warp is w]
        if not others:
            return
        counts = ", ".join(f"{count} by lane {lane.bit_length() - 1}" for lane, count in others[:4])
        self.cta.launch.report(
            "commit",
            f"{what} by lane {mask.bit_length() - 1} of warp {w.index} tracks no operation: a commit tracks only those "
            f"of its own thread, which issued none; uncommitted operations of the warp: {counts}",
            hint=_HINT,
        )

    def at_exit(self) -> None:
        """Report MMAs that were never committed."""
        launch = self.cta.launch
        for (warp, lane), left in self._uncommitted.items():
            if left.last_mma >= 0:
                launch.report(
                    "commit",
                    f"the CTA ended, and no tcgen05.commit of lane {lane.bit_length() - 1} of warp {warp.index} "
                    "follows its last MMA: nothing can have waited for it",
                    hint=_HINT,
                    where=launch.where(warp, left.last_mma, mask=lane),
                )
