"""Changes of launch facts: grid, block, cluster, shared memory, TMEM columns, registers, spills.

Facts are text, as a snapshot stores them. A number may carry a unit (``48 KiB``); a dimension is written
``(148, 1, 1)``, ``[148,1,1]`` or ``148x1x1`` and counts as the product of its parts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

Direction = Literal["up", "down", "same size", "changed", "renamed", "added", "removed"]

_NUMBER = re.compile(r"^\s*([-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([A-Za-z%/]*)\s*$")
_TUPLE = re.compile(r"^\s*[(\[]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[)\]]\s*$")
_TIMES = re.compile(r"^\s*\d+(?:\s*[x\u00d7]\s*\d+)+\s*$")
# Limited resources: using more of one is never an improvement by itself.
_COSTS = ("spill", "stack", "local_mem", "local mem", "register", "smem", "shared", "tmem", "barrier")


@dataclass(frozen=True, slots=True)
class FactChange:
    """Change of one launch fact.

    Attributes:
        name: the fact's name.
        old: its text before, ``None`` if added.
        new: its text after, ``None`` if removed.
        direction: ``up`` or ``down`` for numbers, ``same size`` for a dimension of equal product, ``renamed`` for a
            new name of a kernel, ``changed`` for other text.
        change: new minus old, in the unit of the text; ``None`` unless both are numbers of the same unit.
        percent: the change in percent of the old value; ``None`` if the old value is zero or not a number.
        costs: whether the fact is a resource of which the kernel now uses more.
    """

    name: str
    old: str | None
    new: str | None
    direction: Direction
    change: float | None = None
    percent: float | None = None
    costs: bool = False

    def text(self) -> str:
        """Format as ``registers 128 -> 168 (+40, +31.2 %)``."""
        line = f"{self.name} {self.old or 'absent'} -> {self.new or 'absent'}"
        if self.change is None:
            return line
        if self.direction == "same size":
            return f"{line} (same total)"
        share = "from zero" if self.percent is None else f"{self.percent:+.1f} %"
        return f"{line} ({self.change:+g}, {share})"

    def to_json(self) -> dict[str, object]:
        """Return the fact as JSON-ready values."""
        return asdict(self)


def diff_facts(old: Mapping[str, str], new: Mapping[str, str]) -> list[FactChange]:
    """Return the facts that differ, by name."""
    names = _new_names(old, new)
    return [
        FactChange(name, old[name], new[name], "renamed")
        if _is_kernel(name) and name in old and name in new and names.get(old[name]) == new[name]
        else _compare(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _is_kernel(fact: str) -> bool:
    return fact.rpartition(".")[2] == "kernel"


def _new_names(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the new name of each renamed kernel: only the old facts have the old name, and only the new ones the new.

    Another kernel of the same facts in its place, or two kernels that exchanged their places, is no new name.
    """
    facts = [fact for fact in old.keys() & new.keys() if _is_kernel(fact)]
    pairs = {(old[fact], new[fact]) for fact in facts}
    before = {value for fact, value in old.items() if _is_kernel(fact)}
    after = {value for fact, value in new.items() if _is_kernel(fact)}
    lefts, rights = Counter(left for left, _ in pairs), Counter(right for _, right in pairs)
    return {
        left: right
        for left, right in pairs
        if lefts[left] == rights[right] == 1 and left not in after and right not in before
    }


def _compare(name: str, old: str | None, new: str | None) -> FactChange:
    if old is None:
        return FactChange(name, old, new, "added")
    if new is None:
        return FactChange(name, old, new, "removed")
    before, after = _amount(old), _amount(new)
    if before is None or after is None or before[1] != after[1]:
        return FactChange(name, old, new, "changed")
    change = after[0] - before[0]
    if change == 0:
        return FactChange(name, old, new, "same size", change=0.0, percent=0.0)
    percent = change / before[0] * 100 if before[0] else None
    costs = change > 0 and any(word in name.lower() for word in _COSTS)
    return FactChange(name, old, new, "up" if change > 0 else "down", change=change, percent=percent, costs=costs)


def _amount(text: str) -> tuple[float, str] | None:
    """Return the number and unit of a fact's text; ``None`` if it is not a finite number."""
    if match := _TUPLE.match(text):
        return float(math.prod(int(part) for part in match[1].split(","))), "total"
    if _TIMES.match(text):
        return float(math.prod(int(part) for part in re.findall(r"\d+", text))), "total"
    if match := _NUMBER.match(text):
        value = float(match[1].replace("_", ""))
        return (value, match[2]) if math.isfinite(value) else None
    return None
