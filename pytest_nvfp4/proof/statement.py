"""What is claimed, how it was checked, and what came of it.

A `Claim` is words, formulas and a check, with negative controls beside it: the same claim with something wrong in it.
Judging a claim gives a `Statement`. The words are kept apart:

* ``proved``: by z3 (for all integers that the preconditions admit), by canonical form, or by looking at every case.
* ``refuted``: there is a counterexample, and it is shown.
* ``unknown``: a time limit, a missing solver, a control that was not refuted. It is never a pass.

A control that is not refuted takes the proof with it: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from pytest_nvfp4.layout.errors import LayoutError

Look = tuple[str | None, int]
"""A counterexample, or None, and how many cases were looked at."""


class Status(StrEnum):
    """What came of a check."""

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
        """The method in words."""
        return _MEANINGS[self]


_MEANINGS = {
    Method.Z3: "for all integers that the preconditions admit, by the solver z3",
    Method.CANONICAL: "coalesced layouts are unique: equal forms are equal functions",
    Method.EXHAUSTIVE: "every case was looked at",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a check may take.

    Attributes:
        query_ms: Milliseconds of one question to the solver; one that takes longer is unknown.
    """

    query_ms: int = 5000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found.

    Attributes:
        counterexample: Of a refuted claim, the case in which it fails.
        reason: Of an unknown one, why it is not known.
        checked: What was looked at, such as ``6 obligations``.
    """

    status: Status
    counterexample: str = ""
    reason: str = ""
    checked: str = ""


class Check(Protocol):
    """Decides a claim."""

    def run(self, limits: Limits) -> Verdict:
        """The verdict; never raises for what the claim says."""

    @property
    def solver(self) -> str:
        """The solver with its version, or an empty text where none is needed or there."""


@dataclass(frozen=True, slots=True)
class Cases:
    """A check without a solver."""

    look: Callable[[], Look]
    unit: str = "cases"

    def run(self, limits: Limits) -> Verdict:
        """Look at every case; a layout that the check cannot read makes it unknown."""
        del limits
        try:
            counterexample, count = self.look()
        except LayoutError as error:
            return Verdict(Status.UNKNOWN, reason=str(error))
        checked = f"{count} {self.unit}"
        if counterexample is not None:
            return Verdict(Status.REFUTED, counterexample=counterexample, checked=checked)
        if not count:
            return Verdict(Status.UNKNOWN, reason="there was nothing to look at", checked=checked)
        return Verdict(Status.PROVED, checked=checked)

    @property
    def solver(self) -> str:
        """None is needed."""
        return ""


@dataclass(frozen=True, slots=True)
class Control:
    """A claim made wrong on purpose, which its check must refute.

    Attributes:
        words: What is wrong with it.
        check: The check of the wrong claim.
        example: A concrete case of the failure, found without the solver, or None where the check shows one itself.
    """

    words: str
    check: Check
    example: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Something to be proved.

    Attributes:
        name: ``topic.claim``, stable.
        words: The claim for people.
        formulas: The claim in symbols, a line each.
        method: How it is checked.
        check: What checks it.
        preconditions: What it rests on, besides the definitions in the formulas.
        controls: What must be refuted for the proof to count.
    """

    name: str
    words: str
    formulas: tuple[str, ...]
    method: Method
    check: Check
    preconditions: tuple[str, ...] = ()
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class ControlResult:
    """What came of a control; ``refuted`` is what is wanted."""

    words: str
    status: Status
    counterexample: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A judged claim.

    Attributes:
        seconds: Wall time of the check and its controls.
        solver: The solver with its version; empty where none was used.
        status, counterexample, reason, checked: The verdict.
        controls: What came of the negative controls.
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

    @property
    def verdict(self) -> str:
        """The verdict in words: ``proved by z3``, ``proved (exhaustive)``, ``refuted``, ``unknown``."""
        if self.status is not Status.PROVED:
            return str(self.status)
        return "proved by z3" if self.method is Method.Z3 else f"proved ({self.method})"

    def to_json(self) -> dict[str, Any]:
        """The statement as JSON-ready values."""
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
            "controls": [
                {
                    "words": control.words,
                    "status": str(control.status),
                    "counterexample": control.counterexample or None,
                    "reason": control.reason or None,
                }
                for control in self.controls
            ],
        }


def judge(claim: Claim, limits: Limits | None = None) -> Statement:
    """Check a claim and its controls."""
    limits = limits or Limits()
    began = time.perf_counter()
    verdict = claim.check.run(limits)
    controls = tuple(_controlled(control, limits) for control in claim.controls)
    if verdict.status is Status.PROVED:
        verdict = _trusted(verdict, controls)
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
    )


def _controlled(control: Control, limits: Limits) -> ControlResult:
    verdict = control.check.run(limits)
    shown = verdict.counterexample
    if verdict.status is Status.REFUTED and control.example is not None:
        example = control.example()
        shown = f"{example} (z3: {shown})" if shown else example
    return ControlResult(control.words, verdict.status, shown, verdict.reason)


def _trusted(verdict: Verdict, controls: tuple[ControlResult, ...]) -> Verdict:
    """The verdict, or *unknown* if a control was not refuted."""
    for control in controls:
        if control.status is not Status.REFUTED:
            reason = f"the negative control was not refuted ({control.words}): {control.reason or control.status}"
            return replace(verdict, status=Status.UNKNOWN, reason=reason)
    return verdict
