"""What a loop has achieved, rejected and spent so far, from a `LoopView`.

Times of different measurements are not comparable, as clocks and temperatures differ. What was measured over several
steps is therefore the product of the ratios of their confirming comparisons, each of which is one allocation.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_nvfp4.loop.schemas import Comparison, Examination, GateResult, ProblemTime
from pytest_nvfp4.loop.state import Promotion
from pytest_nvfp4.loop.view.view import CandidateView, LoopView

HOW = {"failed": "failed", "skipped": "did not run", "unavailable": "was not available"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured ratio of times with its 95 % interval; below 1 is faster.

    Attributes:
        ratio: New over old time.
        low: Lower end of the interval.
        high: Upper end.
        devices: Devices that measured.
        comparisons: Number of comparisons whose product it is.
    """

    ratio: float
    low: float
    high: float
    devices: tuple[str, ...]
    comparisons: int = 1

    def after(self, earlier: Measured | None) -> Measured:
        """Return the product with what was measured before it.

        The product of the ends contains the product of the ratios at least as often as the intervals contain theirs
        together; it is wider than an interval of 95 % for independent errors.
        """
        if earlier is None:
            return self
        return Measured(
            self.ratio * earlier.ratio,
            self.low * earlier.low,
            self.high * earlier.high,
            tuple(dict.fromkeys((*earlier.devices, *self.devices))),
            self.comparisons + earlier.comparisons,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """An accepted candidate.

    Attributes:
        number: Its place among the accepted ones, from 1.
        promotion: The promotion.
        view: The candidate; it may be gone.
        before: Value of the target's metric for the incumbent before it, from the same comparison if it is known.
        measured: What its confirming comparison measured.
    """

    number: int
    promotion: Promotion
    view: CandidateView | None
    before: float | None
    measured: Measured | None


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate in the history, with times relative to where the loop began; 1 is equally fast.

    Attributes:
        number: The candidate; 0 for the baseline.
        modelled: Geometric mean of modelled times.
        measured: Product of the measured ratios up to it.
        promoted: Whether it became the incumbent, and was not reverted.
    """

    number: int
    modelled: float | None
    measured: float | None
    promoted: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """What was spent of one budget; None for no limit."""

    name: str
    unit: str
    spent: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a loop has achieved so far.

    Attributes:
        steps: Accepted candidates in order, without those that were reverted.
        reverted: Promotions that were reverted.
        history: Baseline and candidates that have a time.
        last: Number of the last candidate.
        modelled: Modelled geometric mean in us of the baseline and of the incumbent; None where it is unknown.
        measured: What was measured from the baseline to the incumbent; None unless every step was.
        rejected: Candidates that were not promoted by the reason, most frequent first.
        budgets: What was spent.
    """

    steps: tuple[Step, ...]
    reverted: tuple[Promotion, ...]
    history: tuple[Point, ...]
    last: int
    modelled: tuple[float | None, float | None]
    measured: Measured | None
    rejected: Mapping[str, tuple[CandidateView, ...]]
    budgets: tuple[Budget, ...]


def standing_of(view: LoopView) -> Standing:
    """Return what a loop has achieved so far."""
    known = {each.number: each for each in view.candidates}
    kept = [each for each in view.state.promotions if not each.reverted]
    steps: list[Step] = []
    before = view.state.baseline_value
    total: dict[str, Measured | None] = {view.state.baseline: None}  # what was measured up to each incumbent
    product: Measured | None = None
    complete = True
    for number, promotion in enumerate(kept, 1):
        one = known.get(promotion.candidate)
        measured = measured_of(one)
        compared = one.verdict.incumbent_value if one is not None and one.verdict is not None else None
        steps.append(Step(number, promotion, one, before if compared is None else compared, measured))
        complete = complete and measured is not None
        if complete and measured is not None:
            product = measured.after(product)
            # Later candidates of the same iteration are compared with the candidate, others with its promotion.
            total[promotion.commit] = product
            if one is not None and one.candidate is not None and one.candidate.commit is not None:
                total[one.candidate.commit] = product
        before = promotion.value
    promoted = {each.candidate for each in kept}
    rejected: dict[str, list[CandidateView]] = {}
    for each in view.candidates:
        if each.number not in promoted and (why := why_not_promoted(each)):
            rejected.setdefault(why, []).append(each)
    first = modelled_us(view.start.examination)
    last = known.get(kept[-1].candidate) if kept else None
    return Standing(
        steps=tuple(steps),
        reverted=tuple(each for each in view.state.promotions if each.reverted),
        history=tuple(_history(view, first, promoted, total)),
        last=max(known, default=0),
        modelled=(first, first if not kept else modelled_us(last.examination) if last is not None else None),
        measured=product if complete else None,
        rejected={why: tuple(some) for why, some in sorted(rejected.items(), key=lambda item: -len(item[1]))},
        budgets=tuple(_budgets(view)),
    )


def modelled_us(examination: Examination | None) -> float | None:
    """Return the geometric mean of the modelled times in us; None without any."""
    return None if examination is None else geomean(examination.modelled)


def geomean(times: Iterable[ProblemTime]) -> float | None:
    """Return the geometric mean of times in us; None for none."""
    logs = [math.log(each.us) for each in times]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def confirming(view: CandidateView | None) -> Comparison | None:
    """Return the last measurement of a candidate; for a promoted one it is that which confirmed it."""
    return view.verdict.comparisons[-1] if view is not None and view.verdict and view.verdict.comparisons else None


def measured_of(view: CandidateView | None) -> Measured | None:
    """Return what the last comparison of a candidate measured against its incumbent."""
    last = confirming(view)
    return None if last is None else Measured(last.ratio, last.low, last.high, (last.device,))


def why_not_promoted(view: CandidateView) -> str:
    """Return why a candidate was not promoted, in a few words that many candidates share; empty while that is open."""
    end = view.candidate.end if view.candidate is not None else "proposed"
    if end != "proposed":
        return {
            "unchanged": "the worker changed nothing",
            "withdrawn": "the worker withdrew it",
            "violation": "it changed what the policy forbids",
            "failed": "the worker left no candidate",
        }[end]
    if view.verdict is None:
        return ""
    match view.verdict.outcome:
        case "rejected":
            red = red_gate(view)
            return "rejected" if red is None else f"the gate {red.gate} {HOW[red.outcome]}"
        case "duplicate":
            return "the same as an earlier candidate"
        case "infrastructure":
            return "the surroundings failed"
        case "no-candidate":
            return "the worker left no candidate"
        case "faster":
            return "faster, and not promoted (a reviewer's veto, or an end of the loop)"
        case outcome:
            return outcome


def gates_of(view: CandidateView) -> tuple[GateResult, ...]:
    """Return the gates of a candidate that have ended."""
    return view.examination.gates if view.examination is not None else view.gates


def red_gate(view: CandidateView) -> GateResult | None:
    """Return the gate that ended an examination; None if none did.

    The first gate that does not pass is the last one; one that does not apply may be skipped before it.
    """
    last = gates_of(view)[-1:]
    done = view.examination is not None and not view.examination.passed
    return last[0] if done and last and last[0].outcome != "passed" else None


def resume_command(view: LoopView) -> str:
    """Return the command that goes on with a loop, with the configuration of its start."""
    folder, config = shlex.quote(str(view.folder.root)), shlex.quote(str(view.folder.config))
    return f"nvfp4 loop run {config} --state {folder}"


def _history(
    view: LoopView, first: float | None, promoted: set[int], total: Mapping[str, Measured | None]
) -> Iterator[Point]:
    yield Point(0, None if first is None else 1.0, 1.0 if _measures(view) else None, promoted=True)
    for each in view.candidates:
        modelled, measured = modelled_us(each.examination), measured_of(each)
        against = each.verdict.against if each.verdict is not None else ""
        since = None if measured is None or against not in total else measured.after(total[against]).ratio
        relative = None if modelled is None or first is None else modelled / first
        if relative is not None or since is not None:
            yield Point(each.number, relative, since, promoted=each.number in promoted)


def _measures(view: LoopView) -> bool:
    return any(confirming(each) is not None for each in view.candidates)


def _budgets(view: LoopView) -> Iterator[Budget]:
    spent, limits = view.spent, None if view.config is None else view.config.budget
    yield Budget("iterations", "", view.state.iteration, None if limits is None else limits.iterations)
    yield Budget("time", "min", spent.wall_s / 60, None if limits is None else limits.minutes)
    yield Budget("GPU", "s", spent.gpu_s, None if limits is None else limits.gpu_seconds)
    yield Budget("cost", "USD", spent.usd, None if limits is None else limits.dollars)
    yield Budget("tokens", "", spent.tokens, None if limits is None else limits.tokens)
