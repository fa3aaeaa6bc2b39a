"""Report of a deadlock: the wait that most likely causes it, and the place and wait of every warp.

A launch that has not ended in its time is reported alike, with the place of the warps that run.

Most warps of a deadlock wait because another warp does. The likely cause is ranked by the state of the awaited object
(``Waitable.suspicion``): byte counts that do not match, then a phase with some but not all arrivals, then a phase
without arrivals, then everything else. Ties go to the warp whose next operation is a load, then to the one whose next
operation is an arrival, because warps downstream of these wait for them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.deadlock_cause import cause_of
from pytest_nvfp4.sim.run.scheduler import Scheduler
from pytest_nvfp4.sim.run.source import quoted
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.run.wording import worded
from pytest_nvfp4.text import plural

_HINT = (
    "check what each warp waits for: a missing arrive, a wrong phase or count, or an expect_tx without a copy of "
    "as many bytes"
)
_POLL_HINT = "check who writes the flag or counter, how often, and which value the loop expects"
_CTAS = 4
"""Groups of CTAs with equal waits that are reported in full."""
_DEFAULT_SUSPICION = 3
_LOOKAHEAD = 400
"""Instructions after a wait that are searched for the warp's next operation."""
_LOADS = ("cp.async.", "cp.reduce.", "mbarrier.arrive.expect_tx", "mbarrier.expect_tx")
_ARRIVES = ("tcgen05.commit", "mbarrier.arrive", "tcgen05.mma", "wgmma.mma_async")


@dataclass(frozen=True, slots=True)
class _Blocked:
    """Lanes of a warp that cannot continue, the reason, and their rank as the cause (lowest is likeliest)."""

    warp: Warp
    group: Group
    lanes: str
    reason: str
    rank: tuple[int, int]


def deadlock(scheduler: Scheduler, *, polls: int | None = None) -> Fault:
    """Return the fault of a deadlock. Its place is that of the likeliest cause.

    Args:
        scheduler: The scheduler.
        polls: The instruction with which the warps of each CTA together poll memory, if they do (``Repetition``).
    """
    grid = scheduler.grid
    by_cta = _by_cta(scheduler)
    ctas = [cta for cta, _ in by_cta]
    all_blocked = [entry for _, blocked in by_cta for entry in blocked]
    message = f"no warp can continue in {len(ctas)} CTA{'s' if len(ctas) > 1 else ''}"
    first = min(all_blocked, key=lambda blocked: blocked.rank) if all_blocked else None
    cause = None if polls is not None else cause_of([(entry.warp, entry.group) for entry in all_blocked], ctas)
    hint = _HINT
    if cause is not None:
        message = f"{cause.text}; so {message}"
        hint = cause.hint
    elif polls is not None:
        message += ", where all warps together poll memory that no warp changes"
        hint = _POLL_HINT
    elif first is not None:
        message += f"; look first at warp {first.warp.index} of CTA {first.warp.cta.index}, which {first.reason}"
    fault = Fault(
        "deadlock",
        message,
        hint=worded(hint, grid.kernel),
        notes=_notes(scheduler, by_cta),
    )
    if cause is not None:
        fault.where = grid.where(cause.warp, cause.at)
    elif first is not None and polls is not None:
        fault.where = grid.where(first.warp, polls)
    elif first is not None:
        fault.where = grid.where(first.warp, first.group.pc, mask=first.group.mask)
    return fault


def unended(scheduler: Scheduler) -> Fault:
    """Return the fault of a launch that has not ended in its time. Its place is where most warps are that can run."""
    grid, running = scheduler.grid, scheduler.running
    by_cta = _by_cta(scheduler)
    warps = [entry for _, blocked in by_cta for entry in blocked]
    ran_s = time.monotonic() - scheduler.began_s
    fault = Fault(
        "timeout",
        f"{short_kernel(grid.kernel.name)} had not ended when its time was over: {plural(len(by_cta), 'CTA')} of "
        f"{prod(grid.shape)} {'runs' if len(by_cta) == 1 else 'run'}, {ran_s:.1f} s after the launch began",
        hint="a loop whose condition never holds, or who writes the memory that it reads; if the launch is only large, "
        "or has just begun because others came before, raise the timeout (--nvfp4-device-timeout, --timeout) or take "
        "smaller or fewer problems",
        notes=_notes(scheduler, by_cta),
    )
    now = grid.program.frames.place_now() if running is not None else None
    if running is not None and now is not None:
        fault.where = grid.where(running, now[0], mask=now[1])
        return fault
    able = [entry for entry in warps if entry.group.waiting is None] or warps
    if able:
        most, _ = Counter(entry.group.pc for entry in able).most_common(1)[0]
        first = next(entry for entry in able if entry.group.pc == most)
        fault.where = grid.where(first.warp, most, mask=first.group.mask)
    return fault


