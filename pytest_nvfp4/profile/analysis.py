"""What limits a launch, by the rules of ``bottleneck_rules``, and what would make it faster.

No conclusion rests on an unknown metric: a class whose conditions cannot all be decided is *unknown*, and names the
metrics that are missing. Hints are ordered by the gain that the time model gives them (*modelled*), then by the
estimates of the tool's own rules, then those without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_nvfp4.device.modelled import ModelledLaunch
from pytest_nvfp4.profile.bottleneck_rules import BY_CLASS, RULES, BottleneckRule, Class, Condition
from pytest_nvfp4.profile.metrics import BY_NAME
from pytest_nvfp4.profile.result import ABSENT, ProfiledLaunch, Rule

State = Literal["yes", "no", "unknown"]
Basis = Literal["modelled", "tool", ""]
LEAST_GAIN = 0.02
"""Smallest modelled gain, as a share, that makes a hint by itself."""
_DERIVED = {
    "tail_idle": ("idle slots of the last wave", "%", "waves"),
    "idle_sms": ("SMs without a CTA", "%", "grid_size and the number of SMs"),
}
"""Quantities that are no metrics: title, unit, and what they follow from."""
_BY_DESIGN = "kernels whose warps have roles run at 6 to 19 % occupancy by design"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A condition that was decided, or not: ``value`` and ``threshold`` are None if they are unknown."""

    condition: Condition
    value: float | None
    threshold: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the condition holds; None if that is unknown."""
        if self.value is None or self.threshold is None:
            return None
        return self.value >= self.threshold if self.condition.above else self.value < self.threshold

    @property
    def missing(self) -> tuple[str, ...]:
        """The quantities that are unknown."""
        other = self.condition.threshold
        names = (self.condition.quantity, self.value), (other if isinstance(other, str) else "", self.threshold)
        missing = [name for name, value in names if name and value is None]
        return tuple(_DERIVED[name][2] if name in _DERIVED else name for name in missing)

    def __str__(self) -> str:
        title, unit = _title(self.condition.quantity)
        if self.value is None or self.threshold is None:
            return f"{title} unknown"
        other = self.condition.threshold
        limit = f"{self.threshold:.4g}{unit}" + (f" ({_title(other)[0]})" if isinstance(other, str) else "")
        relation = "at least" if self.value >= self.threshold else "below"
        return f"{title} {self.value:.4g}{unit}, {relation} {limit}"


def _title(quantity: str) -> tuple[str, str]:
    """Return the title of a quantity, and its unit with a space in front."""
    if quantity.startswith("stall."):
        return f"warps stalled by {quantity.removeprefix('stall.')} for each issued instruction", ""
    known = BY_NAME.get(quantity)
    title, unit = _DERIVED[quantity][:2] if known is None else (known.title, known.unit)
    return title, f" {unit}" if unit else ""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Whether a class limits a launch.

    Attributes:
        rule: The class.
        state: ``unknown`` if a metric that decides is.
        evidence: The conditions that decided.
        contradicted_by: What speaks against it, if it does.
    """

    rule: BottleneckRule
    state: State
    evidence: tuple[Evidence, ...]
    contradicted_by: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The quantities whose lack leaves the class unknown."""
        if self.state != "unknown":
            return ()
        return tuple(dict.fromkeys(name for one in self.evidence for name in one.missing))


@dataclass(frozen=True, slots=True)
class Hint:
    """A change that would make the launch faster.

    Attributes:
        of: Its class; None for a rule of the tool.
        text: The change.
        line: The author's line that it concerns, ``file:line``; empty if unknown.
        gain: Share of the time that it saves at most; None without an estimate.
        basis: Who estimates the gain.
        contradicted_by: What speaks against it.
    """

    of: Class | None
    text: str
    line: str = ""
    gain: float | None = None
    basis: Basis = ""
    contradicted_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelledGains:
    """What the time model says of a launch.

    Attributes:
        launch: Its modelled time.
        changes: Relative change by what-if question of the kernel's time; of the time with the gap between launches for
            questions about that gap.
        remarks: By question, why the device cannot make the change, or what must hold for it.
    """

    launch: ModelledLaunch
    changes: Mapping[str, float] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What limits a launch, and hints, the largest gain first."""

    launch: ProfiledLaunch
    bottlenecks: tuple[Bottleneck, ...]
    hints: tuple[Hint, ...]

    @property
    def limits(self) -> tuple[Bottleneck, ...]:
        """The classes that limit it, those without a contradiction first."""
        limits = [one for one in self.bottlenecks if one.state == "yes"]
        return tuple(sorted(limits, key=lambda one: len(one.contradicted_by)))


def analyse(launch: ProfiledLaunch, *, sms: int | None = None, modelled: ModelledGains | None = None) -> Analysis:
    """Return what limits a launch.

    Args:
        launch: The launch, of any tool.
        sms: Number of SMs of the device; None if the report does not say.
        modelled: What the time model says of the same launch on the same device.
    """
    quantities = _Quantities(launch, sms)
    bottlenecks = tuple(_judge(rule, quantities) for rule in RULES)
    hints = [*_of_rules(bottlenecks, launch, modelled), *_of_tool(launch.rules)]
    ranks: dict[Basis, int] = {"modelled": 0, "tool": 1, "": 2}
    hints.sort(key=lambda hint: (ranks[hint.basis], -(hint.gain or 0.0), len(hint.contradicted_by)))
    return Analysis(launch, bottlenecks, tuple(hints))


