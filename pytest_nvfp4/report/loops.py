"""A loop as a document: what it achieved, the curve, the accepted steps, what was rejected, and how to take the result.

A modelled time is called modelled, and a measured ratio stands with its device and interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from pytest_nvfp4.loop.view.standing import HOW, Budget, Measured, Standing, Step, red_gate, resume_command
from pytest_nvfp4.loop.view.view import CandidateView, LoopView
from pytest_nvfp4.report.curve import Series, curve
from pytest_nvfp4.report.document import Block, Cell, Code, Column, Document, Facts, Items, Section, Styled, Table
from pytest_nvfp4.report.loop_values import loop_values, words_of
from pytest_nvfp4.text import clip, plural, visible

_WIDTH, _HEIGHT = 76, 12
_LINE: Final = 80
_MOST_NUMBERS: Final = 8
_MOST_STEPS: Final = 20
_MOST_MESSAGE: Final = 2000
_STEPS = (
    Column("candidate", right=True),
    Column("before", right=True),
    Column("after", right=True),
    Column("change", right=True),
    Column("measured"),
    Column("reason"),
)
_REJECTED = (Column("why"), Column("number", right=True), Column("candidates"), Column("the last one"))


def loop_document(view: LoopView, standing: Standing, diffs: Mapping[int, str]) -> Document:
    """Return a loop as a document.

    Args:
        view: The loop.
        standing: What it has achieved.
        diffs: Diffs of accepted candidates that are shown, by their numbers; untrusted.
    """
    blocks: list[Block] = [Facts(list(_facts(view, standing)))]
    if red := red_gate(view.start):
        title = f"the kernel at the start does not pass: the gate {red.gate} {HOW[red.outcome]}"
        blocks.append(Section(Styled(title, "bad"), [clip(red.message, _MOST_MESSAGE)]))
    if lines := history_lines(standing, width=_WIDTH, height=_HEIGHT):
        blocks.append(Section("times relative to the start", [Code("\n".join(lines)), Styled(LEGEND, "muted")]))
    if standing.steps:
        blocks.append(Section("accepted", list(_steps(standing))))
    if rows := [_rejected(why, some) for why, some in standing.rejected.items()]:
        blocks.append(Section("not accepted", [Table(_REJECTED, rows)]))
    blocks.append(Section("how to take the result", list(_taking(view, standing))))
    if view.problems:
        blocks.append(Section("files that cannot be read", [Items([clip(each, 500) for each in view.problems[:10]])]))
    for step in standing.steps:
        if (diff := diffs.get(step.promotion.candidate)) is not None:
            blocks.append(_diff(step, diff))
    return Document(f"Loop {view.name}", blocks, loop_values(view, standing))


LEGEND = "o modelled, x measured, * accepted and modelled, # accepted and measured, - the incumbent, ^ far above"


def history_lines(standing: Standing, *, width: int, height: int) -> list[str]:
    """Return the curve of a loop; none without a time. `LEGEND` describes its marks."""
    history = standing.history
    modelled = [(each.number, each.modelled, each.promoted) for each in history if each.modelled is not None]
    measured = [(each.number, each.measured, each.promoted) for each in history if each.measured is not None]
    best = measured if any(kept for number, _, kept in measured if number) else modelled
    series = [
        Series(mark, [(number, value) for number, value, kept in times if kept is accepted])
        for accepted, times, mark in (
            (False, modelled, "o"),
            (False, measured, "x"),
            (True, modelled, "*"),
            (True, measured, "#"),
        )
    ]
    return curve(
        series,
        [(number, value) for number, value, kept in best if kept],
        last=standing.last,
        width=width,
        height=height,
    )


def status_text(view: LoopView) -> str:
    """Return what a loop does, or why it does nothing."""
    state = view.state
    where = f"{state.phase} of iteration {state.iteration}"
    match view.life:
        case "absent":
            return "no loop has begun here; `nvfp4 loop run` begins one"
        case "running":
            doing = view.heartbeat.activity if view.heartbeat is not None else ""
            return f"running: {where}" + (f", {doing}" if doing else "")
        case "stopped":
            text = f"stopped: {state.stop_reason or 'no reason is recorded'}"
            if not state.interrupted:
                return text
            return f"{text}, in {state.interrupted} of iteration {state.iteration}; go on with `{resume_command(view)}`"
        case "dead":
            who = f"process {view.owner.pid} on {view.owner.host}" if view.owner is not None else "its process"
            return f"dead: {who} ended in {where} without stopping it; go on with `{resume_command(view)}`"


def metric_text(metric: str) -> str:
    """Return the target's metric in words."""
    if metric in ("modelled", "measured"):
        return f"{metric} geometric mean in us"
    return metric.removeprefix("counter:") or "value"


def best_text(view: LoopView, standing: Standing) -> str:
    """Return the incumbent's value beside that of the start, and what was measured.

    Measured times have no change beside them: those of the start are from another allocation. Their ratio has.
    """
    state = view.state
    number = f"candidate {state.incumbent_candidate}" if state.incumbent_candidate else "the start itself"
    after = state.best_value if state.best_value is not None else state.baseline_value
    if after is None:
        text = f"no {metric_text(state.metric)} is known yet"
    elif state.metric == "measured" or state.baseline_value is None:
        text = f"{metric_text(state.metric)} {after:.6g}, {number}"
    else:
        change = change_text(state.baseline_value, after)
        text = f"{metric_text(state.metric)} {state.baseline_value:.6g} -> {after:.6g} ({change}), {number}"
    return f"{text}; measured ratio {measured_text(standing.measured)}" if standing.measured is not None else text


