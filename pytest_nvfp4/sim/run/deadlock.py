"""The report of a deadlock: which wait to look at first, every warp, where it is, and what it waits for.

Most warps of a deadlock wait because another one does. The wait to look at first is chosen by what can be seen of it
(``Waitable.suspicion``): bytes that do not add up, then a phase that some have arrived at and others have not, then one
that nobody has arrived at, then everything else. Among equals it is the one whose warp would next load data, then the
one whose warp would next arrive somewhere: those that wait downstream of them are victims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.source import quoted

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.scheduler import Scheduler
    from pytest_nvfp4.sim.run.warp import Group, Warp

__all__ = ["deadlock"]

_CTAS = 4
"""CTAs that are told of in full."""
_LEAST = 3
"""Suspicion of what says nothing of itself."""
_LOOK = 400
"""Instructions behind a wait that are looked through for what the warp would do next."""
_LOADS = ("cp.async.", "cp.reduce.", "mbarrier.arrive.expect_tx", "mbarrier.expect_tx")
_ARRIVES = ("tcgen05.commit", "mbarrier.arrive", "tcgen05.mma", "wgmma.mma_async")


@dataclass(frozen=True, slots=True)
class _Stuck:
    """Lanes of a warp that cannot go on, and why."""

    warp: Warp
    group: Group
    lanes: str
    what: str
    rank: tuple[int, int]


def deadlock(scheduler: Scheduler) -> Fault:
    """Why nothing can go on. The place is that of the wait to look at first."""
    grid = scheduler.grid
    ctas = [cta for cluster in scheduler.resident for cta in cluster.ctas if cta.exited < len(cta.warps)]
    found: list[_Stuck] = []
    notes: list[str] = []
    alike: dict[tuple[str, ...], list[Cta]] = {}
    for cta in ctas:
        stuck = list(_stuck(scheduler, cta))
        found.extend(stuck)
        alike.setdefault(tuple(_told(scheduler, cta, stuck)), []).append(cta)
    told = 0
    for lines, those in list(alike.items())[:_CTAS]:
        told += len(those)
        notes += [f"CTA {those[0].index} {line}" for line in lines]
        if len(those) > 1:
            others = ", ".join(str(cta.index) for cta in those[1 : 1 + _CTAS])
            more = f" and {len(those) - 1 - _CTAS} more" if len(those) - 1 > _CTAS else ""
            notes.append(f"the same in CTA {others}{more}")
    if told < len(ctas):
        notes.append(f"and {len(ctas) - told} more CTAs")
    waiting = grid.clusters_left
    if waiting:
        notes.append(f"{waiting} clusters have not started: {grid.capacity} CTAs fit on the device at once")
    message = f"no warp can go on in {len(ctas)} CTA{'s' if len(ctas) > 1 else ''}"
    first = min(found, key=lambda one: one.rank) if found else None
    if first is not None:
        message += f"; look first at warp {first.warp.index} of CTA {first.warp.cta.index}, which {first.what}"
    fault = Fault(
        "deadlock",
        message,
        hint="look at what each warp waits for: a missing arrive, a wrong phase or count, or an expect_tx that no copy "
        "meets",
        notes=tuple(notes),
    )
    if first is not None:
        fault.where = grid.where(first.warp, first.group.pc, mask=first.group.mask)
    return fault


def _stuck(scheduler: Scheduler, cta: Cta) -> Iterator[_Stuck]:
    spinning = set(scheduler.spinning)
    code = scheduler.grid.kernel.instructions
    for warp in cta.warps:
        for group in sorted(warp.groups, key=lambda g: g.pc):
            suspicion = _LEAST
            if group.waiting is not None:
                what = f"waits for {group.waiting.waiting_for()}"
                suspect = getattr(group.waiting, "suspicion", None)
                suspicion = _LEAST if suspect is None else suspect()
            elif warp in spinning:
                what = "reads memory again and again that nobody changes"
            else:
                what = "can run"
                suspicion = _LEAST + 1
            lanes = "" if group.mask == warp.live else f" lanes {group.mask:#010x}"
            yield _Stuck(warp, group, lanes, what, (suspicion, _next(code, group.pc)))


def _told(scheduler: Scheduler, cta: Cta, stuck: list[_Stuck]) -> Iterator[str]:
    """A line for warps that are at one place and wait for one thing, without the CTA."""
    lines: dict[str, list[int]] = {}
    order: list[tuple[int, str, str]] = []
    for one in stuck:
        text = f"at {_say(scheduler, one.group.pc)} {one.what}"
        if one.lanes:
            order.append((one.warp.index, f"warp {one.warp.index}{one.lanes}", text))
        elif text in lines:
            lines[text].append(one.warp.index)
        else:
            lines[text] = [one.warp.index]
            order.append((one.warp.index, "", text))
    ended = [warp.index for warp in cta.warps if not warp.groups]
    for _, who, text in sorted(order):
        yield f"{who or _warps(lines[text])} {text}"
    if ended:
        yield f"{_warps(ended)} {'has' if len(ended) == 1 else 'have'} ended"


def _say(scheduler: Scheduler, at: int) -> str:
    code = scheduler.grid.kernel.instructions
    return f"{quoted(code[at])} ({code[at].opcode})" if at < len(code) else "the end of the kernel"


def _warps(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"warps {numbers[0]}-{numbers[-1]}"
    return f"warps {', '.join(map(str, numbers))}"


def _next(code: tuple[Instruction, ...], at: int) -> int:
    """What stands behind a wait, before the next one: 0 for copies, 1 for an arrival or an MMA, 2 for neither."""
    best = 2
    for instruction in code[at + 1 : at + 1 + _LOOK]:
        opcode = instruction.opcode
        if opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait", "bar.", "barrier.")):
            break
        if opcode.startswith(_LOADS):
            return 0
        if opcode.startswith(_ARRIVES):
            best = 1
    return best
