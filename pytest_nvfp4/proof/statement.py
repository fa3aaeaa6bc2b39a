"""Claims, their checks and the judged statements.

A `Claim` is a text, formulas, a check and negative controls: the same claim with a deliberate mistake in it. `judge`
turns a claim into a `Statement` with one of three statuses:

* ``proved``: by z3 (for all integers that the preconditions admit), by canonical form, or by checking every case.
* ``refuted``: the statement has a counterexample.
* ``unknown``: a time limit, a missing solver, or a control that was not refuted. It never counts as a pass.

A control that is not refuted makes the claim unknown: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

from pytest_nvfp4.layout.errors import LayoutError


class CaseResult(NamedTuple):
    """Result of checking cases one by one.

    Attributes:
        counterexample: The first case that fails, or None.
        checked: Number of cases checked, the failing one included.
    """

    counterexample: str | None
    checked: int


def first_failure(results: Iterable[CaseResult]) -> CaseResult:
    """Combine results up to the first with a counterexample, adding up the cases checked."""
    checked = 0
    for counterexample, count in results:
        checked += count
        if counterexample is not None:
            return CaseResult(counterexample, checked)
    return CaseResult(None, checked)


class Status(StrEnum):
    """Outcome of a check."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class Method(StrEnum):
    """How a claim is checked."""

    Z3 = "z3"
    CANONICAL = "canonical form"
    EXHAUSTIVE = "exhaustive"

    @property
    def meaning(self) -> str:
        """Explanation of the method for reports."""
        return _MEANINGS[self]


