"""Facts of a modelled time for its snapshot, and their changes.

A snapshot holds the time of the call and of each launch, the critical path by role, cause and line, and the waits on it
by role and line. A line is there with its text, because numbers move with every edit; a failure names the numbers of
the current kernel. Times of two snapshots are compared only if the device's table, the code of the model and the
conditions are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_nvfp4.device.modelled import ModelledCall, ModelledLaunch, PathPart
from pytest_nvfp4.driver.kernel_names import short_kernel

TIME = "modelled_us"
"""Name of the fact that holds the time of the call."""
OWN = "own"
"""Last word of the name of a table that is not the shipped one."""
_PATH, _WAITS = "path", "waits"
_AT = " @ "
"""Separates role and cause from the text of a line."""
_FEW = 2
"""Waits that are no accident."""
_LEAST_US = 0.01
"""Parts of the critical path that are shorter are no facts of their own."""
_SHOWN = 6


ORIGIN = ("device", "table", "model", "conditions")
"""Lines of a snapshot's header of which times are compared only if they are equal."""


def origin(call: ModelledCall) -> dict[str, str]:
    """Return the lines of a snapshot's header that say what a time was modelled with."""
    which = "shipped" if call.shipped else OWN
    return {
        "device": call.device,
        "table": f"{call.table} {which}",
        "model": call.model,
        "conditions": call.conditions,
    }


TextOf = Callable[[str], str]
"""Returns the text of a line ``file:line``, in one line without double blanks; empty if it is not known."""


def no_text(place: str) -> str:  # noqa: ARG001
    """Return no text for any line."""
    return ""


def modelled_facts(
    call: ModelledCall, names: Mapping[str, str] | None = None, text_of: TextOf = no_text
) -> dict[str, str]:
    """Return the facts of a call, in the order of a snapshot.

    Args:
        call: The call.
        names: Names to show for kernels' symbols.
        text_of: Returns the texts of lines.
    """
    facts = {TIME: _us(call.us)}
    for index, launch in enumerate(call.launches):
        name = f"launch.{index}"
        facts[f"{name}.kernel"] = (names or {}).get(launch.kernel) or short_kernel(launch.kernel)
        facts[f"{name}.{TIME}"] = _us(launch.us)
        facts[f"{name}.bound"] = launch.bound
        facts[f"{name}.waves"] = f"{launch.waves:.3f}"
        for part in ("fill", "drain", "tail"):
            facts[f"{name}.{part}_us"] = _us(getattr(launch, f"{part}_us"))
        for (key, line), (us, _) in sorted(_path(launch, text_of).items()):
            if us >= _LEAST_US:
                facts[f"{name}.{_PATH}.{_joined(key, line)}"] = _us(us)
        for (key, line), (count, _) in sorted(_waits(launch, text_of).items()):
            facts[f"{name}.{_WAITS}.{_joined(key, line)}"] = f"{count:.0f}"
    return facts


