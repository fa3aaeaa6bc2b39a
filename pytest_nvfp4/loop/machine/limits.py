"""When a loop ends: counts that each iteration changes, and the limits that they are compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.context import Context
from pytest_nvfp4.loop.schemas import Candidate, ReviewerVerdict, Verdict
from pytest_nvfp4.loop.state import LoopState

_KEY = re.compile(r"((?:budget|limits)\.\w+) = ")
"""Start of the reason of a limit; no other reason, of a reviewer or a person, begins so."""


def counted(
    state: LoopState, judged: Sequence[tuple[Candidate, Verdict]], review: ReviewerVerdict | None, config: LoopConfig
) -> dict[str, Any]:
    """Return the counts of a state after an iteration, whose promotions it has already.

    An iteration in which every worker failed, or in which nothing could be said about any candidate, is one of the
    surroundings: it is neither progress nor the lack of it.
    """
    threshold = config.target.threshold
    promoted = any(one.iteration == state.iteration for one in state.promotions)
    lost = all(verdict.outcome == "infrastructure" or candidate.end == "failed" for candidate, verdict in judged)
    met = threshold is not None and state.best_value is not None and state.best_value <= threshold
    return {
        "no_progress": state.no_progress if lost else 0 if promoted else state.no_progress + 1,
        "infrastructure_failures": state.infrastructure_failures + 1 if lost else 0,
        "target_confirmations": state.target_confirmations if lost else state.target_confirmations + 1 if met else 0,
        "hint": "" if review is None else review.next_change_hint,
    }


def given_up(state: LoopState, config: LoopConfig) -> dict[str, Any]:
    """Return the counts with which a loop that gave up goes on: whoever starts it again asks for as many more."""
    limits = config.limits
    changes: dict[str, Any] = {}
    if state.no_progress >= limits.no_progress:
        changes["no_progress"] = 0
    if state.infrastructure_failures >= limits.infrastructure_failures:
        changes["infrastructure_failures"] = 0
    return changes


def stop_reason(state: LoopState, review: ReviewerVerdict | None, context: Context) -> str:
    """Return why the loop ends after an iteration; empty if it goes on."""
    config, control = context.config, context.pulse.control()
    limits, target = config.limits, config.target
    if control.stop:
        return "stopped by `nvfp4 loop stop`" + (f": {control.reason}" if control.reason else "")
    if review is not None and review.verdict != "CONTINUE":
        return f"the reviewer says {review.verdict}: {review.reason}"
    if target.threshold is not None and state.target_confirmations >= target.confirmations:
        return (
            f"target.threshold = {target.threshold:g} is met in {state.target_confirmations} iterations in a row: "
            f"{config.target.metric} is {state.best_value:g}"
        )
    if reason := context.pulse.out_of_time() or context.budget.reached():
        return reason
    if state.infrastructure_failures >= limits.infrastructure_failures:
        return f"limits.infrastructure_failures = {limits.infrastructure_failures}: as many iterations in a row failed"
    if state.no_progress >= limits.no_progress:
        return f"limits.no_progress = {limits.no_progress}: as many iterations in a row promoted nothing"
    if state.iteration >= config.budget.iterations:
        return f"budget.iterations = {config.budget.iterations} is reached"
    return ""


def how_to_go_on(reason: str, config: LoopConfig) -> str:
    """Return what to do to go on with a loop that has stopped: the same command, with the limit to raise if any."""
    found = _KEY.match(reason)
    if found is None:
        return "run the same command to go on"
    section, _, key = found[1].partition(".")
    value = getattr(getattr(config, section), key)
    higher = f"{found[1]}={max(1, 2 * value):g}"
    if section == "limits":  # counted anew in each run
        return f"run the same command to try as often again, or add a higher limit, such as {higher}"
    instead = " in place of --max-cost" if key == "dollars" else ""
    return f"raise the limit to go on: run the same command with {higher}{instead}"