_MEANINGS = {
    Method.Z3: "for all integers that the preconditions admit, by the solver z3",
    Method.CANONICAL: "coalesced layouts are unique: equal forms are equal functions",
    Method.EXHAUSTIVE: "every case was checked",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a check.

    Attributes:
        query_ms: Time limit of one solver query in milliseconds; a query that exceeds it is unknown.
    """

    query_ms: int = 5000


@dataclass(frozen=True, slots=True)
class ProofVerdict:
    """Result of one check.

    Attributes:
        counterexample: The case in which a refuted claim fails.
        reason: Why an unknown claim could not be decided.
        checked: What was checked, such as ``6 obligations``.
        needs: The extra of this package without which the claim was not checked; empty if it was.
    """

    status: Status
    counterexample: str = ""
    reason: str = ""
    checked: str = ""
    needs: str = ""


class Check(Protocol):
    """Decision procedure of a claim."""

    def run(self, limits: Limits) -> ProofVerdict:
        """Decide the claim; never raises for the contents of a claim."""

    def changed(self, **changes: Any) -> Self:
        """Return the same check with keyword arguments that introduce a mistake."""

    @property
    def solver(self) -> str:
        """Solver with its version, or an empty text where none is needed or installed."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Check that enumerates cases and needs no solver."""

    look: Callable[..., CaseResult]
    unit: str = "cases"

    def run(self, limits: Limits) -> ProofVerdict:
        """Check every case; a layout that the check cannot read makes the claim unknown."""
        del limits
        try:
            counterexample, count = self.look()
        except LayoutError as error:
            return ProofVerdict(Status.UNKNOWN, reason=str(error))
        checked = f"{count} {self.unit}"
        if counterexample is not None:
            return ProofVerdict(Status.REFUTED, counterexample=counterexample, checked=checked)
        if not count:
            return ProofVerdict(Status.UNKNOWN, reason="there are no cases to check", checked=checked)
        return ProofVerdict(Status.PROVED, checked=checked)

    def changed(self, **changes: Any) -> Self:
        """Return the check with these keyword arguments of ``look``."""
        return replace(self, look=partial(self.look, **changes))

    @property
    def solver(self) -> str:
        """Empty: enumeration needs no solver."""
        return ""


@dataclass(frozen=True, slots=True)
class Control:
    """A deliberately wrong claim, which its check must refute.

    Attributes:
        words: The mistake.
        check: The check of the wrong claim.
        example: Returns a concrete failure found without the solver; None where the check reports one itself.
    """

    words: str
    check: Check
    example: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Mistake:
    """A control that runs the claim's own check with other keyword arguments.

    Attributes:
        words: The mistake.
        changes: The keyword arguments that introduce it.
        example: As in `Control`; a constant text is accepted too.
    """

    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    example: Callable[[], str] | str | None = None

    def control(self, check: Check) -> Control:
        """Return the control that this mistake makes of a claim's check."""
        text = self.example
        return Control(self.words, check.changed(**self.changes), (lambda: text) if isinstance(text, str) else text)


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement to be proved.

    Attributes:
        name: Stable name, ``topic.claim``.
        words: The claim in prose.
        formulas: The claim in symbols, one line each.
        method: How it is checked.
        check: Decides it.
        preconditions: Assumptions beyond the definitions in the formulas.
        controls: Wrong claims that must be refuted for the proof to count.
        scope: Where its addresses come from, for reports; empty if it has none.
    """

    name: str
    words: str
    formulas: tuple[str, ...]
    method: Method
    check: Check
    preconditions: tuple[str, ...] = ()
    controls: tuple[Control, ...] = ()
    scope: str = ""


def claim_by_cases(
    name: str,
    words: str,
    look: Callable[..., CaseResult],
    unit: str,
    *,
    formulas: tuple[str, ...],
    given: tuple[str, ...] = (),
    controls: Sequence[Mistake] = (),
    method: Method = Method.EXHAUSTIVE,
) -> Claim:
    """Return a claim that ``look`` checks case by case; ``unit`` is the plural noun of a case."""
    check = Cases(look, unit)
    return Claim(name, words, formulas, method, check, given, tuple(each.control(check) for each in controls))


@dataclass(frozen=True, slots=True)
class ControlResult:
    """Result of a control; it passes if it was refuted."""

    words: str
    status: Status
    counterexample: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {
            "words": self.words,
            "status": str(self.status),
            "counterexample": self.counterexample or None,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Statement:
    """A judged claim.

    Attributes:
        solver: The solver with its version; empty where none was used.
        seconds: Wall time of the check and its controls.
        status, counterexample, reason, checked: The verdict.
        controls: Results of the negative controls.
        scope: The claim's.
        needs: The extra without which it was not checked; empty if it was.
    """

    name: str
    words: str
    formulas: tuple[str, ...]
    method: Method
    preconditions: tuple[str, ...]
    solver: str
    seconds: float
    status: Status
    counterexample: str = ""
    reason: str = ""
    checked: str = ""
    controls: tuple[ControlResult, ...] = ()
    scope: str = ""
    needs: str = ""

    @property
    def verdict(self) -> str:
        """Verdict for reports: ``proved by z3``, ``proved (exhaustive)``, ``refuted`` or ``unknown``."""
        if self.needs:
            return f"{self.status}: needs the extra"
        if self.status is not Status.PROVED:
            return str(self.status)
        return "proved by z3" if self.method is Method.Z3 else f"proved ({self.method})"

    def to_json(self) -> dict[str, Any]:
        """Return the statement as JSON-ready values."""
        return {
            "name": self.name,
            "status": str(self.status),
            "verdict": self.verdict,
            "method": str(self.method),
            "words": self.words,
            "formulas": list(self.formulas),
            "preconditions": list(self.preconditions),
            "checked": self.checked,
            "solver": self.solver or None,
            "seconds": round(self.seconds, 4),
            "counterexample": self.counterexample or None,
            "reason": self.reason or None,
            "needs": self.needs or None,
            "controls": [control.to_json() for control in self.controls],
            "scope": self.scope or None,
        }


def judge(claim: Claim, limits: Limits | None = None) -> Statement:
    """Check a claim and its controls."""
    limits = limits or Limits()
    began = time.perf_counter()
    verdict = claim.check.run(limits)
    controls = tuple(_run_control(control, limits) for control in claim.controls)
    if verdict.status is Status.PROVED:
        verdict = _require_refuted(verdict, controls)
    return Statement(
        name=claim.name,
        words=claim.words,
        formulas=claim.formulas,
        method=claim.method,
        preconditions=claim.preconditions,
        solver=claim.check.solver,
        seconds=time.perf_counter() - began,
        status=verdict.status,
        counterexample=verdict.counterexample,
        reason=verdict.reason,
        checked=verdict.checked,
        controls=controls,
        scope=claim.scope,
        needs=verdict.needs,
    )


def _run_control(control: Control, limits: Limits) -> ControlResult:
    verdict = control.check.run(limits)
    shown = verdict.counterexample
    if verdict.status is Status.REFUTED and control.example is not None:
        example = control.example()
        shown = f"{example} (z3: {shown})" if shown else example
    return ControlResult(control.words, verdict.status, shown, verdict.reason)


def _require_refuted(verdict: ProofVerdict, controls: tuple[ControlResult, ...]) -> ProofVerdict:
    """Return the verdict, or *unknown* if a control was not refuted."""
    for control in controls:
        if control.status is not Status.REFUTED:
            reason = f"the negative control was not refuted ({control.words}): {control.reason or control.status}"
            return replace(verdict, status=Status.UNKNOWN, reason=reason)
    return verdict
