"""What is told of a pair of accesses that nothing orders: one finding a defect, in words that say what is missing.

A missing edge shows in many pairs: every operand of every MMA after it, and all that follows. So a pair of instructions
is told once; pairs with the same earlier or the same later line of the user's, pairs of the same two lines, pairs of
the same two engines of the same two warps in the same direction, and pairs for which the same mbarrier should have been
waited for, become notes of one finding; and what was told counts as ordered from then on, so that its consequences are
not told at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.races.access import Access, Who
from pytest_nvfp4.sim.races.agents import Owner
from pytest_nvfp4.sim.races.tensor_order import AFTER, BEFORE_SYNC, COMMIT, WAIT_LD, WAIT_ST

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid

__all__ = ["PROXY", "RACE", "WARNING", "Pair", "Reporter"]

RACE = "race"
PROXY = "proxy"
WARNING = "race-warning"
_NOTES = 6
_VERBS = {"atom": "update", "red": "update", "tcgen05.dealloc": "free"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two accesses that are not ordered.

    Attributes:
        kind: ``RACE``, ``PROXY`` or ``WARNING``.
        place: What memory, in words.
        old, new: The earlier and the later access as they were executed here.
        owners: What their agents are.
        writes: Whether each writes.
        foreign: Whether they are of different clusters.
        knower: A warp that has waited for the earlier one, where that goes on beside the warps.
        missing: Of a warning: the instructions that should lie between them.
    """

    kind: str
    place: str
    old: Access
    new: Access
    owners: tuple[Owner, Owner]
    writes: tuple[bool, bool]
    foreign: bool = False
    knower: Who | None = None
    missing: tuple[str, ...] = ()


COPY_FENCE = "copy-fence"
"""A proxy fence behind ``cp.async``: the ISA wants it, and NVIDIA's gathering grouped GEMMs leave it out."""

_OMISSIONS = {
    COPY_FENCE: (
        "no fence.proxy.async lies between {first}, a cp.async, which writes through the generic proxy, and the read "
        "through the async proxy",
        "fence.proxy.async (cute.arch.fence_proxy, fence_view_async_shared) behind the wait for {first}, "
        "before {second}",
    ),
    WAIT_LD: (
        "no tcgen05.wait::ld of {old} follows {first}",
        "tcgen05.wait::ld (cute.arch.fence_view_async_tmem_load) in {old} after {first}",
    ),
    WAIT_ST: (
        "no tcgen05.wait::st of {old} follows {first}",
        "tcgen05.wait::st (cute.arch.fence_view_async_tmem_store) in {old} after {first}",
    ),
    BEFORE_SYNC: (
        "no tcgen05.fence::before_thread_sync of {old} lies between {first} and what orders the two",
        "tcgen05.fence::before_thread_sync (nvvm.tcgen05_fence) in {old} after {first}, before its barrier or arrive",
    ),
    AFTER: (
        "no tcgen05.fence::after_thread_sync of {new} lies between what orders the two and {second}",
        "tcgen05.fence::after_thread_sync (nvvm.tcgen05_fence) in {new} behind its barrier or wait, before {second}",
    ),
    COMMIT: (
        "the two are no pipelined pair, and no tcgen05.commit after {first} was waited for before {second}",
        "tcgen05.commit after {first} to an mbarrier, a wait for it and tcgen05.fence::after_thread_sync before "
        "{second}; or other columns of TMEM, in turn",
    ),
}
"""What is said of an instruction that is missing, and what to add."""


