"""Costs of a kernel's call: counts from the simulator, never times.

The facts of a call are named numbers: of the whole call (``launches``, ``flops.useful``), and of each launch
(``launch.0.tma.load.bytes``). A launch has the counters of the simulator's units, which their modules describe, and:
``ctas``, ``clusters``, ``ctas_per_sm`` (by shared memory, threads and TMEM columns), ``waves`` (rounds of CTAs on all
SMs of the device) and ``idle_ctas`` (CTAs that wrote no output element, if the launch writes outputs). Instructions are
counted by role, ``instructions.by.mma``, so that warps may exchange their roles.

``flops.useful`` is ``2 m n k`` summed over the groups. ``flops.executed`` counts what matrix instructions computed; the
difference is padding: rows, columns and k beyond the problem.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.bench.roofline import work_of
from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.problem import Problem

COUNTS = "3"
"""Version of the set of counters: if the versions differ, counters that only one side has do not fail the check."""

DEFAULT_TOLERANCE: tuple[tuple[str, float], ...] = (
    ("instructions*", 0.1),
    ("barrier.*", math.inf),
    ("fence.*", math.inf),
    ("mbarrier.waits", math.inf),
    ("mbarrier.arrivals", math.inf),
    ("mbarrier.phases", math.inf),
)
"""Tolerated growth by counter, as a share; that of all other counters is 0: bytes, sectors, requests, matrix work, bank
conflicts.

Instructions vary with the compiler's schedule. One more barrier or fence is no cost that decides by itself; in a loop,
its instructions are counted.
"""

_EITHER_WAY = frozenset({"kernel", "ctas_per_sm", "useful"})
"""Facts whose every change but a kernel's new name fails: neither more nor less of them is a cost by itself."""
_COMPILERS = ("instructions", "shared.", "global.", "local.", "fence.")
"""Prefixes of counters that change with the compiler's version: ordinary instructions, loads, stores and fences."""
_WARP = re.compile(r"instructions\.warp(?P<warp>\d+)|warp(?P<does>\d+)\.(?P<role>.+)")
"""Counters of one warp of each CTA: its instructions, and the CTAs in which it does something."""
_BY_ROLE = "instructions.by."
_LAUNCH = re.compile(r"launch\.\d+\.")


@dataclass(frozen=True, slots=True)
class Flops:
    """Useful and executed floating-point operations of a call on matrix units."""

    useful: int
    executed: int

    @property
    def padding(self) -> float:
        """Share of the executed operations that is not useful; 0 if none was executed."""
        return max(0.0, 1 - self.useful / self.executed) if self.executed else 0.0


def flops_of(call: SimulatedCall, problem: Problem) -> Flops:
    """Return the operations of a call on matrix units (tcgen05, wgmma and mma.sync)."""
    # One multiply-accumulate is two operations, as in the 2 m n k of useful work.
    executed = sum(
        launch.counters.get("mma.flops", 0)
        + 2 * launch.counters.get("mma.macs", 0)
        + 2 * launch.counters.get("wgmma.macs", 0)
        for launch in call.launches
    )
    return Flops(work_of(problem).flops, executed)


