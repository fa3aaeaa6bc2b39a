"""What has happened in a loop from one view to the next, one line an event."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_nvfp4.loop.view.standing import gates_of, standing_of, why_not_promoted
from pytest_nvfp4.loop.view.view import CandidateView, LoopView
from pytest_nvfp4.report.loops import best_text, change_text, status_text
from pytest_nvfp4.text import clip, plural

_REASON = 300
_REQUESTS = {"after-iteration": "a stop after this iteration is requested", "now": "a stop is requested"}


def first_lines(view: LoopView) -> Iterator[str]:
    """Yield where a loop is, for a reader who has seen nothing of it yet."""
    yield f"loop {view.name}: {_status(view)}"
    if view.candidates:
        yield f"{plural(len(view.candidates), 'candidate')}; {best_text(view, standing_of(view))}"
    if view.life == "running" and (request := _REQUESTS.get(view.control.stop)):
        yield request
    yield from view.problems


def events(before: LoopView, now: LoopView) -> Iterator[str]:
    """Yield what has happened since an earlier view."""
    known = {each.number: each for each in before.candidates}
    yield from _gates("the start", before.start, now.start)
    for candidate in now.candidates:
        yield from _candidate(known.get(candidate.number) or CandidateView(candidate.number), candidate)
    old = {number for number, _ in before.reviews}
    for number, review in now.reviews:
        if number not in old:
            yield f"review of iteration {number}: {review.verdict}: {_first(review.reason)}"
    accepted, found = before.state.promotions, {each.number: each for each in now.candidates}
    for at, promotion in enumerate(now.state.promotions):
        if at >= len(accepted) and not promotion.reverted:
            judged = found.get(promotion.candidate, CandidateView(promotion.candidate)).verdict
            change = change_text(None if judged is None else judged.incumbent_value, promotion.value)
            yield f"candidate {promotion.candidate} is the incumbent: {promotion.value:.6g} ({change})"
        elif promotion.reverted and (at >= len(accepted) or not accepted[at].reverted):
            yield f"the promotion of candidate {promotion.candidate} is reverted"
    if now.control.stop != before.control.stop and (request := _REQUESTS.get(now.control.stop)):
        yield request
    if _status(now) != _status(before):
        yield _status(now)
    yield from (each for each in now.problems if each not in before.problems)


def _status(view: LoopView) -> str:
    text = status_text(view)
    # The activity of a running loop changes with each candidate, whose own events say the same.
    return f"running: {view.state.phase} of iteration {view.state.iteration}" if view.life == "running" else text


def _candidate(before: CandidateView, now: CandidateView) -> Iterator[str]:
    name = f"candidate {now.number}"
    if now.candidate is not None and before.candidate is None:
        problem = next(iter((*now.candidate.violations, *now.candidate.problems)), "")
        text = "is proposed" if now.candidate.end == "proposed" else why_not_promoted(now)
        yield f"{name}: {text}" + (f": {_first(problem)}" if problem else "")
    yield from _gates(name, before, now)
    if now.verdict is not None and before.verdict is None:
        yield f"{name}: {now.verdict.outcome}: {_first(now.verdict.reason)}"


def _gates(name: str, before: CandidateView, now: CandidateView) -> Iterator[str]:
    for gate in gates_of(now)[len(gates_of(before)) :]:
        message = f": {_first(gate.message)}" if gate.outcome != "passed" and gate.message else ""
        yield f"{name}: {gate.gate} {gate.outcome} ({gate.wall_s:.1f} s){message}"


def _first(text: str) -> str:
    return clip(text.strip().partition("\n")[0], _REASON)
