"""Records of candidates in a directory of state, as a judge leaves them."""

from __future__ import annotations

import hashlib
from typing import Any

from pytest_nvfp4.loop.schemas import (
    Candidate,
    Comparison,
    Examination,
    GateResult,
    Outcome,
    ProblemTime,
    Verdict,
    WorkerResult,
)
from pytest_nvfp4.loop.state import StateFolder, write_model

START = hashlib.sha1(b"start").hexdigest()


def commit(name: object) -> str:
    """A commit or tree of that name."""
    return hashlib.sha1(str(name).encode()).hexdigest()


def digest(name: object) -> str:
    """A hash of that name."""
    return hashlib.sha256(str(name).encode()).hexdigest()


def measured(ratio: float = 1.0, *, outcome: str = "undecided") -> Comparison:
    """One comparison on a device."""
    times = (ProblemTime(problem="p", us=10.0),)
    return Comparison(
        device="GPU",
        incumbent=times,
        candidate=(ProblemTime(problem="p", us=10.0 * ratio),),
        ratio=ratio,
        low=ratio - 0.01,
        high=ratio + 0.01,
        outcome=outcome,  # type: ignore[arg-type]
    )


def candidate(number: int, *, iteration: int | None = None, parent: str = START, **changes: Any) -> Candidate:
    """A candidate with a source of its own."""
    values: dict[str, Any] = {
        "number": number,
        "iteration": number if iteration is None else iteration,
        "parent": parent,
        "by": "agent",
        "end": "proposed",
        "commit": commit(f"commit {number}"),
        "tree": commit(f"tree {number}"),
        "source_sha256": digest(f"source {number}"),
        "files": ("k.py",),
    }
    return Candidate(**{**values, **changes})


def result(made: Candidate, summary: str, **changes: Any) -> Candidate:
    """The candidate with its worker's words."""
    words = WorkerResult(iteration=made.iteration, kernel_path="k.py", decision="KEEP", summary=summary, **changes)
    return made.model_copy(update={"result": words})


def verdict(made: Candidate, outcome: Outcome, **changes: Any) -> Verdict:
    """A verdict about a candidate against its parent."""
    values: dict[str, Any] = {
        "candidate": made.number,
        "iteration": made.iteration,
        "against": made.parent,
        "outcome": outcome,
        "reason": f"it is {outcome}",
        "metric": "modelled",
    }
    if outcome in ("faster", "slower", "undecided"):
        better = {"faster": 9.0, "slower": 11.0, "undecided": 9.999}[outcome]
        values |= {"value": better, "incumbent_value": 10.0}
    return Verdict(**{**values, **changes})


def examination(number: int, *, red: str = "", **changes: Any) -> Examination:
    """An examination that passed all gates, or all but the last one."""
    gates = [GateResult(gate="compile", outcome="passed")]
    if red:
        gates.append(GateResult(gate=red, outcome="failed", message=f"{red} found k.py:3: hint"))
    values: dict[str, Any] = {
        "candidate": number,
        "gates": tuple(gates),
        "passed": not red,
        "ptx_sha256": digest(f"ptx {number}"),
        "modelled": (ProblemTime(problem="p", us=10.0),),
        "counters": {"p/bytes": 1024.0},
    }
    return Examination(**{**values, **changes})


def keep(
    folder: StateFolder,
    made: Candidate,
    outcome: Outcome | None = None,
    *,
    red: str = "",
    ptx: str = "",
    **changes: Any,
) -> Candidate:
    """Write the records of a candidate, and return it."""
    place = folder.candidate(made.number)
    write_model(place / "candidate.json", made)
    if made.commit is not None and outcome not in (None, "no-candidate"):
        found = examination(made.number, red=red, **({"ptx_sha256": ptx} if ptx else {}))
        write_model(place / "examination.json", found)
    if outcome is not None:
        write_model(place / "verdict.json", verdict(made, outcome, **changes))
    return made
