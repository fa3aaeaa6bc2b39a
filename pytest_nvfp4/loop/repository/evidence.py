"""The message of a promotion's commit: what became faster, by which numbers, and where the evidence is.

It ends with trailers (``git interpret-trailers``). The worker's own words are quoted above them, so that they can
neither add a trailer nor pass for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_nvfp4.loop.schemas import Candidate, Comparison, Verdict
from pytest_nvfp4.text import clip, visible

_MOST_WORDS: Final = 4000
_MOST_LINE: Final = 1000
_MOST_ENTRIES: Final = 100


def commit_message(candidate: Candidate, verdict: Verdict) -> str:
    """Return the message of the commit that makes a candidate the incumbent; it ends with a line end."""
    metric = _line(verdict.metric) or "value"
    subject = f"nvfp4-loop: promote candidate {candidate.number}"
    if verdict.value is not None and verdict.incumbent_value:
        gain = 100 * (1 - verdict.value / verdict.incumbent_value)
        subject = clip(f"{subject}, {gain:.2f} % lower {metric}", 120)
    body = [f"Why: {_line(verdict.reason)}"]
    if verdict.value is not None and verdict.incumbent_value is not None:
        body += ["", f"{metric}: {verdict.incumbent_value:.6g} before, {verdict.value:.6g} after"]
    body += [_comparison(number, each) for number, each in enumerate(verdict.comparisons, 1)]
    for counter in verdict.worse[:_MOST_ENTRIES]:
        body.append(f"worse: {_line(counter.problem)}/{_line(counter.name)} {counter.incumbent} -> {counter.candidate}")
    body += [f"changes {_line(path)}" for path in candidate.files[:_MOST_ENTRIES]]
    if candidate.result is not None and candidate.result.summary.strip():
        body += ["", "The worker's own words, which nobody has verified:", ""]
        body += list(_quoted(candidate.result.summary))
    return "\n".join([subject, "", *body, "", *_trailers(candidate, verdict), ""])


def revert_message(to: str, of: str, reason: str) -> str:
    """Return the message of the commit that gives the incumbent the files of an earlier one again."""
    words = [_line(line) for line in clip(reason, _MOST_WORDS).strip().splitlines()]
    subject = f"nvfp4-loop: revert to {to[:12]}"
    body = ["Why:", "", *(f"> {line}" for line in words), ""] if words else []
    return "\n".join([subject, "", *body, f"Nvfp4-Reverts: {of}", f"Nvfp4-Restores: {to}", ""])


def _comparison(number: int, each: Comparison) -> str:
    ratio = f"ratio {each.ratio:.4f}, 95 % interval {each.low:.4f} to {each.high:.4f}"
    return f"comparison {number} on {_line(each.device)}: {ratio}, {each.outcome}"


def _trailers(candidate: Candidate, verdict: Verdict) -> Iterator[str]:
    yield f"Nvfp4-Candidate: {candidate.number}"
    yield f"Nvfp4-Iteration: {candidate.iteration}"
    yield f"Nvfp4-Candidate-Commit: {candidate.commit}"
    yield f"Nvfp4-Against: {verdict.against}"
    yield f"Nvfp4-Outcome: {verdict.outcome}"
    for name, digest in sorted(verdict.artifacts.items())[:_MOST_ENTRIES]:
        yield f"Nvfp4-Artifact: sha256:{digest} {_line(name)}"


def _quoted(text: str) -> Iterator[str]:
    for line in clip(text, _MOST_WORDS).strip().splitlines():
        yield f"> {_line(line)}"


def _line(text: str) -> str:
    return clip(visible(text), _MOST_LINE)
