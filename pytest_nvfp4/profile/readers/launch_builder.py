"""One launch of a report of Nsight Compute, from metrics by the tool's names, by labels, or both."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_nvfp4.profile.metrics import METRICS, STALL_COUNTERS
from pytest_nvfp4.profile.result import ABSENT, Extents, Metric, ProfiledLaunch, Rule
from pytest_nvfp4.profile.units import metric, number

_STALLS = tuple(re.compile(pattern) for pattern in STALL_COUNTERS)
_COUNTER = re.compile(r"[a-z0-9]+__\w+(?:\.\w+)*")
"""A metric name of Nsight Compute: unit, two underscores, and submetrics after dots."""
_EXTENTS = re.compile(r"\(?\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)?")
_INSTANCES = re.compile(r"([^\s()]{1,60}) \(.*\)", re.DOTALL)
"""A value with those of its instances (``--print-metric-instances``): ``8,632 (120; 12)``, ``24 (0x7f10: 12; ...)``."""
_MOST_EXTENT = 1 << 31
_MOST_NAME, _MOST_UNIT = 1000, 60


def is_counter(name: str) -> bool:
    """Return whether a name is one of a metric, and no label."""
    return _COUNTER.fullmatch(name) is not None


def extents(text: str) -> Extents | None:
    """Return three extents of a text such as ``(128, 1, 1)``; None if it is none."""
    match = _EXTENTS.fullmatch(text.strip())
    values = tuple(int(value) for value in match.groups()) if match else ()
    return (values[0], values[1], values[2]) if match and max(values) < _MOST_EXTENT else None


def _known(value: float | None, unit: str, to: str) -> Metric:
    """Return a metric in the unit that its table names; a count has none, where ncu writes ``register/thread``."""
    made = metric(value, unit, to=to)
    return made if to or made.value is None else Metric.of(made.value)


@dataclass(slots=True)
class LaunchBuilder:
    """Collects what a report says of one launch.

    Attributes:
        raw: Value and unit by the tool's name of a metric, as the report has them.
        labelled: The same by section and label.
        decimal_comma: Whether numbers have a comma before the fraction.
    """

    index: int
    name: str
    instances: int = 1
    grid: Extents | None = None
    block: Extents | None = None
    raw: dict[str, tuple[float | None, str]] = field(default_factory=dict)
    labelled: dict[tuple[str, str], tuple[float | None, str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    decimal_comma: bool = False

    def add(self, section: str, name: str, text: str, unit: str) -> None:
        """Add one cell: a number with its unit, or a text."""
        section, name, unit = section[:_MOST_NAME], name[:_MOST_NAME], unit[:_MOST_UNIT]
        text = text.strip()
        with_instances = _INSTANCES.fullmatch(text)
        value = number(with_instances[1] if with_instances else text, decimal_comma=self.decimal_comma)
        if value is None and text and text.lower() not in ("n/a", "-"):
            self.texts[name] = text[:100_000]
        elif is_counter(name):
            self.raw[name] = value, unit
        else:
            self.labelled[section, name] = value, unit

    def build(self) -> ProfiledLaunch:
        """Return the launch."""
        sections: dict[str, dict[str, Metric]] = {}
        for (section, name), (value, unit) in self.labelled.items():
            sections.setdefault(section, {})[name] = metric(value, unit)
        return ProfiledLaunch(
            index=self.index,
            name=self.name[:4096],
            instances=self.instances,
            grid=self.grid or self._dimensions("grid_dim"),
            block=self.block or self._dimensions("block_dim"),
            cluster=self._dimensions("cluster_dim"),
            metrics=self._metrics(),
            stalls=self._stalls(),
            counters={name: metric(value, unit) for name, (value, unit) in self.raw.items()},
            texts=self.texts,
            sections=sections,
            rules=tuple(self.rules),
        )

    def _metrics(self) -> dict[str, Metric]:
        found = {}
        for known in METRICS:
            values = [self.raw[name] for name in known.counters if name in self.raw]
            values += [self.labelled[label] for label in known.labels if label in self.labelled]
            made = [_known(value, unit, known.unit) for value, unit in values]
            # A name that a chip lacks may be listed without a value, and another one have it.
            best = next((one for one in made if one.value is not None), made[0] if made else ABSENT)
            if best is not ABSENT:
                found[known.name] = best
        return found

    def _stalls(self) -> dict[str, Metric]:
        stalls: dict[str, Metric] = {}
        for pattern in _STALLS:
            for name, (value, unit) in self.raw.items():
                match = pattern.fullmatch(name)
                if match and not match[1].endswith("_not_issued"):
                    stalls.setdefault(match[1], metric(value, unit))
        return stalls

    def _dimensions(self, name: str) -> Extents | None:
        values = [self.raw.get(f"launch__{name}_{axis}", (None, ""))[0] for axis in "xyz"]
        if any(value is None or not 0 < value < _MOST_EXTENT for value in values):
            return None
        x, y, z = (int(value or 0) for value in values)
        return x, y, z
