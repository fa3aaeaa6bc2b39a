"""Results of gates from the answers of the product's commands.

A gate passes if it has checks and all of them pass. One of which a check did not run does not pass, as a candidate
could choose on which problem it is examined: it is *skipped* if the check does not apply, which is no fault of a
candidate if it did not apply to the baseline either, and *unavailable* if something was missing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from pytest_nvfp4.loop.judge.answers import CheckAnswer, CostAnswer, FindingAnswer, LayoutChange, ModelAnswer
from pytest_nvfp4.loop.schemas import GateResult
from pytest_nvfp4.text import clip

COMPILED: Final = ("compile", "layouts", "launch", "codegen")
"""Gates for which a kernel is compiled only."""
SIMULATED: Final = ("tmem", "coverage", "verify", "races")
"""Gates that simulate."""
REQUIRED: Final = ("compile", "verify", "cost", "model")
"""Gates that every kernel passes: without them a loop has nothing to go by."""
_MOST: Final = 4000
_FINDINGS: Final = 3
_NOT_RUN: Final = "not run: "
"""Start of the reason of a check that was skipped because something was missing (`plugin.devices`)."""


def check_gates(
    names: Sequence[str],
    checks: Sequence[CheckAnswer],
    *,
    wall_s: float,
    missing: str = "",
    reported: bool = False,
    protected: Collection[str] = (),
) -> list[GateResult]:
    """Return the results of gates that one run of pytest has checked.

    Args:
        names: The gates, in order.
        checks: The checks of the report.
        wall_s: Seconds of the run, which the gates share.
        missing: Why a gate without a check has none; empty if it does not apply.
        reported: Whether layouts that changed are only reported.
        protected: Patterns of layouts that may not change at all, besides those that the report names.
    """
    share = wall_s / len(names)
    found = [
        _check_gate(name, [check for check in checks if check.gate == name], missing, reported, protected)
        for name in names
    ]
    failed = next((gate for gate in found if gate.outcome == "failed"), None)
    results = []
    for gate in found:
        if gate.outcome == "skipped" and failed is not None and found.index(failed) > found.index(gate):
            # A check that meets what another one reports is skipped and names that one, which comes later.
            named = any(f"::{failed.gate}" in check.message for check in checks if check.gate == gate.gate)
            changes = {"outcome": "failed", "message": failed.message}
            if not named:  # such as coverage, if nothing was launched: why the result is wrong says more
                changes = {"message": clip(f"{gate.message}\n{failed.message}", _MOST)}
            results.append(gate.model_copy(update=changes))
            continue
        results.append(gate)
    return [gate.model_copy(update={"wall_s": round(share, 3)}) for gate in results]


def _check_gate(
    name: str, checks: Sequence[CheckAnswer], missing: str, reported: bool, protected: Collection[str]
) -> GateResult:
    bad = [check for check in checks if check.outcome in ("failed", "error")]
    if name == "layouts":
        shielded = [change for check in checks for change in _protected(check, protected)]
        if shielded:
            return GateResult(gate=name, outcome="failed", message=clip(_shielded(shielded), _MOST))
        if reported:
            bad = [check for check in bad if not _only_changed(check)]
            if not bad and any(check.outcome == "failed" for check in checks):
                return GateResult(
                    gate=name, outcome="passed", message="layouts changed, and the policy reports it only"
                )
    if bad:
        return GateResult(gate=name, outcome="failed", message=clip(check_text(bad[0]), _MOST))
    skipped = [check for check in checks if check.outcome != "passed"]
    if checks and not skipped:
        return GateResult(gate=name, outcome="passed")
    reasons = list(dict.fromkeys(check.message for check in skipped if check.message))
    if unavailable := [reason for reason in reasons if reason.startswith(_NOT_RUN)]:
        return GateResult(gate=name, outcome="unavailable", message=clip(unavailable[0], _MOST))
    text = reasons[0] if reasons else missing or "the kernel has no such check"
    return GateResult(gate=name, outcome="skipped", message=clip(text, _MOST))


def _protected(check: CheckAnswer, patterns: Collection[str]) -> list[LayoutChange]:
    """Return the changes of layouts that the policy protects, and that the report may only have mentioned."""
    if check.diff is None:
        return []
    return [
        change
        for change in check.diff.changes
        if change.severity != "identical"
        and any(
            fnmatch.fnmatchcase(name or "", pattern) for pattern in patterns for name in (change.name, change.old_name)
        )
    ]


def _shielded(changes: Sequence[LayoutChange]) -> str:
    return "\n".join(["policy.protected: layouts that may never change have changed:", *map(layout_line, changes)])


def _only_changed(check: CheckAnswer) -> bool:
    """Return whether a check of layouts fails by nothing but changes of layouts that are not protected."""
    return check.diff is not None and not any(change.protected or change.error for change in check.diff.changes)


def layout_line(change: LayoutChange) -> str:
    """Return a change of a layout in one line."""
    name = change.name if change.old_name is None else f"{change.old_name} -> {change.name}"
    return clip(f"{name}: {change.severity.replace('_', ' ')}, {change.kind}: {change.old} -> {change.new}", 1000)


def check_text(check: CheckAnswer) -> str:
    """Return a failure as text for the next worker: what is wrong, the line in its source, and the hint."""
    lines = [check.message.strip() or f"{check.check}: {check.outcome}"]
    where = f"{check.file}:{check.line}" if check.file and check.line else check.file or ""
    if where and where not in check.message:
        lines[0] = f"{where}: {lines[0]}"
    for finding in check.findings[:_FINDINGS]:
        if finding.text and finding.text.strip() not in check.message:
            lines.append(f"    {finding.text.strip()}")
        if finding.hint and finding.hint not in check.message:
            lines.append(f"hint: {finding.hint}")
    return "\n".join([f"{check.check}: {lines[0]}", *lines[1:]])


def finding_text(findings: Iterable[FindingAnswer]) -> str:
    """Return the first errors of a simulation as text."""
    lines = []
    for finding in [each for each in findings if each.severity == "error"][:_FINDINGS]:
        where = f"{finding.file}:{finding.line}: " if finding.file and finding.line else ""
        lines.append(f"{where}{finding.message}")
        lines += [f"    {finding.text.strip()}"] if finding.text else []
        lines += [f"hint: {finding.hint}"] if finding.hint else []
    return "\n".join(lines)


def cost_gate(answer: CostAnswer, *, wall_s: float) -> GateResult:
    """Return the result of the gate ``cost``: each problem was counted to its end, and its outputs are right."""
    for problem in answer.problems:
        wrong = any(finding.severity == "error" for finding in problem.findings)
        if problem.status != "passed" or wrong or not problem.facts:
            reason = finding_text(problem.findings) or "no reason is known"
            return _failed("cost", f"{problem.status} on {problem.problem}: {reason}", wall_s)
    return GateResult(gate="cost", outcome="passed", wall_s=wall_s)


def model_gate(answer: ModelAnswer, *, wall_s: float) -> GateResult:
    """Return the result of the gate ``model``: each problem has a modelled time. A refused one does not pass."""
    for problem in answer.problems:
        if problem.modelled_us is None:
            reason = "; ".join(problem.refused) or finding_text(problem.findings) or "no reason is known"
            return _failed("model", f"no time is modelled on {problem.problem} ({problem.status}): {reason}", wall_s)
    return GateResult(gate="model", outcome="passed", wall_s=wall_s)


def _failed(gate: str, message: str, wall_s: float) -> GateResult:
    return GateResult(gate=gate, outcome="failed", wall_s=wall_s, message=clip(message, _MOST))
