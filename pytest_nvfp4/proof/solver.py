"""Proof obligations for z3, which is imported when the first one is discharged.

z3 is optional (``pip install 'pytest-nvfp4[proof]'``). Without it a claim is *unknown*, and its reason names the
package.

An obligation is ``hypotheses => conclusion`` over integers. It holds if the hypotheses with the negated conclusion have
no model. Contradictory hypotheses would prove anything, so they are checked first and make the obligation unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Self, TypeAlias

from pytest_nvfp4.proof.statement import Claim, Limits, Method, Mistake, ProofVerdict, Status

Term: TypeAlias = Any
"""A Python integer or an integer term of z3."""
Formula: TypeAlias = Any
"""A Boolean term of z3."""
Z3: TypeAlias = Any
"""The module z3, which is untyped."""

_EXTRA = "proof"
HOW_TO_GET = f"z3 is not installed: pip install 'pytest-nvfp4[{_EXTRA}]' (or pip install z3-solver)"


class SolverMissingError(Exception):
    """z3 is not installed or cannot be imported; the message names the command that installs it.

    Attributes:
        needs: The extra that installs it; empty if it is installed and broken.
    """

    def __init__(self, message: str, needs: str = "") -> None:
        super().__init__(message)
        self.needs = needs


def load() -> Z3:
    """Import z3. Raises `SolverMissingError`."""
    try:
        return import_module("z3")
    except ModuleNotFoundError as error:
        if error.name == "z3":
            raise SolverMissingError(HOW_TO_GET, _EXTRA) from error
        raise SolverMissingError(_broken(error)) from error
    except Exception as error:
        # Without libz3, `import z3` raises z3types.Z3Exception, which cannot be named without importing z3.
        raise SolverMissingError(_broken(error)) from error


def _broken(error: Exception) -> str:
    cause = " ".join(str(error).split()) or type(error).__name__
    return f"z3 is installed and cannot be imported ({cause}): pip install --force-reinstall z3-solver"


def version() -> str:
    """Return the solver with its version, such as ``z3 4.13.0``, or an empty text without it."""
    try:
        return f"z3 {load().get_version_string()}"
    except SolverMissingError:
        return ""


@dataclass(frozen=True, slots=True)
class Obligation:
    """``hypotheses => conclusion``.

    Attributes:
        name: What it establishes.
        hypotheses: Formulas by name; `facts` names them by their own text.
        conclusion: The formula that must follow.
        shown: Terms whose values are printed in a counterexample, by name.
    """

    name: str
    hypotheses: Mapping[str, Formula]
    conclusion: Formula
    shown: Mapping[str, Term] = field(default_factory=dict)


def facts(*formulas: Formula) -> dict[str, Formula]:
    """Return hypotheses named by their own text, such as ``{"x < M": x < m}`` for a symbol m that prints as M."""
    return {str(formula): formula for formula in formulas}


def between(low: Term, term: Term, end: Term) -> tuple[Formula, Formula]:
    """Return ``low <= term`` and ``term < end``."""
    return low <= term, term < end


@dataclass(frozen=True, slots=True)
class Questions:
    """Check by z3: every obligation that ``build`` returns must hold."""

    build: Callable[..., Sequence[Obligation]]

    def run(self, limits: Limits) -> ProofVerdict:
        """Discharge all obligations; the first that does not hold decides."""
        try:
            z3 = load()
        except SolverMissingError as error:
            return ProofVerdict(Status.UNKNOWN, reason=str(error), needs=error.needs)
        obligations = self.build(z3)
        for done, obligation in enumerate(obligations):
            verdict = discharge(z3, obligation, limits)
            if verdict.status is not Status.PROVED:
                return ProofVerdict(verdict.status, verdict.counterexample, verdict.reason, f"{done + 1} obligations")
        if not obligations:
            return ProofVerdict(Status.UNKNOWN, reason="there are no obligations")
        return ProofVerdict(Status.PROVED, checked=f"{len(obligations)} obligations")

    def changed(self, **changes: Any) -> Self:
        """Return the check with these keyword arguments of ``build``."""
        return replace(self, build=partial(self.build, **changes))

    @property
    def solver(self) -> str:
        """Version of z3."""
        return version()


def claim_by_z3(
    name: str,
    words: str,
    build: Callable[..., Sequence[Obligation]],
    *,
    formulas: tuple[str, ...],
    given: tuple[str, ...] = (),
    controls: Sequence[Mistake] = (),
) -> Claim:
    """Return a claim that holds if z3 discharges every obligation of ``build``."""
    check = Questions(build)
    return Claim(name, words, formulas, Method.Z3, check, given, tuple(each.control(check) for each in controls))


def discharge(z3: Z3, obligation: Obligation, limits: Limits) -> ProofVerdict:
    """Decide one obligation."""
    solver = z3.Solver()
    solver.set("timeout", limits.query_ms)
    solver.set("random_seed", 0)
    solver.add(*obligation.hypotheses.values())
    possible = solver.check()
    if possible == z3.unsat:
        return ProofVerdict(Status.UNKNOWN, reason=f"{obligation.name}: the hypotheses contradict each other")
    if possible != z3.sat:
        return _undecided(solver, f"{obligation.name}: whether the hypotheses can hold", limits)
    solver.add(z3.Not(obligation.conclusion))
    answer = solver.check()
    if answer == z3.unsat:
        return ProofVerdict(Status.PROVED)
    if answer != z3.sat:
        return _undecided(solver, obligation.name, limits)
    model = solver.model()
    values = ", ".join(f"{name} = {model.eval(term, model_completion=True)}" for name, term in obligation.shown.items())
    return ProofVerdict(Status.REFUTED, counterexample=f"{obligation.name} fails" + (f" at {values}" if values else ""))


def _undecided(solver: Any, what: str, limits: Limits) -> ProofVerdict:
    why = solver.reason_unknown()
    if why in ("timeout", "canceled"):
        why = f"no answer within {limits.query_ms} ms"
    return ProofVerdict(Status.UNKNOWN, reason=f"{what}: {why}")
