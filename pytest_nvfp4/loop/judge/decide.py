"""The verdict by modelled times or by a counter, and the feedback for the next worker.

**Modelled times rank kernels of one kind.** A modelled time has an error band of several per cent against a measured
one. For two versions of one kernel most of that error is the same in both, so their ratio is taken as it is, and a gain
is one from `target.least_gain` on. Where the two are different kinds of kernel to the model, the errors
have nothing in common: the ratio must lie outside both bands. Times of two tables, model versions or conditions are
never compared; the incumbent is then examined again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pytest_nvfp4.loop.judge.gates import SIMULATED
from pytest_nvfp4.loop.schemas import Candidate, Counter, Examination, Outcome, Verdict
from pytest_nvfp4.text import clip

_COUNTER: Final = "counter:"
_WORSE: Final = 40
_SHOWN: Final = 12
_MOST: Final = 8000
_EXACT: Final = 1e-9
_ROLE: Final = ".by."
"""Part of the names of counters that have the name of a role in them."""
_LAUNCH: Final = re.compile(r"^launch\.\d+\.")


class Ratio(NamedTuple):
    """A candidate over the incumbent; the share that a difference must exceed, and why it is that one."""

    value: float
    least: float
    why: str = ""

    @property
    def outcome(self) -> Outcome:
        """Whether it is a gain, a loss, or neither."""
        if self.value < 1 and self.value <= 1 - self.least:
            return "faster"
        if self.value > 1 and self.value * (1 - self.least) >= 1:
            return "slower"
        return "undecided"


def value_of(metric: str, examination: Examination) -> float | None:
    """Return the metric of an examination: the geometric mean over its problems; None if it has none.

    That of a counter is taken of the counter plus one, less one, because a counter may be 0; one that does not exist on
    a problem is 0 there. A counter of a launch is the sum over all launches: a kernel may exchange them, or launch
    another one first.
    """
    if metric == "modelled":
        times = [time.us for time in examination.modelled]
        return math.exp(sum(map(math.log, times)) / len(times)) if times else None
    if not metric.startswith(_COUNTER) or not examination.counters:
        return None
    counted = _by_problem(metric, examination)
    return math.expm1(sum(math.log1p(max(0.0, value)) for value in counted.values()) / len(counted))


def _by_problem(metric: str, examination: Examination) -> dict[str, float]:
    wanted = _LAUNCH.sub("launch.*.", metric.removeprefix(_COUNTER))
    found: dict[str, float] = {}
    for key, value in examination.counters.items():
        problem, _, name = key.partition("/")
        found[problem] = found.get(problem, 0.0) + (value if _LAUNCH.sub("launch.*.", name) == wanted else 0.0)
    return found


def _roles(examination: Examination) -> set[str]:
    """Return the counters by role, of all launches."""
    return {_LAUNCH.sub("", key.partition("/")[2]) for key in examination.counters if _ROLE in key}


def comparable(metric: str, candidate: Examination, incumbent: Examination) -> str:
    """Return why two examinations cannot be compared; empty if they can."""
    if metric.startswith(_COUNTER):
        mine, theirs = _by_problem(metric, candidate).keys(), _by_problem(metric, incumbent).keys()
        return "" if mine == theirs and mine else "the incumbent was counted on other problems"
    if not incumbent.modelled:
        return "no time of the incumbent is modelled"
    if [time.problem for time in candidate.modelled] != [time.problem for time in incumbent.modelled]:
        return "the incumbent was modelled on other problems"
    return "" if candidate.table == incumbent.table else f"the incumbent was modelled with {incumbent.table}"


def ratio_of(metric: str, candidate: Examination, incumbent: Examination, *, least_gain: float) -> Ratio:
    """Return the ratio of two examinations that can be compared."""
    mine, theirs = value_of(metric, candidate), value_of(metric, incumbent)
    assert mine is not None
    assert theirs is not None
    if metric.startswith(_COUNTER):
        if _ROLE in metric and _roles(candidate) != _roles(incumbent):
            return Ratio(
                (1 + mine) / (1 + theirs), 1.0, "the roles of the warps are others, and work may have changed its name"
            )
        return Ratio((1 + mine) / (1 + theirs), least_gain)
    if candidate.kind == incumbent.kind:
        return Ratio(mine / theirs, least_gain)
    # Each true time lies within its band, so the ratio of the true times lies within both.
    reach = 1 - (1 - candidate.band) * (1 - incumbent.band)
    why = (
        f"the incumbent is modelled as {incumbent.kind} and the candidate as {candidate.kind}, and modelled times "
        "of the two differ from measured ones in different ways"
    )
    return Ratio(mine / theirs, max(least_gain, min(reach, 0.999_999)), why)


def decided(
    metric: str, candidate: Candidate, mine: Examination, theirs: Examination, *, against: str, least_gain: float
) -> Verdict:
    """Return the verdict of two examinations that can be compared, both without a red gate."""
    ratio = ratio_of(metric, mine, theirs, least_gain=least_gain)
    change = f"{100 * (ratio.value - 1):+.2f} %"
    what = "modelled time" if metric == "modelled" else metric.removeprefix(_COUNTER)
    unit = " us" if metric == "modelled" else ""
    value, before = value_of(metric, mine), value_of(metric, theirs)
    reason = f"{what} {before:.6g} -> {value:.6g}{unit} ({change})"
    if ratio.outcome == "undecided":
        reason += f"; a change below {100 * ratio.least:.3g} % decides nothing"
    if ratio.why:
        reason += f"; {ratio.why}"
    worse = worse_counters(mine, theirs)
    feedback = "" if ratio.outcome == "faster" else worse_text(reason, mine, theirs, worse)
    return Verdict(
        candidate=candidate.number,
        iteration=candidate.iteration,
        against=against,
        outcome=ratio.outcome,
        reason=clip(reason, _MOST),
        feedback=feedback,
        metric=metric,
        value=value,
        incumbent_value=before,
        worse=worse,
    )


def difference(metric: str, first: Examination, second: Examination) -> str | None:
    """Return how two examinations of one commit differ; None if they agree in all counters and the metric's value."""
    changed = [
        f"{key}: {_count(first.counters.get(key))} and {_count(second.counters.get(key))}"
        for key in sorted(first.counters.keys() | second.counters.keys())
        if first.counters.get(key) != second.counters.get(key)
    ]
    one, other = value_of(metric, first), value_of(metric, second)
    if one is not None and other is not None and not math.isclose(one, other, rel_tol=_EXACT):
        changed.insert(0, f"{metric} {one:.6g} and {other:.6g}")
    return "; ".join(changed[:_SHOWN]) or None


