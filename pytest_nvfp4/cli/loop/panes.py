"""What each part of the terminal view of a loop shows, as text; everything from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from pytest_nvfp4.loop.schemas import GateResult, WorkerProgress
from pytest_nvfp4.loop.view.standing import Standing, gates_of, measured_of, modelled_us, red_gate, why_not_promoted
from pytest_nvfp4.loop.view.view import CandidateView, LoopView
from pytest_nvfp4.report.loop_values import words_of
from pytest_nvfp4.report.loops import LEGEND, best_text, budget_text, history_lines, status_text
from pytest_nvfp4.text import clip, printed, visible

_MOST_LINE = 2000
_MOST_FINDINGS = 20
_MOST_FEEDBACK = 40
_SILENT_S = 60.0
_MARKS = {
    "passed": ("+", "green"),
    "failed": ("x", "bold red"),
    "skipped": ("o", "yellow"),
    "unavailable": ("?", "yellow"),
}
_LIVES = {"running": "green", "stopped": "bold", "dead": "bold red", "absent": "yellow"}
_DIFF = {"+": "green", "-": "red", "@": "cyan"}
_REQUESTS = {"after-iteration": "stop after this iteration is requested", "now": "stop now is requested"}

Row = tuple[str, str, str, str, str]
COLUMNS = ("no", "outcome", "modelled us", "measured", "why")


def line(text: str) -> str:
    """Return an untrusted text as one line, without escapes; of what a carriage return overwrites, the last."""
    return clip(printed(text.rstrip("\r").rpartition("\r")[2].expandtabs(4)).replace("\n", " "), _MOST_LINE)


def head(view: LoopView, standing: Standing) -> Text:
    """Return what is always visible: what the loop does, its best value, spending and limits."""
    config, state = view.config, view.state
    text = Text()
    text.append(f"{line(view.name)}  {state.phase}  iteration {state.iteration}", "bold")
    text.append(f" of {config.budget.iterations}\n" if config is not None else "\n")
    text.append(line(status_text(view)), _LIVES[view.life])
    if view.life == "running" and view.silent_s is not None and view.silent_s > _SILENT_S:
        text.append(f"; no sign of life for {view.silent_s:.0f} s", "bold red")
    if request := _REQUESTS.get(view.control.stop) if view.life == "running" else None:
        text.append(f"; {request}", "bold yellow")
    text.append(f"\n{line(best_text(view, standing))}\n")
    text.append(" | ".join(budget_text(each) for each in standing.budgets if each.name != "iterations"), "dim")
    if config is not None:
        limits, target = config.limits, config.target
        counts = [
            f"without promotion {state.no_progress} of {limits.no_progress}",
            f"infrastructure failures {state.infrastructure_failures} of {limits.infrastructure_failures}",
        ]
        if target.threshold is not None:
            counts.append(f"target met {state.target_confirmations} of {target.confirmations}")
        text.append(f"\n{' | '.join(counts)}", "dim")
    for problem in view.problems[:2]:
        text.append(f"\n{line(problem)}", "bold red")
    return text


def now(view: LoopView, outputs: Sequence[tuple[str, str, Sequence[str]]], *, width: int, height: int) -> Text:
    """Return the candidates that are made or judged, and the end of the output of workers or of the reviewer.

    Args:
        view: The loop.
        outputs: Whose, file and last lines of each output; untrusted.
        width: Columns of a line, at which longer ones are folded.
        height: Lines that are visible, which the outputs share.
    """
    text = Text()
    shown = view.active or view.candidates[-1:] or (view.start,)
    if not view.active and view.candidates:
        text.append("the last one\n", "dim")
    for each in shown:
        text.append(f"candidate {each.number}: " if each.number else "the kernel at the start: ", "bold")
        text.append_text(_gates(each))
        text.append("\n")
    if (red := red_gate(view.start)) is not None:
        text.append(f"{line(red.message)}\n", "bold red")
    share = max(3, (height - len(text.plain.splitlines())) // max(1, len(outputs)) - 1)
    for whose, name, lines in outputs:
        text.append(f"{whose}, {line(name)}\n", "bold")
        text.append("".join(f"{each}\n" for each in _last(lines, share, width)) or "(nothing yet)\n")
    return text


def _last(lines: Sequence[str], most: int, width: int) -> list[str]:
    """Return the last lines that fit into a number of folded ones, at least one."""
    shown: list[str] = []
    for each in reversed([line(each) for each in lines if each.strip()]):
        most -= max(1, -(-cell_len(each) // max(1, width)))
        if most < 0 and shown:
            break
        shown.insert(0, each)
    return shown


def progress(reported: WorkerProgress | None) -> str:
    """Return what a worker claims while it works; empty for nothing."""
    if reported is None:
        return ""
    best = "" if reported.best_time_us is None else f", best {reported.best_time_us:.6g} us"
    note = f": {reported.note}" if reported.note else ""
    return line(f"the worker claims {reported.status}{best}{note}")


def _gates(view: CandidateView) -> Text:
    text = Text()
    gates = gates_of(view)
    for at, gate in enumerate(gates):
        text.append(" " if at else "")
        text.append_text(_gate(gate))
    if view.verdict is not None:
        text.append(f" {view.verdict.outcome}", "bold")
    elif not gates and view.candidate is None:
        text.append(progress(view.progress) or "its worker runs" if view.number else "is not examined yet")
    elif not gates:
        text.append(why_not_promoted(view) or "waits for the judge")
    return text


def _gate(gate: GateResult) -> Text:
    mark, style = _MARKS[gate.outcome]
    return Text(f"{mark}{line(gate.gate)} {gate.wall_s:.0f}s", style)


def history(standing: Standing, width: int, height: int) -> Text:
    """Return the curve of times."""
    lines = history_lines(standing, width=width, height=max(4, height - 3))
    if not lines:
        return Text("no time is known yet", "dim")
    return Text("\n".join((*lines, LEGEND)))


def rows(view: LoopView, standing: Standing) -> Iterator[tuple[int, Row]]:
    """Yield the number and the cells of each candidate."""
    accepted = {step.promotion.candidate for step in standing.steps}
    for each in view.candidates:
        modelled, measured = modelled_us(each.examination), measured_of(each)
        outcome = each.verdict.outcome if each.verdict is not None else each.candidate.end if each.candidate else "open"
        yield (
            each.number,
            (
                str(each.number),
                "accepted" if each.number in accepted else outcome,
                "-" if modelled is None else f"{modelled:.5g}",
                "-" if measured is None else f"{measured.ratio:.3f}",
                clip(line(_reason(each).strip().partition("\n")[0]), 200),
            ),
        )


def _reason(view: CandidateView) -> str:
    """Return why a candidate has its outcome."""
    if view.verdict is not None and view.verdict.reason:
        return view.verdict.reason
    if view.candidate is None:
        return ""
    return next(iter((*view.candidate.violations, *view.candidate.problems)), "")


def details(view: CandidateView) -> Text:
    """Return the verdict about a candidate with its evidence, and what its worker says."""
    text = Text(f"{line(_reason(view))}\n" if _reason(view) else "")
    text.append_text(_gates(view))
    text.append("\n")
    if view.verdict is not None:
        for each in view.verdict.comparisons:
            interval = f"{each.ratio:.4f} ({each.low:.4f} to {each.high:.4f})"
            text.append(f"measured on {line(each.device)}: ratio {interval}, {each.outcome}\n")
        for part in view.verdict.feedback.strip().splitlines()[:_MOST_FEEDBACK]:
            text.append(f"  {line(part)}\n", "dim")
    if words := words_of(view):
        text.append("the worker's own words, which nobody has verified:\n", "bold")
        for part in clip(words, 4000).strip().splitlines():
            text.append(f"  {line(part)}\n", "dim")
    return text


def findings(view: LoopView) -> Text:
    """Return why the last candidates were not accepted, newest first."""
    text = Text()
    red = [each for each in view.candidates if each.verdict is not None and each.verdict.outcome != "faster"]
    for each in red[: -_MOST_FINDINGS - 1 : -1]:
        assert each.verdict is not None
        text.append(f"candidate {each.number}: {why_not_promoted(each)}: ", "bold")
        text.append(f"{line(each.verdict.reason)}\n")
        for part in each.verdict.feedback.strip().splitlines()[:6]:
            text.append(f"  {line(part)}\n", "dim")
    for number, review in reversed(view.reviews[-3:]):
        text.append(f"review of iteration {number}: {review.verdict}: ", "bold")
        text.append(f"{line(review.reason)}\n")
    return text if text else Text("no candidate was rejected yet", "dim")


def log(view: LoopView) -> Text:
    """Return the last lines of the log."""
    return Text("\n".join(line(each) for each in view.log if each) or "the log is empty")


def diff(raw: str) -> Text:
    """Return a diff with colours."""
    text = Text()
    for each in raw.splitlines():
        bold = each.startswith(("+++", "---", "diff "))
        shown = clip(visible(each.expandtabs(4)), _MOST_LINE)
        text.append(f"{shown}\n", "bold" if bold else _DIFF.get(each[:1], ""))
    return text
