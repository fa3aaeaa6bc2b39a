"""The debugger of a device's launches: it decides where a warp stops, and lets somebody give commands there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_nvfp4.sim.debug.errors import CommandError
from pytest_nvfp4.sim.debug.expressions import evaluated
from pytest_nvfp4.sim.debug.memory import Tensor
from pytest_nvfp4.sim.debug.source import Lines, Place, author_names
from pytest_nvfp4.sim.debug.stepping import SteppingScheduler
from pytest_nvfp4.sim.debug.values import register_text
from pytest_nvfp4.sim.debug.views import definitions
from pytest_nvfp4.sim.debug.writes import WriteLog
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta, Dim3
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.warp import Group, Warp

BARRIER, FAULT = "barrier", "fault"
_BARRIERS = ("bar", "barrier", "mbarrier")
"""First parts of the opcodes of barrier instructions."""
STOPPED = "debug"
"""Kind of the fault by which `quit` ends a launch."""


class Dialogue(Protocol):
    """Whoever gives commands at a stop."""

    def stopped(self, debugger: Debugger) -> None:
        """Show the stop, and execute commands until one continues (``Debugger.goal``). Raises Fault to end the run."""


@dataclass(slots=True)
class Break:
    """A place to stop: ``FILE:LINE``, ``barrier`` or ``fault``, where it is in the launch, and how often it was hit."""

    place: str
    lines: Place | None = None
    hits: int = 0

    def __str__(self) -> str:
        return f"{self.place}, hit {self.hits} times"


@dataclass(slots=True)
class Watch:
    """An expression whose changes stop the launch: its warp, its text, and its last value as text."""

    warp: Warp
    text: str
    last: str


@dataclass(slots=True)
class Stop:
    """A stop: why, the warp and its group of lanes, and the fault if that is why."""

    reason: str
    warp: Warp
    group: Group
    fault: Fault | None = None


class _Last:
    """The instruction that a warp executed last: ``warp.unit(_Last)``."""

    def __init__(self, warp: Warp) -> None:
        del warp
        self.at = -1


Goal = Callable[[Warp, int], str | None]
"""Returns why to stop before an instruction of a warp, or None."""


@dataclass
class Debugger:
    """Debugger of one device.

    Args:
        dialogue: Whoever gives commands.

    Attributes:
        log: The monitor that records writers.
        breaks: Where to stop.
        watches: What to watch.
        cta, warp: The CTA and the warp that breakpoints are for; None for all.
        tensors: Tensors by name.
        goal: Where the last command wants to stop, besides breakpoints.
        stop: The current stop; None while no launch runs.
        detached: Whether nothing stops any more.
    """

    dialogue: Dialogue
    log: WriteLog = field(default_factory=WriteLog)
    breaks: list[Break] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    cta: Dim3 | None = None
    warp: int | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    goal: Goal | None = None
    stop: Stop | None = None
    detached: bool = False

    def __post_init__(self) -> None:
        self._greeted = False
        self._places: dict[int, Break] = {}
        self._barriers: Break | None = None
        self._found = 0

    # ---- launches ------------------------------------------------------------------------------------------------

    def scheduler(self, grid: Grid) -> SteppingScheduler:
        """Begin a launch, and return its scheduler."""
        self.grid = grid
        self.lines = Lines(grid.kernel)
        self.names = author_names(grid.kernel)
        self.defined: dict[int, Instruction] = definitions(grid.kernel)
        self._found = len(grid.findings)
        self.watches.clear()
        if not self._greeted:
            self.breaks += [Break(place) for place in self.lines.breakpoints()]
            self.goal = lambda _w, _at: "the kernel is launched"
            self._greeted = True
        self.resolve()
        return SteppingScheduler(grid, self)

    def resolve(self) -> None:
        """Find the places to stop in the running kernel."""
        self._places.clear()
        self._barriers = None
        for each in self.breaks:
            each.lines = None
            if each.place == BARRIER:
                self._barriers = each
            elif each.place != FAULT:
                try:
                    each.lines, places = self.lines.at(each.place)
                except CommandError:
                    continue  # another kernel may have it
                self._places |= dict.fromkeys(places, each)

    # ---- stops ---------------------------------------------------------------------------------------------------

    def before(self, warp: Warp, group: Group) -> None:
        """Stop if there is a reason to, before a group of lanes executes its next instruction."""
        at = group.pc
        if not self.detached and at < len(self.lines.of) and (reason := self._reason(warp, at)) is not None:
            self._stop(Stop(reason, warp, group))
        warp.unit(_Last).at = at

    def faulted(self, scheduler: SteppingScheduler, fault: Fault) -> None:
        """Stop because a fault ends the launch."""
        if self.detached or fault.kind == STOPPED:
            return
        where = fault.where
        warps = [w for cluster in scheduler.resident for cta in cluster.ctas for w in cta.warps if w.groups]
        here = [w for w in warps if where is not None and (w.cta.index, w.index) == (where.cta, where.warp)]
        if not (chosen := next(iter([*here, *warps]), None)):
            return
        at = where.at if where is not None else None
        group = next((group for group in chosen.groups if group.pc == at), chosen.groups[0])
        self._stop(Stop(f"a fault ends the launch ({fault.kind})", chosen, group, fault))

    def _stop(self, stop: Stop) -> None:
        self.stop, self.goal = stop, None
        self.dialogue.stopped(self)
        self.stop = None

    def _reason(self, warp: Warp, at: int) -> str | None:
        findings = self.grid.findings
        if len(findings) > self._found:
            self._found = len(findings)
            return f"a finding, {findings[-1].kind}: {findings[-1].message}"
        for watch in self.watches:
            if not watch.warp.cta.warps:
                self.watches.remove(watch)
                return f"the CTA in which {watch.text} was watched has ended"
            if (now := self.watched(watch)) != watch.last:
                before, watch.last = watch.last, now
                return f"{watch.text} was {before} and is {now}"
        if self.goal is not None and (reason := self.goal(warp, at)) is not None:
            return reason
        if not self._is_wanted(warp):
            return None
        last = warp.unit(_Last).at
        if at == last:
            return None  # it waited here
        hit = self._places.get(at)
        if hit is not None and hit.lines is not None and (last < 0 or not hit.lines.holds(self.lines.of[last])):
            hit.hits += 1
            return f"breakpoint {hit.lines}"
        if self._barriers is not None and self.grid.kernel.instructions[at].root in _BARRIERS:
            self._barriers.hits += 1
            return "a barrier instruction"
        return None

    def _is_wanted(self, warp: Warp) -> bool:
        return self.cta in (None, warp.cta.index) and self.warp in (None, warp.index)

    # ---- what commands use ---------------------------------------------------------------------------------------

    def step(self, *, lines: bool) -> None:
        """Continue to the stopped warp's next instruction, or to its next line."""
        assert self.stop is not None
        mine, start = self.stop.warp, self.stop.group.pc
        line = self.lines.of[start] if start < len(self.lines.of) else None

        def goal(warp: Warp, at: int) -> str | None:
            if not mine.groups:
                return f"warp {mine.index} has ended"
            if warp is not mine or (self.lines.of[at] == line if lines else at == start and mine.unit(_Last).at == at):
                return None
            return "a step"

        self.goal = goal

    def next_warp(self) -> None:
        """Continue to the next instruction of another warp of the CTA."""
        assert self.stop is not None
        mine = self.stop.warp
        self.goal = lambda warp, _: "the next warp" if warp.cta is mine.cta and warp is not mine else None

    def select(self, cta: Dim3, warp: int) -> None:
        """Show another warp. Raises CommandError if it is not there or has ended."""
        assert self.stop is not None
        found = next((w for each in self.resident() if each.index == cta for w in each.warps if w.index == warp), None)
        if found is None or not found.groups:
            raise CommandError(f"warp {warp} of CTA {cta} {'has ended' if found else 'is not on the device now'}")
        group = found.current if found.current in found.groups else found.groups[0]
        self.stop = Stop(self.stop.reason, found, group)

    def resident(self) -> list[Cta]:
        """Return the CTAs that are on the device."""
        assert self.stop is not None
        return [cta for cluster in self.stop.warp.cta.scheduler.resident for cta in cluster.ctas if cta.warps]

    def value(self, text: str, warp: Warp) -> Any:
        """Return the value of an expression in a warp. Raises CommandError."""
        live = self.grid.program.liveness.live_before(warp.current.pc)
        by_name = {name: slot for slot, name in sorted(self.names.items(), key=lambda item: item[0] in live)}
        return evaluated(text, warp, by_name, self.known_tensors(warp))

    def known_tensors(self, warp: Warp) -> dict[str, Tensor]:
        """Return the tensors, with the place of those whose name a register with an address of theirs has."""
        shared, found = warp.cta.shared, dict(self.tensors)
        for slot, name in self.names.items():
            tensor, value = self.tensors.get(name), warp.registers[slot]
            if tensor is None or tensor.base is not None or not isinstance(value, int):
                continue
            if tensor.info.space == "tmem":
                base: int | None = value & 0xFFFF if value < 512 else None
            else:
                index = (value & 0xFFFF_FFFF) - shared.base
                base = index if 0 <= index < shared.size else None
            if base is not None:
                found[name] = Tensor(name, tensor.type, base)
        return found

    def watched(self, watch: Watch) -> str:
        """Return the value of a watched expression as text; that of memory which was not written, too."""
        try:
            value = self.value(watch.text, watch.warp)
        except CommandError as error:
            return str(error)
        return value if isinstance(value, str) else register_text(value, FULL)