def without_path(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts but those of the critical path, which shift with every change."""
    return {name: text for name, text in facts.items() if f".{_PATH}." not in name and f".{_WAITS}." not in name}


def path_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[float, str]]:
    """Return what changed on the critical path between two calls, the most first: microseconds, and a text."""
    names = [name for name in {**old, **new} if f".{_PATH}." in name]
    found = [(_float(new.get(name)) - _float(old.get(name)), name.replace(f".{_PATH}.", " ", 1)) for name in names]
    ordered = sorted(found, key=lambda pair: -abs(pair[0]))
    return [(round(us, 3), f"{us:+.3f} us: {name}") for us, name in ordered if abs(us) >= _LEAST_US]


def _float(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _us(us: float) -> str:
    return f"{us:.3f}"


def _key(part: PathPart) -> str:
    role = part.role or "launch"
    return f"{role}.{part.cause}".replace(" ", "_")


_Place = tuple[str, str]
"""Role and cause, and the text of a line."""


def _joined(key: str, line: str) -> str:
    return f"{key}{_AT}{line}" if line else key


def _path(launch: ModelledLaunch, text_of: TextOf) -> dict[_Place, tuple[float, str]]:
    """Return the time on the critical path by place, and the line ``file:line`` that has most of it."""
    return _summed([(_key(part), part.source, part.us) for part in launch.path], text_of)


def _waits(launch: ModelledLaunch, text_of: TextOf) -> dict[_Place, tuple[float, str]]:
    """Return the number of waits on the critical path by place, and the line ``file:line`` that has most of them."""
    return _summed([(each.role.replace(" ", "_"), each.source, each.count) for each in launch.waits], text_of)


def _summed(parts: Sequence[tuple[str, str, float]], text_of: TextOf) -> dict[_Place, tuple[float, str]]:
    found: dict[_Place, tuple[float, str]] = {}
    for key, source, value in parts:  # the largest first
        place = key, text_of(source) if source else ""
        before, first = found.get(place, (0.0, source))
        found[place] = before + value, first
    return found


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


def causes(old: Mapping[str, str], call: ModelledCall, text_of: TextOf = no_text) -> list[tuple[str, str]]:
    """Return what grew most on the critical path against a snapshot, the most first.

    Waits that the snapshot's path has not, or half as often, come before all times, because they tell what was added;
    waits that are a little more frequent come last. Each is the current line ``file:line`` (empty if none is known),
    and a text.
    """
    grown: list[tuple[float, str, str]] = []
    added: list[tuple[float, str, str]] = []
    more_waits: list[tuple[float, str, str]] = []
    for index, launch in enumerate(call.launches):
        grown += _grown(_stored(old, index, _PATH), _path(launch, text_of), launch.path)
        before = _stored(old, index, _WAITS)
        for (role, line), (count, source) in _waits(launch, text_of).items():
            previous = before.get((role, line), 0.0)
            if not before or not line or count <= previous:
                continue
            text = f"{count:.0f} waits on the path instead of {previous:.0f}: {role} at {source}, `{line}`"
            often = count >= max(2 * previous, previous + _FEW)
            (added if often else more_waits).append((count - previous, source, text))
    ordered = [
        *sorted(added, key=lambda part: -part[0])[: _SHOWN // 2],
        *sorted(grown, key=lambda part: -part[0])[:_SHOWN],
        *sorted(more_waits, key=lambda part: -part[0])[: _SHOWN // 2],
    ]
    return [(source, text) for _, source, text in ordered]


def _grown(
    before: Mapping[_Place, float], now: Mapping[_Place, tuple[float, str]], path: Sequence[PathPart]
) -> list[tuple[float, str, str]]:
    """Return (us, line, text) of each role and cause that takes longer, with the lines that grew most."""
    words = {_key(part): f"{part.role or 'the launch'}: {part.cause}" for part in path}
    more: dict[str, float] = defaultdict(float)
    lines: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for (key, line), (us, source) in now.items():
        more[key] += us
        if source and us > before.get((key, line), 0.0):
            lines[key].append((us - before.get((key, line), 0.0), source))
    for (key, _), us in before.items():
        more[key] -= us
    found = []
    for key, us in more.items():
        if us >= _LEAST_US:
            named = [source for _, source in sorted(lines[key], key=lambda pair: -pair[0])[:2]]
            where = f" at {' and '.join(named)}" if named else ""
            found.append((us, next(iter(named), ""), f"{us:+.3f} us: {words[key]}{where}"))
    return found


def _stored(old: Mapping[str, str], index: int, what: str) -> dict[_Place, float]:
    prefix = f"launch.{index}.{what}."
    found: dict[_Place, float] = {}
    for name, text in old.items():
        if name.startswith(prefix):
            key, _, line = name.removeprefix(prefix).partition(_AT)
            try:
                found[key, line] = float(text)
            except ValueError:
                continue  # a damaged value: the part counts as new
    return found