class Reporter:
    """Puts findings into the grid's list, folded."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._pairs: set[tuple[str, int, int]] = set()
        self._groups: dict[tuple[object, ...], int] = {}

    def pair(self, pair: Pair) -> None:
        """Tell of a pair, unless that was done."""
        old, new = pair.old, pair.new
        what = ", ".join((pair.kind, *pair.missing))
        instructions = (what, old.at, new.at)
        if instructions in self._pairs:
            return
        self._pairs.add(instructions)
        memory = pair.place.split(" ")[0]
        kinds = (pair.owners[0].kind, pair.owners[1].kind)
        keys: tuple[tuple[object, ...], ...] = (
            (what, kinds, *map(_runner, (old, new), kinds), pair.writes, memory, pair.foreign),
            (what, memory, tuple(sorted((self._line(old.at), self._line(new.at))))),
            (what, memory, "earlier", self._line(old.at)),
            (what, memory, "later", self._line(new.at)),
        )  # fmt: skip
        also, alike = [*keys], [*keys]
        if kinds[0] == "mbarrier":
            also.append((what, memory, "reverse", self._line(new.at)))
            also.append((what, memory, "not waited for", old.who.warp))
            if not pair.foreign:
                also.append((what, memory, "waits for", pair.owners[0].name))
                alike.append(also[-1])
        if kinds[1] == "mbarrier" and pair.writes[1]:
            # A reader that is out of step with copies has copies that are out of step with it; a producer that runs
            # ahead of readers runs ahead of its own copies; and where no reader waits for copies, nobody does.
            if kinds[0] == "mbarrier":
                alike.append((what, memory, "not waited for", old.who.warp))
            alike.append((what, memory, "reverse", self._line(old.at)))
            alike.append((what, memory, "ahead", new.who.warp, kinds[0] != "mbarrier"))
            also.append((what, memory, "ahead", new.who.warp, kinds[0] == "mbarrier"))
        note = f"the same between {self._said(old)} and {self._said(new)}: {pair.place}"
        if self._noted(alike, also, note):
            return
        self.grid.findings.append(self._finding(pair))

    def other(
        self, kind: str, message: str, hint: str, *, who: Who, at: int, group: tuple[object, ...] = (), note: str = ""
    ) -> None:  # fmt: skip
        """Tell of something that is not a pair of data accesses, once an instruction.

        What has the same ``group`` as a finding before it becomes a note of that: ``note``, if it is not empty.
        """
        if (kind, at, at) in self._pairs:
            return
        self._pairs.add((kind, at, at))
        keys = ((kind, *group),) if group else ()
        if self._noted(keys, keys, note):
            return
        self.grid.findings.append(Finding(kind, message, hint=hint, where=self._where(who, at)))

    def _noted(self, alike: Sequence[tuple[object, ...]], keys: Sequence[tuple[object, ...]], note: str) -> bool:
        """Whether a finding has one of the keys ``alike``, and so the note now; else the next one has ``keys``."""
        findings = self.grid.findings
        known = next((self._groups[key] for key in alike if key in self._groups), None)
        if known is None or known >= len(findings):
            self._groups.update(dict.fromkeys(keys, len(findings)))
            return False
        finding = findings[known]
        if note and len(finding.notes) < _NOTES:
            findings[known] = replace(finding, notes=(*finding.notes, note))
        return True

    def part(self) -> dict[tuple[object, ...], Finding]:
        """What a forked process tells."""
        findings = self.grid.findings
        return {key: findings[index] for key, index in self._groups.items() if index < len(findings)}

    def absorb(self, told: dict[tuple[object, ...], Finding]) -> None:
        """Forget what another process told again. The grid has just taken over all findings of that process."""
        findings = self.grid.findings
        for key, finding in told.items():
            known = self._groups.get(key)
            if known is not None and findings[known] is not finding:
                for index in range(len(findings) - 1, known, -1):
                    if findings[index] == finding:
                        del findings[index]
                        break
            elif known is None and finding in findings:
                self._groups[key] = findings.index(finding)

    # ---- words -------------------------------------------------------------------------------------------------------

    def _finding(self, pair: Pair) -> Finding:
        old, new = pair.old, pair.new
        if pair.kind == PROXY:
            message, hint = self._proxy(pair)
        elif pair.kind == WARNING:
            message, hint = self._omission(pair)
        else:
            first = self._verb(old, writes=pair.writes[0])
            second = self._verb(new, writes=pair.writes[1])
            missing, hint = self._missing(pair)
            message = (
                f"{self._said(new)} {second}s {pair.place}{self._detail(new)} while {self._said(old)}"
                f"{self._detail(old)} may still {first} it: {missing}"
            )
        return Finding(pair.kind, message, hint=hint, where=self._where(new.who, new.at))

    def _proxy(self, pair: Pair) -> tuple[str, str]:
        old, new = pair.old, pair.new
        verb = self._verb(new, writes=pair.writes[1])
        message = (
            f"{self._said(new)} {verb}s {pair.place}{self._detail(new)} through the async proxy, and {self._said(old)} "
            "wrote it through the generic proxy: no fence.proxy.async lies between them, so that the write need not be "
            "visible"
        )
        hint = (
            f"fence.proxy.async (cute.arch.fence_proxy, fence_view_async_shared) in {old.who} after "
            f"{self._line(old.at)}, before the barrier or arrive that {new.who} waits for"
        )
        return message, hint

    def _omission(self, pair: Pair) -> tuple[str, str]:
        old, new = pair.old, pair.new
        first, second = self._line(old.at), self._line(new.at)
        verbs = [self._verb(one, writes=writes) for one, writes in zip((old, new), pair.writes, strict=True)]
        done = {"read": "read", "write": "wrote", "update": "updated"}[verbs[0]]
        lacks, adds = [], []
        for one in pair.missing:
            lack, add = _OMISSIONS[one]
            lacks.append(lack.format(old=old.who, new=new.who, first=first, second=second))
            adds.append(add.format(old=old.who, new=new.who, first=first, second=second))
        message = (
            f"{self._said(new)} {verbs[1]}s {pair.place}, which {self._said(old)} {done}: {' and '.join(lacks)}, which "
            "the PTX ISA wants here, and which official kernels leave out"
        )
        return message, "; ".join(adds)

    def _missing(self, pair: Pair) -> tuple[str, str]:
        """The edge that is missing, and what would make it."""
        old, new = pair.old, pair.new
        first, second = self._line(old.at), self._line(new.at)
        kind, name = pair.owners[0].kind, pair.owners[0].name
        then = f" before {second}"
        if old.agent == new.agent and kind == "warp":
            return (
                "they are of different lanes of the warp, and no bar.warp.sync orders them",
                f"bar.warp.sync (cute.arch.sync_warp) after {first}{then}",
            )
        if pair.foreign:
            return (
                "they are of different clusters, and no flag or counter with release and acquire orders them",
                f"after {first}: a barrier of the CTA, then fence.acq_rel.gpu and an atomic (or st.release.gpu) on a "
                f"flag; before {second}: ld.acquire.gpu of the flag until it is set, then a barrier",
            )
        if pair.knower is not None:
            knower = pair.knower
            return (
                f"{knower} has waited for it, and no barrier, and no arrive of {knower} after that which is waited for"
                f"{then}, orders the two",
                f"a wait{then} for the arrive (or the barrier) by which {knower} says that it is done, with acquire; "
                "or that arrive, with release, after its own wait",
            )
        if kind == "mbarrier":
            return (
                f"nothing that is ordered before {second} waits for the {name}, where that copy completes",
                f"wait for the phase of that mbarrier (mbarrier.try_wait, pipeline.consumer_wait){then}",
            )
        if kind == "pipe":
            return (
                f"no tcgen05.commit after {first} was waited for{then}",
                f"tcgen05.commit after {first} to an mbarrier (pipeline.consumer_release of the MMA warp), and a wait "
                f"for it (pipeline.producer_acquire){then}",
            )
        if kind == "bulk-read":
            return (
                f"no cp.async.bulk.wait_group.read of {name} is ordered between them",
                f"cp.async.bulk.commit_group and wait_group.read in the thread that stored, and a barrier{then}",
            )
        if kind == "map-read":
            return (
                f"no cp.async.bulk.wait_group of the {name} is ordered between them, which would say that they have "
                "read the map",
                f"cp.async.bulk.commit_group and wait_group.read 0 in the warp that stored{then} (the tensor map "
                "manager's update_tensormap has them)",
            )
        if kind == "bulk-write":
            return (
                f"no cp.async.bulk.wait_group of {name} is ordered between them",
                f"cp.async.bulk.wait_group (without .read) in the thread that stored, and a barrier{then}",
            )
        if kind == "cp.async":
            return (
                f"no cp.async.wait_group of {old.who} is ordered between them",
                f"cp.async.commit_group and wait_group in {old.who}, and a barrier if another warp goes on{then}",
            )
        if kind == "wgmma":
            return (
                f"no wgmma.wait_group for it is ordered between them, so that the {name} may still read",
                f"wgmma.commit_group and wgmma.wait_group, then the arrive that frees the stage{then}",
            )
        if kind == "tmem-store":
            return (
                f"no tcgen05.wait::st of {old.who} follows {first}",
                f"tcgen05.wait::st in {old.who} after {first}, before the barrier or arrive that {new.who} waits for",
            )
        add = f"an arrive of {old.who} after {first} on an mbarrier (or named barrier) that {new.who} waits for{then}"
        if pair.writes == (False, True) and old.at > new.at:  # a reader that ran ahead of its writer, or of a loop's
            add += (
                f"; or, where {first} is to see what {second} writes, a barrier (bar.sync, cute.arch.barrier) or an "
                f"arrive and a wait after {second}, before {first}"
            )
        return f"no barrier, and no arrive after {first} that is waited for{then}, orders them", add

    def _said(self, access: Access) -> str:
        return f"{self._line(access.at)} ({_short(self.grid.kernel.instructions[access.at].parts)}) in {access.who}"

    def _line(self, at: int) -> str:
        return self.grid.say(at).split(" (")[0]

    def _detail(self, access: Access) -> str:
        box = access.detail
        if box is None or box.region is None:
            return ""
        return f" ({box.region.say(box.region.start + box.offset)})"

    def _verb(self, access: Access, *, writes: bool) -> str:
        parts = self.grid.kernel.instructions[access.at].parts
        return _VERBS.get(".".join(parts[:2]), _VERBS.get(parts[0], "write" if writes else "read"))

    def _where(self, who: Who, at: int) -> Where:
        instruction = self.grid.kernel.instructions[at]
        return Where(
            kernel=self.grid.kernel.name, cta=who.cta, warp=who.warp, at=at, ptx_line=instruction.ptx_line,
            text=instruction.text, source=instruction.location,
        )  # fmt: skip


def _runner(access: Access, kind: str) -> int:
    """Whose access it is: the warp, or the first of the warpgroup, of which any warp may be the last to issue."""
    return access.who.warp & ~3 if kind == "wgmma" else access.who.warp


def _short(parts: tuple[str, ...]) -> str:
    """What an opcode is called for short."""
    if parts[:3] == ("cp", "async", "bulk"):
        return ".".join(parts[: 4 if parts[3:4] == ("tensor",) else 3])
    if parts[:4] == ("cp", "reduce", "async", "bulk"):
        return "cp.reduce.async.bulk"
    return ".".join(parts[:2])