def _by_cta(scheduler: Scheduler) -> list[tuple[Cta, list[_Blocked]]]:
    """Return the CTAs that have not ended, each with its lanes."""
    ctas = [cta for cluster in scheduler.resident for cta in cluster.ctas if cta.exited < len(cta.warps)]
    return [(cta, list(_blocked(scheduler, cta))) for cta in ctas]


def _notes(scheduler: Scheduler, by_cta: list[tuple[Cta, list[_Blocked]]]) -> tuple[str, ...]:
    """Return lines about the places and waits of the warps of each CTA, and how many CTAs have not started."""
    grid = scheduler.grid
    notes: list[str] = []
    by_lines: dict[tuple[str, ...], list[Cta]] = {}
    for cta, blocked in by_cta:
        by_lines.setdefault(tuple(_lines(scheduler, cta, blocked)), []).append(cta)
    listed = 0
    for alike_lines, alike in list(by_lines.items())[:_CTAS]:
        listed += len(alike)
        notes += [f"CTA {alike[0].index} {line}" for line in alike_lines]
        if len(alike) > 1:
            others = ", ".join(str(cta.index) for cta in alike[1 : 1 + _CTAS])
            more = f" and {len(alike) - 1 - _CTAS} more" if len(alike) - 1 > _CTAS else ""
            notes.append(f"the same in CTA {others}{more}")
    if listed < len(by_cta):
        notes.append(f"and {len(by_cta) - listed} more CTAs")
    if grid.clusters_left:
        have = "cluster has" if grid.clusters_left == 1 else "clusters have"
        notes.append(f"{grid.clusters_left} {have} not started: {grid.capacity} CTAs fit on the device at once")
    return tuple(notes)


def _blocked(scheduler: Scheduler, cta: Cta) -> Iterator[_Blocked]:
    code = scheduler.grid.kernel.instructions
    for warp in cta.warps:
        for group in sorted(warp.groups, key=lambda g: g.pc):
            suspicion = _DEFAULT_SUSPICION
            if group.waiting is not None:
                reason = f"waits for {group.waiting.waiting_for()}"
                suspicion = getattr(group.waiting, "suspicion", lambda: _DEFAULT_SUSPICION)()
            elif warp in scheduler.spinning:
                reason = "spins on memory that no other warp changes"
            else:
                reason = "can run"
                suspicion = _DEFAULT_SUSPICION + 1
            lanes = "" if group.mask == warp.live else f" lanes {group.mask:#010x}"
            yield _Blocked(warp, group, lanes, reason, (suspicion, _next(code, group.pc)))


def _lines(scheduler: Scheduler, cta: Cta, blocked: list[_Blocked]) -> Iterator[str]:
    """Yield one line for all warps with the same place and reason; a line does not name the CTA."""
    warps: dict[str, list[int]] = {}
    order: list[tuple[int, str, str]] = []
    for entry in blocked:
        index = entry.warp.index
        text = f"at {_place(scheduler, entry.group.pc)} {entry.reason}"
        if entry.lanes:
            order.append((index, f"warp {index}{entry.lanes}", text))
        elif text in warps:
            warps[text].append(index)
        else:
            warps[text] = [index]
            order.append((index, "", text))
    ended = [warp.index for warp in cta.warps if not warp.groups]
    for _, part, text in sorted(order):
        yield f"{part or _warps(warps[text])} {text}"
    if ended:
        yield f"{_warps(ended)} {'has' if len(ended) == 1 else 'have'} ended"


def _place(scheduler: Scheduler, at: int) -> str:
    code = scheduler.grid.kernel.instructions
    return f"{quoted(code[at])} ({code[at].opcode})" if at < len(code) else "the end of the kernel"


def _warps(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"warps {numbers[0]}-{numbers[-1]}"
    return f"warps {', '.join(map(str, numbers))}"


def _next(code: tuple[Instruction, ...], at: int) -> int:
    """Return the kind of operation between a wait and the next one: 0 for a copy, 1 for an arrival or MMA, else 2."""
    best = 2
    for instruction in code[at + 1 : at + 1 + _LOOKAHEAD]:
        opcode = instruction.opcode
        if opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait", "bar.", "barrier.")):
            break
        if opcode.startswith(_LOADS):
            return 0
        if opcode.startswith(_ARRIVES):
            best = 1
    return best
