"""Questions to z3, which is imported when the first one is asked.

z3 is optional (``pip install 'pytest-nvfp4[proof]'``). Without it a question is *unknown* and says so.

An obligation is ``hypotheses => conclusion`` over integers. It holds when the hypotheses with the negated conclusion
have no model. Hypotheses that have no model themselves would prove anything: they are looked at first, and make the
obligation unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeAlias

from pytest_nvfp4.proof.statement import Limits, Status, Verdict

__all__ = ["Z3", "Formula", "Obligation", "Questions", "SolverMissingError", "Term", "load", "version"]

Term: TypeAlias = Any
"""An integer of Python or of z3."""
Formula: TypeAlias = Any
"""A Boolean of z3."""
Z3: TypeAlias = Any
"""The module z3, which has no type information."""

HOW_TO_GET = "z3 is not installed: pip install 'pytest-nvfp4[proof]' (or pip install z3-solver)"


class SolverMissingError(Exception):
    """z3 is not installed, or cannot be imported; the message says how to get it."""


def load() -> Z3:
    """The module z3. Raises `SolverMissingError`."""
    try:
        return import_module("z3")
    except ModuleNotFoundError as error:
        if error.name == "z3":
            raise SolverMissingError(HOW_TO_GET) from error
        raise SolverMissingError(_broken(error)) from error
    except Exception as error:
        # Without its library z3 raises an error of its own, which cannot be named without importing z3.
        raise SolverMissingError(_broken(error)) from error


def _broken(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return f"z3 is installed and cannot be imported ({said}): pip install --force-reinstall z3-solver"


def version() -> str:
    """``z3 4.13.0``, or an empty text without it."""
    try:
        return f"z3 {load().get_version_string()}"
    except SolverMissingError:
        return ""


@dataclass(frozen=True, slots=True)
class Obligation:
    """``hypotheses => conclusion``.

    Attributes:
        name: What it establishes.
        hypotheses: By what they say, in words.
        conclusion: What must follow.
        shown: The terms whose values make a counterexample, by name.
    """

    name: str
    hypotheses: Mapping[str, Formula]
    conclusion: Formula
    shown: Mapping[str, Term] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Questions:
    """A check by z3: every obligation that ``build`` makes must hold."""

    build: Callable[[Z3], Sequence[Obligation]]

    def run(self, limits: Limits) -> Verdict:
        """Discharge all; the first that fails decides."""
        try:
            z3 = load()
        except SolverMissingError as error:
            return Verdict(Status.UNKNOWN, reason=str(error))
        obligations = self.build(z3)
        for done, obligation in enumerate(obligations):
            verdict = discharge(z3, obligation, limits)
            if verdict.status is not Status.PROVED:
                return Verdict(verdict.status, verdict.counterexample, verdict.reason, f"{done + 1} obligations")
        if not obligations:
            return Verdict(Status.UNKNOWN, reason="there is no obligation")
        return Verdict(Status.PROVED, checked=f"{len(obligations)} obligations")

    @property
    def solver(self) -> str:
        """z3 with its version."""
        return version()


def discharge(z3: Z3, obligation: Obligation, limits: Limits) -> Verdict:
    """Whether an obligation holds."""
    solver = z3.Solver()
    solver.set("timeout", limits.query_ms)
    solver.set("random_seed", 0)
    solver.add(*obligation.hypotheses.values())
    possible = solver.check()
    if possible == z3.unsat:
        return Verdict(Status.UNKNOWN, reason=f"{obligation.name}: the hypotheses contradict each other")
    if possible != z3.sat:
        return _undecided(solver, f"{obligation.name}: whether the hypotheses can hold", limits)
    solver.add(z3.Not(obligation.conclusion))
    answer = solver.check()
    if answer == z3.unsat:
        return Verdict(Status.PROVED)
    if answer != z3.sat:
        return _undecided(solver, obligation.name, limits)
    model = solver.model()
    values = ", ".join(f"{name} = {model.eval(term, model_completion=True)}" for name, term in obligation.shown.items())
    return Verdict(Status.REFUTED, counterexample=f"{obligation.name} fails" + (f" at {values}" if values else ""))


def _undecided(solver: Any, what: str, limits: Limits) -> Verdict:
    why = solver.reason_unknown()
    if why in ("timeout", "canceled"):
        why = f"no answer within {limits.query_ms} ms"
    return Verdict(Status.UNKNOWN, reason=f"{what}: {why}")
