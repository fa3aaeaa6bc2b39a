"""What a call of a kernel costs, as counts of what it does in the simulator; never a time.

The facts of a call are named numbers: of the whole call (``launches``, ``flops.useful``), and of each launch
(``launch.0.tma.load.bytes``). A launch's counters are those of the simulator's units, whose modules say what each
counts, and these: ``ctas``, ``clusters``, ``ctas_per_sm`` (by shared memory, threads and TMEM columns), ``waves``
(rounds of CTAs on all SMs of the device) and ``idle_ctas`` (CTAs that wrote no output element, of a launch that writes
outputs). Warps with equal counts of instructions share a line: ``instructions.warps0-3`` is what each of them executed,
summed over the CTAs.

``flops.useful`` is ``2 m n k`` of each group. ``flops.executed`` is what matrix instructions computed; what is not
useful is padding: rows, columns and k beyond the problem.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.bench.roofline import work_of
from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.problem import Problem

COUNTS = "1"
"""Version of what is counted: counters that only one side has fail nothing when the versions differ."""

DEFAULT_TOLERANCE: tuple[tuple[str, float], ...] = (("instructions*", 0.05), ("mbarrier.waits", 0.05))
"""Growth that passes: none, but of instructions, which move whenever the compiler schedules code differently, and of
waits, of which lanes that have parted execute one each."""

_EITHER_WAY = frozenset({"kernel", "ctas_per_sm", "useful"})
"""Facts of which neither more nor less is a cost by itself: any change of them fails."""
_COMPILERS = ("instructions", "shared.", "global.", "local.", "fence.")
"""How counters begin that another version of the compiler changes by itself: ordinary loads, stores and fences."""
_WARP = re.compile(r"instructions\.warp(\d+)")
_WARPS = re.compile(r"((?:launch\.\d+\.)?instructions)\.warps?(\d+)(?:-(\d+))?")
_LAUNCH = re.compile(r"launch\.\d+\.")


@dataclass(frozen=True, slots=True)
class Flops:
    """Useful and executed operations of a call."""

    useful: int
    executed: int

    @property
    def padding(self) -> float:
        """The share of the executed that is not useful; 0 where nothing was executed on matrix units."""
        return max(0.0, 1 - self.useful / self.executed) if self.executed else 0.0


def flops_of(call: SimulatedCall, problem: Problem) -> Flops:
    """The operations of a call on matrix units (tcgen05, wgmma and mma.sync)."""
    executed = sum(
        launch.counters.get("mma.flops", 0)
        + 2 * launch.counters.get("mma.macs", 0)
        + 2 * launch.counters.get("wgmma.macs", 0)
        for launch in call.launches
    )
    return Flops(work_of(problem).flops, executed)


def cost_facts(call: SimulatedCall, problem: Problem, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """The facts of a call, in the order of a snapshot.

    Args:
        call: The call.
        problem: Its problem.
        names: Names to show for kernels' symbols.
    """
    flops = flops_of(call, problem)
    facts = {
        "launches": str(len(call.launches)),
        "flops.useful": str(flops.useful),
        "flops.executed": str(flops.executed),
        "flops.padding": f"{100 * flops.padding:.2f} %",
    }
    for index, launch in enumerate(call.launches):
        name = f"launch.{index}"
        facts[f"{name}.kernel"] = (names or {}).get(launch.kernel) or short_name(launch.kernel)
        facts |= {
            f"{name}.{key}": str(value) for key, value in sorted(launch_costs(launch, call.sms).items(), key=_by_name)
        }
    return facts


def _by_name(item: tuple[str, int]) -> list[tuple[str, int]]:
    """In the order of names, with the numbers in them as numbers."""
    parts = re.split(r"(\d+)", item[0])
    return [(part, 0) if not part.isdigit() else ("", int(part)) for part in parts]


def short_name(symbol: str) -> str:
    """A kernel's symbol without what the DSL puts before and after the function's name, as far as that can be told."""
    return re.sub(r"_(?:[A-Z]|tensor|tensorptr|ptr).*", "", symbol.removeprefix("kernel_cutlass_")) or symbol


def launch_costs(launch: SimulatedLaunch, sms: int) -> dict[str, int]:
    """The numbers of one launch, by name; counters that are zero are left out, but for bank conflicts."""
    found = {"ctas": launch.ctas, "clusters": launch.clusters, "ctas_per_sm": launch.ctas_per_sm}
    found["waves"] = launch.waves(sms)
    if launch.writers is not None:
        found["idle_ctas"] = launch.ctas - launch.writers
    warps: dict[int, int] = {}
    for key, count in launch.counters.items():
        if match := _WARP.fullmatch(key):
            warps[int(match[1])] = count
        elif key != "ctas" and (count or key.endswith(".conflicts")):
            found[key] = count
    return found | {f"instructions.{label}": count for label, count in equal_warps(warps)}


def equal_warps(counts: Mapping[int, int]) -> list[tuple[str, int]]:
    """Warps next to each other with equal counts: ``[("warps0-3", 1200), ("warp4", 300)]``."""
    found: list[tuple[str, int]] = []
    for first, last, values in _runs(counts, share=0.0):
        found.append((f"warp{first}" if first == last else f"warps{first}-{last}", values[0]))
    return found


def warp_roles(counts: Mapping[int, int], *, share: float = 0.04) -> list[tuple[str, int]]:
    """Warps next to each other whose counts differ little, taken for one role: label and sum of their counts."""
    return [
        (f"warp {first}" if first == last else f"warps {first}-{last}", sum(values))
        for first, last, values in _runs(counts, share=share)
    ]


def _runs(counts: Mapping[int, int], *, share: float) -> list[tuple[int, int, list[int]]]:
    runs: list[tuple[int, int, list[int]]] = []
    for warp, count in sorted(counts.items()):
        if runs and warp == runs[-1][1] + 1:
            first, _, values = runs[-1]
            if abs(count - values[0]) <= share * max(count, values[0]):
                runs[-1] = (first, warp, [*values, count])
                continue
        runs.append((warp, warp, [count]))
    return runs


def expanded(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts with a line for each warp, so that another grouping of warps is no change."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        match = _WARPS.fullmatch(name)
        if match is None:
            found[name] = value
        else:
            for warp in range(int(match[2]), int(match[3] or match[2]) + 1):
                found[f"{match[1]}.warp{warp}"] = value
    return found


@dataclass(frozen=True, slots=True)
class CostChange:
    """A fact that differs.

    Attributes:
        change: What changed.
        tolerance: The share by which it may grow.
        gates: It fails the check.
    """

    change: FactChange
    tolerance: float
    gates: bool

    def text(self) -> str:
        """The change with its tolerance."""
        if self.change.change is None or self.change.change <= 0:
            return self.change.text()
        allowed = "any growth" if math.isinf(self.tolerance) else f"{100 * self.tolerance:g} %"
        return f"{self.change.text()}, tolerance {allowed}"


def tolerance_of(counter: str, own: Sequence[tuple[str, float]]) -> float:
    """The share by which a counter may grow: the user's, else the default; of several patterns the longest that fits.

    A pattern is the counter's name, or has ``*``; names are without ``launch.0.``.
    """
    for patterns in (own, DEFAULT_TOLERANCE):
        fitting = [(len(pattern), share) for pattern, share in patterns if fnmatch.fnmatchcase(counter, pattern)]
        if fitting:
            return max(fitting)[1]
    return 0.0


def cost_changes(
    old: Mapping[str, str],
    new: Mapping[str, str],
    *,
    tolerance: Sequence[tuple[str, float]] = (),
    same_dsl: bool = True,
    same_counts: bool = True,
) -> list[CostChange]:
    """What changed, and whether it fails: growth beyond the tolerance does, less of something does not.

    Args:
        old, new: Facts.
        tolerance: The user's tolerances.
        same_dsl: One version of the DSL compiled both; else ordinary instructions, loads and stores fail nothing, and
            what TMA, matrix units and barriers do still does.
        same_counts: Both were counted alike; else counters that only one of them has fail nothing.
    """
    changes = []
    for change in diff_facts(expanded(old), expanded(new)):
        counter = _LAUNCH.sub("", change.name)
        share = tolerance_of(counter, tolerance)
        changes.append(CostChange(_from_zero(change), share, _fails(change, counter, share, same_dsl, same_counts)))
    return changes


def _from_zero(change: FactChange) -> FactChange:
    """A counter that one side does not have was zero there."""
    if change.old is None and change.new is not None and change.new.isdigit():
        return replace(change, direction="up", change=float(change.new))
    if change.new is None and change.old is not None and change.old.isdigit():
        return replace(change, direction="down", change=-float(change.old), percent=-100.0)
    return change


def _fails(change: FactChange, counter: str, share: float, same_dsl: bool, same_counts: bool) -> bool:
    if counter == "flops.padding" or math.isinf(share):
        return False  # padding follows from what was executed, which has its own line
    if not same_counts and change.direction in ("added", "removed"):
        return False
    if not same_dsl and counter.startswith(_COMPILERS):
        return False
    if change.direction == "removed":
        return False
    if counter.rpartition(".")[2] in _EITHER_WAY or change.direction == "changed":
        return True
    if change.direction == "added":
        return change.new != "0"
    return change.direction == "up" and (change.percent is None or change.percent > 100 * share + 1e-9)