def rejected(metric: str, candidate: Candidate, examination: Examination, *, against: str) -> Verdict:
    """Return the verdict on a candidate with a red gate: the finding with its line and hint."""
    gate = examination.gates[-1] if examination.gates else None
    name = gate.gate if gate is not None else "examination"
    message = (gate.message if gate is not None else "") or "no gate ran"
    how = {"skipped": "did not run", "unavailable": "was not available"}.get(gate.outcome if gate else "", "failed")
    where = " in the simulator" if name in SIMULATED else ""
    return Verdict(
        candidate=candidate.number,
        iteration=candidate.iteration,
        against=against,
        outcome="rejected",
        reason=clip(f"the gate {name} {how}: {message.splitlines()[0]}", 1000),
        feedback=clip(f"the gate {name} {how}{where}:\n{message}", _MOST),
        metric=metric,
    )


def worse_counters(mine: Examination, theirs: Examination) -> tuple[Counter, ...]:
    """Return the counters that grew, those that grew by the largest share first; a new counter grew from 0."""
    grown = []
    for key in mine.counters.keys() | theirs.counters.keys():
        old, new = theirs.counters.get(key), mine.counters.get(key)
        if (new or 0.0) > (old or 0.0):
            problem, _, name = key.partition("/")
            grown.append(Counter(problem=clip(problem, 1000), name=clip(name, 1000), incumbent=old, candidate=new))
    grown.sort(key=lambda one: (-(((one.candidate or 0) + 1) / ((one.incumbent or 0) + 1)), one.problem, one.name))
    return tuple(grown[:_WORSE])


def worse_text(reason: str, mine: Examination, theirs: Examination, worse: Sequence[Counter]) -> str:
    """Return what got worse as text: counters, and parts of the modelled critical path."""
    lines = [reason]
    if worse:
        lines.append("counters that grew (simulated):")
        lines += [
            f"- {one.problem} {one.name}: {_count(one.incumbent)} -> {_count(one.candidate)}" for one in worse[:_SHOWN]
        ]
    if parts := _grown_parts(mine.path, theirs.path):
        lines.append("parts of the modelled critical path that grew (us):")
        lines += [f"- {name}: {old:.3g} -> {new:.3g}" for name, old, new in parts[:_SHOWN]]
    return clip("\n".join(lines), _MOST)


def _grown_parts(mine: Mapping[str, float], theirs: Mapping[str, float]) -> list[tuple[str, float, float]]:
    grown = [(name, theirs.get(name, 0.0), us) for name, us in mine.items() if us > 1.01 * theirs.get(name, 0.0)]
    return sorted(grown, key=lambda part: (part[1] - part[2], part[0]))


def _count(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
