"""Facts of a modelled time for its snapshot, and their changes.

A snapshot holds the time of the call and of each launch, and the critical path by role and cause. Lines are left out,
because they move with every edit; a failure names those of the current kernel. Times of two snapshots are compared only
if the device's table, the replayer and the conditions are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_nvfp4.bench.cost import short_name
from pytest_nvfp4.device.modelled import ModelledCall, ModelledLaunch, PathPart

TIME = "modelled_us"
"""Name of the fact that holds the time of the call."""
OWN = "own"
"""Last word of the name of a table that is not the shipped one."""
_PATH = "path"
_LEAST_US = 0.01
"""Parts of the critical path that are shorter are no facts of their own."""
_SHOWN = 6


def origin(call: ModelledCall) -> dict[str, str]:
    """Return the lines of a snapshot's header that say what a time was modelled with."""
    which = "shipped" if call.shipped else OWN
    return {
        "device": call.device,
        "table": f"{call.table} {which}",
        "model": call.model,
        "conditions": call.conditions,
    }


def modelled_facts(call: ModelledCall, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the facts of a call, in the order of a snapshot.

    Args:
        call: The call.
        names: Names to show for kernels' symbols.
    """
    facts = {TIME: _us(call.us)}
    for index, launch in enumerate(call.launches):
        name = f"launch.{index}"
        facts[f"{name}.kernel"] = (names or {}).get(launch.kernel) or short_name(launch.kernel)
        facts[f"{name}.{TIME}"] = _us(launch.us)
        facts[f"{name}.bound"] = launch.bound
        facts[f"{name}.waves"] = f"{launch.waves:.3f}"
        for part in ("fill", "drain", "tail"):
            facts[f"{name}.{part}_us"] = _us(getattr(launch, f"{part}_us"))
        for key, us in _by_role(launch.path).items():
            if us >= _LEAST_US:
                facts[f"{name}.{_PATH}.{key}"] = _us(us)
    return facts


def without_path(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts but those of the critical path, which shift with every change."""
    return {name: text for name, text in facts.items() if f".{_PATH}." not in name}


def _us(us: float) -> str:
    return f"{us:.3f}"


def _key(part: PathPart) -> str:
    role = part.role or "launch"
    return f"{role}.{part.cause}".replace(" ", "_")


def _by_role(path: Sequence[PathPart]) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for part in path:
        spent[_key(part)] += part.us
    return dict(sorted(spent.items()))


@dataclass(frozen=True, slots=True)
class TimeChange:
    """A modelled time beside that of a snapshot, in microseconds."""

    old: float
    new: float

    @property
    def share(self) -> float:
        """Growth, as a share of the old time."""
        return self.new / self.old - 1

    def __str__(self) -> str:
        return f"modelled {self.old:.3f} -> {self.new:.3f} us ({100 * self.share:+.1f} %)"


def time_change(old: Mapping[str, str], call: ModelledCall) -> TimeChange:
    """Return the change of a call's time against the facts of a snapshot.

    Raises:
        ValueError: The snapshot has no such time.
    """
    text = old.get(TIME, "")
    try:
        before = float(text)
    except ValueError:
        before = 0.0
    if not 0 < before < float("inf"):
        raise ValueError(f"its {TIME} is {text!r}, which is no time")
    return TimeChange(before, round(call.us, 3))


def causes(old: Mapping[str, str], call: ModelledCall) -> list[tuple[str, str]]:
    """Return what grew most on the critical path against a snapshot, the most first.

    Each is the current line ``file:line`` on which most of it is spent (empty if none is known), and a text.
    """
    grown: list[tuple[float, str, str]] = []
    for index, launch in enumerate(call.launches):
        before = _before(old, index)
        for key, us in _by_role(launch.path).items():
            more = us - before.get(key, 0.0)
            if more >= _LEAST_US:
                what, lines = _place(launch, key)
                text = f"{more:+.3f} us: {what}" + (f" at {' and '.join(lines)}" if lines else "")
                grown.append((more, next(iter(lines), ""), text))
    return [(line, text) for _, line, text in sorted(grown, key=lambda part: -part[0])[:_SHOWN]]


def _before(old: Mapping[str, str], index: int) -> dict[str, float]:
    prefix = f"launch.{index}.{_PATH}."
    found: dict[str, float] = {}
    for name, text in old.items():
        if name.startswith(prefix):
            try:
                found[name.removeprefix(prefix)] = float(text)
            except ValueError:
                continue  # a damaged value: the part counts as new
    return found


def _place(launch: ModelledLaunch, key: str) -> tuple[str, list[str]]:
    """Return a part of the critical path in words, and the lines on which most of it is spent."""
    parts = sorted((part for part in launch.path if _key(part) == key), key=lambda part: -part.us)
    lines = [part.source for part in parts if part.source][:2]
    return f"{parts[0].role or 'the launch'}: {parts[0].cause}", lines