def cost_facts(call: SimulatedCall, problem: Problem, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the facts of a call, in the order of a snapshot.

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
        facts[f"{name}.kernel"] = (names or {}).get(launch.kernel) or short_kernel(launch.kernel)
        facts |= {
            f"{name}.{key}": str(value) for key, value in sorted(launch_costs(launch, call.sms).items(), key=_by_name)
        }
    return facts


def as_number(text: str) -> int | float | str:
    """Return the value of a fact for programs: a count, a share in percent, or the text of anything else."""
    if text.isdigit():
        return int(text)
    share = re.fullmatch(r"(\d+\.\d+) %", text)
    return float(share[1]) if share else text


def _by_name(item: tuple[str, int]) -> list[tuple[str, int]]:
    """Return a key that orders names by their words, and by the values of numbers within them."""
    parts = re.split(r"(\d+)", item[0])
    return [(part, 0) if not part.isdigit() else ("", int(part)) for part in parts]


def launch_costs(launch: SimulatedLaunch, sms: int) -> dict[str, int]:
    """Return the numbers of one launch by name, without counters that are zero except for bank conflicts."""
    costs = {"ctas": launch.ctas, "clusters": launch.clusters, "ctas_per_sm": launch.ctas_per_sm}
    costs["waves"] = launch.waves(sms)
    if launch.writers is not None:
        costs["idle_ctas"] = launch.ctas - launch.writers
    for key, count in launch.counters.items():
        if not _WARP.fullmatch(key) and key != "ctas" and (count or key.endswith(".conflicts")):
            costs[key] = count
    return costs | {f"{_BY_ROLE}{role}": count for role, count in instructions_by_role(launch.counters).items()}


def instructions_by_role(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the number of instructions of each role, over all CTAs.

    The role of a warp is what it does in at least one CTA: ``load`` (TMA or cp.async), ``mma``, ``scale-copy``
    (tcgen05.cp), ``tmem`` (tcgen05.ld and st), ``store`` (TMA), ``tensormap`` (changes maps), ``schedule`` (requests
    clusters), several joined by ``+``, or ``nothing`` of these.
    """
    executed: dict[str, int] = {}
    does: dict[str, set[str]] = {}
    for key, count in counters.items():
        if match := _WARP.fullmatch(key):
            if match["role"]:
                does.setdefault(match["does"], set()).add(match["role"])
            else:
                executed[match["warp"]] = count
    roles: dict[str, int] = {}
    for warp, count in executed.items():
        role = "+".join(sorted(does.get(warp, ()))) or "nothing"
        roles[role] = roles.get(role, 0) + count
    return dict(sorted(roles.items()))


@dataclass(frozen=True, slots=True)
class CostChange:
    """A fact that differs.

    Attributes:
        change: The change.
        tolerance: Tolerated growth, as a share.
        gates: Whether it fails the check.
    """

    change: FactChange
    tolerance: float
    gates: bool

    def text(self) -> str:
        """Return the change in words, with the tolerance of a growth."""
        if self.change.change is None or self.change.change <= 0:
            return self.change.text()
        allowed = "any growth" if math.isinf(self.tolerance) else f"{100 * self.tolerance:g} %"
        return f"{self.change.text()}, tolerance {allowed}"


def tolerance_of(counter: str, own: Sequence[tuple[str, float]]) -> float:
    """Return the tolerated growth of a counter as a share: the user's, else the default.

    The longest pattern that matches the name without ``launch.0.`` decides.
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
    """Return the facts that differ; growth beyond the tolerance fails the check, a decrease does not.

    Args:
        old: Facts before.
        new: Facts after.
        tolerance: The user's tolerances.
        same_dsl: Whether one version of the DSL compiled both; otherwise ordinary instructions, loads and stores never
            fail, but TMA, matrix units and barriers still do.
        same_counts: Whether both have the same set of counters (``COUNTS``); otherwise counters that only one of them
            has never fail.
    """
    changes = []
    for change in diff_facts(old, new):
        counter = _LAUNCH.sub("", change.name)
        share = tolerance_of(counter, tolerance)
        changes.append(CostChange(_from_zero(change), share, _fails(change, counter, share, same_dsl, same_counts)))
    return changes


def _from_zero(change: FactChange) -> FactChange:
    """Return a change from or to a missing counter as one from or to zero."""
    if change.old is None and change.new is not None and change.new.isdigit():
        return replace(change, direction="up", change=float(change.new))
    if change.new is None and change.old is not None and change.old.isdigit():
        return replace(change, direction="down", change=-float(change.old), percent=-100.0)
    return change


def _fails(change: FactChange, counter: str, share: float, same_dsl: bool, same_counts: bool) -> bool:
    if counter == "flops.padding" or math.isinf(share) or change.direction == "renamed":
        return False  # Padding follows from flops.executed, which is compared itself.
    if not same_counts and change.direction in ("added", "removed"):
        return False
    if not same_dsl and counter.startswith(_COMPILERS):
        return False
    if change.direction == "removed" or (change.direction == "added" and counter.startswith(_BY_ROLE)):
        return False  # A warp with another role: the sum of all roles is compared too.
    if counter.rpartition(".")[2] in _EITHER_WAY or change.direction == "changed":
        return True
    if change.direction == "added":
        return change.new != "0"
    return change.direction == "up" and (change.percent is None or change.percent > 100 * share + 1e-9)
