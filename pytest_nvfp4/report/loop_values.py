"""A loop as JSON-ready values with stable keys, for ``nvfp4 loop report --json`` and ``nvfp4 loop watch --json``."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.loop.view.standing import Measured, Standing, Step, gates_of, measured_of, modelled_us, resume_command
from pytest_nvfp4.loop.view.view import CandidateView, LoopView


def loop_values(view: LoopView, standing: Standing) -> dict[str, Any]:
    """Return a loop as plain values."""
    state, config = view.state, view.config
    reviews = dict(view.reviews)
    return {
        "version": 1,
        "name": view.name,
        "folder": str(view.folder.root),
        "kernel": config.kernel.file if config is not None else None,
        "problems": list(config.kernel.problems) if config is not None else [],
        "mode": config.mode if config is not None else None,
        "life": view.life,
        "phase": state.phase,
        "iteration": state.iteration,
        "stop_reason": state.stop_reason,
        "stop_requested": view.control.stop,
        "resume": resume_command(view) if view.life in ("dead", "stopped") else None,
        "activity": view.heartbeat.activity if view.heartbeat is not None and view.life == "running" else "",
        "silent_s": view.silent_s,
        "metric": state.metric or (config.target.metric if config is not None else ""),
        "baseline": {"commit": state.baseline, "value": state.baseline_value, "modelled_us": standing.modelled[0]},
        "incumbent": {
            "commit": state.incumbent,
            "candidate": state.incumbent_candidate,
            "value": state.best_value,
            "modelled_us": standing.modelled[1],
        },
        "measured": _measured(standing.measured),
        "no_progress": state.no_progress,
        "infrastructure_failures": state.infrastructure_failures,
        "restarts": state.restarts,
        "budgets": [
            {"name": each.name, "unit": each.unit, "spent": each.spent, "limit": each.limit}
            for each in standing.budgets
        ],
        "accepted": [_step(each) for each in standing.steps],
        "reverted": [each.candidate for each in standing.reverted],
        "rejected": {why: [each.number for each in some] for why, some in standing.rejected.items()},
        "candidates": [_candidate(each, standing) for each in view.candidates],
        "reviews": [
            {"iteration": at, "verdict": each.verdict, "reason": each.reason, "reverts": each.requires_revert}
            for at, each in reviews.items()
        ],
        "unreadable": list(view.problems),
    }


def _measured(value: Measured | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {
        "ratio": value.ratio,
        "low": value.low,
        "high": value.high,
        "devices": list(value.devices),
        "comparisons": value.comparisons,
    }


def _step(step: Step) -> dict[str, Any]:
    view = step.view
    return {
        "candidate": step.promotion.candidate,
        "iteration": step.promotion.iteration,
        "commit": step.promotion.commit,
        "before": step.before,
        "after": step.promotion.value,
        "measured": _measured(step.measured),
        "reason": view.verdict.reason if view is not None and view.verdict is not None else "",
        "words_of_the_worker": words_of(view),
    }


def _candidate(view: CandidateView, standing: Standing) -> dict[str, Any]:
    verdict = view.verdict
    return {
        "number": view.number,
        "iteration": view.candidate.iteration if view.candidate is not None else None,
        "end": view.candidate.end if view.candidate is not None else None,
        "outcome": verdict.outcome if verdict is not None else None,
        "accepted": any(each.promotion.candidate == view.number for each in standing.steps),
        "reason": verdict.reason if verdict is not None else "",
        "value": verdict.value if verdict is not None else None,
        "modelled_us": modelled_us(view.examination),
        "measured": _measured(measured_of(view)),
        "gates": [{"gate": each.gate, "outcome": each.outcome, "wall_s": each.wall_s} for each in gates_of(view)],
    }


def words_of(view: CandidateView | None) -> str:
    """Return what the worker says about a candidate, which nobody has verified."""
    found = view.candidate.result if view is not None and view.candidate is not None else None
    return found.summary if found is not None else ""