class _Quantities:
    """The quantities of conditions, of one launch."""

    def __init__(self, launch: ProfiledLaunch, sms: int | None) -> None:
        self._launch = launch
        self._sms = sms

    def value(self, quantity: str) -> float | None:
        """Return a quantity; None if it is unknown."""
        if quantity.startswith("stall."):
            return self._launch.stalls.get(quantity.removeprefix("stall."), ABSENT).value
        if quantity == "tail_idle":
            waves = self._positive("waves")
            if waves is None:
                return None
            return 100 * (1 - waves / math.ceil(waves)) if waves > 1 else 0.0
        if quantity == "idle_sms":
            ctas = self._positive("grid_size")
            if ctas is None and self._launch.grid is not None:
                ctas = float(math.prod(self._launch.grid)) or None
            return None if ctas is None or not self._sms else 100 * max(0.0, 1 - ctas / self._sms)
        return self._launch.value(quantity)

    def _positive(self, metric: str) -> float | None:
        value = self._launch.value(metric)
        return value if value is not None and value > 0 else None

    def evidence(self, condition: Condition) -> Evidence:
        """Return a condition with its values."""
        threshold = condition.threshold
        limit = self.value(threshold) if isinstance(threshold, str) else threshold
        return Evidence(condition, self.value(condition.quantity), limit)


def _judge(rule: BottleneckRule, quantities: _Quantities) -> Bottleneck:
    """Decide a class: one alternative that holds suffices, and each must fail for it not to be."""
    undecided: list[Evidence] = []
    failed: list[Evidence] = []
    for alternative in rule.alternatives:
        evidence = [quantities.evidence(condition) for condition in alternative]
        if all(one.holds for one in evidence):
            return Bottleneck(rule, "yes", tuple(evidence), tuple(_against(rule, quantities)))
        wrong = [one for one in evidence if one.holds is False]
        failed += wrong
        undecided += [] if wrong else evidence
    return Bottleneck(rule, "unknown", tuple(undecided)) if undecided else Bottleneck(rule, "no", tuple(failed))


def _against(rule: BottleneckRule, quantities: _Quantities) -> Iterator[str]:
    for contradiction in rule.contradictions:
        evidence = [quantities.evidence(condition) for condition in contradiction.conditions]
        if all(one.holds for one in evidence):
            yield f"{contradiction.means} ({'; '.join(map(str, evidence))})"


def _of_rules(
    bottlenecks: Sequence[Bottleneck], launch: ProfiledLaunch, modelled: ModelledGains | None
) -> Iterator[Hint]:
    """Yield the changes of classes that limit the launch, and those that the model says gain something."""
    for one in bottlenecks:
        for change in one.rule.changes:
            by_model = None if modelled is None else modelled.changes.get(change.question)
            gain = None if by_model is None else -by_model
            if (
                modelled is not None
                and change.question
                and by_model is None
                and change.question not in modelled.remarks
            ):
                continue  # it does not apply to this kernel
            if one.state != "yes" and (gain is None or gain < LEAST_GAIN):
                continue
            against = list(one.contradicted_by)
            if one.state == "no":
                against.append(f"measured, the launch is not limited by {one.rule.title} ({one.evidence[0]})")
            if gain is not None and gain < LEAST_GAIN:
                against.append(f"the time model gains {100 * gain:.1f} % by it")
            if modelled is not None and (remark := modelled.remarks.get(change.question)):
                against.append(remark)
            yield Hint(
                one.rule.name,
                change.text,
                _line(one.rule, launch, modelled),
                gain,
                "" if gain is None else "modelled",
                tuple(against),
            )


def _of_tool(rules: Sequence[Rule]) -> Iterator[Hint]:
    """Yield the tool's own recommendations."""
    for rule in rules:
        if rule.kind != "optimization":
            continue
        gain = rule.speedup_pct
        known = gain is not None and math.isfinite(gain) and gain >= 0
        # A speed-up of 25 % saves a fifth of the time.
        saved = gain / (100 + gain) if known and gain is not None else None
        against = [_BY_DESIGN] if "occupancy" in rule.name.lower() or rule.section == "Occupancy" else []
        if rule.scope == "local":
            against.append("the estimate is for one unit, not for the launch")
        yield Hint(None, f"{rule.name}: {rule.text}", "", saved, "tool" if known else "", tuple(against))


def _line(rule: BottleneckRule, launch: ProfiledLaunch, modelled: ModelledGains | None) -> str:
    """Return the line of a class: where most samples stall for it, else where the model waits longest for it."""
    sampled = [(sum(line.stalls.get(reason, 0) for reason in rule.stalls), line) for line in launch.lines]
    most = max(sampled, key=lambda pair: pair[0], default=None)
    if most is not None and most[0] > 0:
        return f"{most[1].file}:{most[1].line}"
    path = () if modelled is None else modelled.launch.path
    return next((part.source for part in path if part.source and part.cause in rule.causes), "")


__all__ = ["BY_CLASS", "Analysis", "Bottleneck", "Evidence", "Hint", "ModelledGains", "analyse"]
