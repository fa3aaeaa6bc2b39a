"""Whether the value of a read that races is used: if it never is, the race is no defect.

All warps of a CTA may load the address of TMEM from shared memory, and only some use it; compilers prefetch what the
last turn of a loop does not need. If such a load races with a write, its lanes get one value or the other, and nothing
depends on which: no store, address, branch, vote or matrix instruction. Such a finding is dropped
rather than made a warning: it has no consequence on any timing, and there is nothing to change.

A kernel cannot hide a race behind this. What counts as a use is everything but arithmetic in registers, shuffles and
reductions of a warp (``sim.ptx.uses``), and whatever is not known counts as one:

- A read before the write that it races with: it is unused so far if its warp has executed no block with a use, ever,
  and if the warp has read the place by no other instruction, whose read the detector would have forgotten
  (``Shadow.mixed``). From then on it is followed.
- A write before the read: the lanes that have read it are followed from the load on.
- Reads of global memory before the write, reads with an order, reads by copies and by the tensor core, races between
  lanes of one warp, and missing ``tcgen05`` instructions are not examined: they are reported as if used.

The race of a read that is not used yet is reported at once, so that the order of findings is that of the accesses, and
withdrawn at the end if no use has followed (``Reporter.settle``). It does not count as an order meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.access_pair import AccessPair
from pytest_nvfp4.sim.races.findings import Reporter
from pytest_nvfp4.sim.run.following import Dependents, RestOfBlock, follow
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.warp import Warp


class RacingRead(NamedTuple):
    """A read that races.

    Attributes:
        access: The read.
        earlier: Whether it came before the write.
        lanes: The lanes that it may have been made by.
    """

    access: Access
    earlier: bool
    lanes: int


class DeadReads:
    """The reads of a launch that race and may be dead.

    Args:
        grid: The launch.
        reporter: Gets the findings.
    """

    def __init__(self, grid: Grid, reporter: Reporter) -> None:
        self._grid = grid
        self._reporter = reporter

    def report(self, pair: AccessPair, read: RacingRead | None) -> bool:
        """Report a race unless the value of its read is dead; ``read`` is None if it has none that is examined.

        Returns:
            Whether the finding stands already. If not, the accesses must not count as ordered.
        """
        if read is None or not self._is_load(read.access):
            self._reporter.pair(pair)
            return True
        at = read.access.at
        uses = self._grid.program.uses(at)
        warp = self._grid.resident(read.access.warp.cta, read.access.warp.index)
        if not uses.all:
            return False
        followed = self._followed(read, uses, warp)
        reported = self._reporter.pair(pair, stands=followed is None)
        if not reported.stands:
            assert warp is not None
            assert followed is not None
            dependents, rest = followed
            follow(warp, at, dependents, uses, lambda: reported.confirm(pair), reason=reported, rest=rest)
        return reported.stands

    def _is_load(self, access: Access) -> bool:
        parts = self._grid.kernel.instructions[access.at].parts
        loads = parts[0] in ("ld", "ldmatrix") or parts[:2] == ("tcgen05", "ld")
        return loads and not access.flags & (ASYNC | STRONG)

    def _followed(
        self, read: RacingRead, uses: Uses, warp: Warp | None
    ) -> tuple[Dependents, RestOfBlock | None] | None:
        """Return what of a warp may depend on the value of a read that is not used yet; None if it may be used.

        To which registers, and to which lanes by exchanges, an earlier read has been passed on is not known.
        """
        program = self._grid.program
        frames = program.frames
        if warp is None or frames.in_gang():
            return None
        if read.earlier and program.has_passed(warp, uses.all):
            return None
        held = FULL if read.earlier and uses.exchanges else read.lanes
        dependents = dict.fromkeys(uses.slots if read.earlier else uses.loaded, held)
        if warp is not self._grid.running_warp:
            return dependents, None
        if read.earlier and frames.used_now(uses):
            return None
        used, rest = frames.behind(uses, dependents)
        return None if used else (dependents, rest)

    def lanes_now(self) -> int:
        """Return the lanes that the running instruction is executed in."""
        now = self._grid.program.frames.place_now()
        return FULL if now is None else now[1]