def change_text(before: float | None, after: float | None) -> str:
    """Return a relative change, such as ``-18.7 %``; ``-`` if one is unknown."""
    return f"{100 * (after / before - 1):+.1f} %" if before and after is not None else "-"


def measured_text(measured: Measured) -> str:
    """Return a measured ratio with its interval and devices."""
    ratio = f"{measured.ratio:.3f} ({measured.low:.3f} to {measured.high:.3f}) on {', '.join(measured.devices)}"
    return ratio if measured.comparisons == 1 else f"{ratio}, product of {measured.comparisons} comparisons"


def budget_text(budget: Budget) -> str:
    """Return what was spent of a budget, such as ``time 12.0 of 360 min``."""
    digits = 2 if budget.unit == "USD" else 1 if budget.unit == "min" else 0
    limit = "" if budget.limit is None else f" of {budget.limit:,g}"
    return f"{budget.name} {budget.spent:,.{digits}f}{limit} {budget.unit}".rstrip()


def _facts(view: LoopView, standing: Standing) -> Iterator[tuple[str, Cell]]:
    state, config = view.state, view.config
    if config is not None:
        yield "kernel", f"{config.kernel.file} on {', '.join(config.kernel.problems)}"
    yield "state", Styled(status_text(view), "bad" if view.life == "dead" else "")
    yield "best", Styled(best_text(view, replace(standing, measured=None)), "good" if standing.steps else "")
    first, last = standing.modelled
    if first is not None and last is not None and state.metric != "modelled":
        yield "modelled geometric mean in us", f"{first:.6g} -> {last:.6g} ({change_text(first, last)})"
    if (start := view.start.examination) is not None and start.table:
        yield "modelled with", f"{start.table}; a modelled time is no measurement"
    if standing.measured is not None:
        yield "measured ratio to the start", f"{measured_text(standing.measured)}; intervals of 95 %"
    elif standing.steps:
        none = all(step.measured is None for step in standing.steps)
        text = "no accepted step was measured" if none else "not every accepted step was measured"
        yield "measured ratio to the start", f"unknown: {text}"
    accepted, refused = len(standing.steps), sum(map(len, standing.rejected.values()))
    parts = [f"{accepted} accepted", f"{refused} not accepted"]
    if left := len(view.candidates) - accepted - refused:
        parts.append(f"{left} undecided yet")
    if standing.reverted:
        parts.append(f"{plural(len(standing.reverted), 'promotion')} reverted")
    yield "candidates", f"{len(view.candidates)} in {plural(state.iteration, 'iteration')}: {', '.join(parts)}"
    yield "spent", "; ".join(budget_text(each) for each in standing.budgets if each.name != "iterations")


def _steps(standing: Standing) -> Iterator[Block]:
    shown = standing.steps[-_MOST_STEPS:]
    if hidden := len(standing.steps) - len(shown):
        yield Styled(f"the first {plural(hidden, 'step')} not shown; --json has them", "muted")
    rows: list[tuple[Cell, ...]] = []
    for step in shown:
        reason = step.view.verdict.reason if step.view is not None and step.view.verdict is not None else None
        rows.append(
            (
                step.promotion.candidate,
                None if step.before is None else f"{step.before:.6g}",
                f"{step.promotion.value:.6g}",
                change_text(step.before, step.promotion.value),
                None if step.measured is None else measured_text(step.measured),
                None if reason is None else clip(reason, _LINE),
            )
        )
    yield Table(_STEPS, rows)


def _rejected(why: str, some: tuple[CandidateView, ...]) -> tuple[Cell, ...]:
    numbers = ", ".join(str(each.number) for each in some[-_MOST_NUMBERS:])
    last = some[-1]
    reason = last.verdict.reason if last.verdict is not None else ""
    if not reason and last.candidate is not None:
        reason = next(iter((*last.candidate.violations, *last.candidate.problems)), "")
    first_line = reason.strip().partition("\n")[0]
    return why, len(some), ("..., " if len(some) > _MOST_NUMBERS else "") + numbers, clip(first_line, _LINE) or None


def _taking(view: LoopView, standing: Standing) -> Iterator[Block]:
    branch = f"nvfp4-loop/{view.name}"
    if view.config is not None and view.config.mode == "dry-run":
        yield "nothing: a dry run makes its candidates up, and there is no branch"
        return
    if not standing.steps:
        yield f"nothing was accepted: the branch {branch} is where it began"
        return
    base = view.state.baseline
    yield f"each accepted step is a commit of the branch {branch}, with its evidence in the message"
    yield Code(
        f"git log -p {base[:12]}..{branch}  # read it\n"
        f"git merge {branch}  # take all of it\n"
        f"git cherry-pick COMMIT  # or some of its steps",
        "console",
    )


def _diff(step: Step, diff: str) -> Section:
    blocks: list[Block] = []
    if step.view is not None and step.view.verdict is not None:
        blocks.append(step.view.verdict.reason)
    if words := words_of(step.view):
        blocks.append(f"the worker's own words, which nobody has verified: {clip(words, 2000)}")
    shown = Code(visible(diff, multiline=True).rstrip(), "diff")
    blocks.append(shown if diff else Styled("its diff is missing", "muted"))
    promotion = step.promotion
    return Section(f"step {step.number}: candidate {promotion.candidate}, commit {promotion.commit[:12]}", blocks)
