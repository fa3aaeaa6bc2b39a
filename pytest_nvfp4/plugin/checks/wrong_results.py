"""The failure of a kernel with wrong results: what is wrong over all calls, inputs and problems, in a bounded text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.causes import CAUSES, causes_of
from pytest_nvfp4.plugin.checks.races import races_behind
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at, finding_lines, stderr_lines
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.device.verdict import CaseVerdict
    from pytest_nvfp4.device.verify import Verification
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest

_OUTPUTS = "mismatch"
"""Kind of the findings about values of outputs."""
_CALL = re.compile(r"(call \d+(?: \(.*?\))?): ")
"""Start of the message about an output: which call, and what kind of call it was."""
_SHOWN = 5
_FIRST_LINES, _FURTHER_LINES = 14, 4
_FAMILIES = 8


def wrong_results(kernel: KernelUnderTest, judged: Sequence[CaseVerdict], verification: Verification) -> CheckFailure:
    """Return the failure of verdicts of which some are wrong, with the race first that these come from.

    A race is searched for in the simulator, and only if no item failed by this cause before.
    """
    wrong = [verdict for verdict in judged if verdict.status != "passed"]
    found = [finding for verdict in wrong for finding in verdict.findings]
    findings = [finding for finding in found if finding.severity == "error"] or found
    failure = _failure(kernel, findings, judged, verification)
    known = kernel.item.config.stash[CAUSES]
    new = [cause for cause in causes_of(failure, kernel.run) if not known.raised(kernel.case.path, cause.key)]
    simulated = verification.device is not None and verification.device.simulated
    searches = simulated and kernel.item.config.getoption("--nvfp4-races") != "off"
    if not (new and searches and kernel.compile_failure() is None):
        return failure
    races = races_behind(kernel, wrong[0].case, findings)
    # A deadlock is then a consequence of the race.
    others = [finding for finding in findings if finding.kind != "deadlock"]
    return _failure(kernel, [*races, *others], judged, verification) if races else failure


def _failure(
    kernel: KernelUnderTest, findings: Sequence[Finding], judged: Sequence[CaseVerdict], verification: Verification
) -> CheckFailure:
    shown = _distinct(findings)
    lines: list[str] = []
    for index, (finding, count) in enumerate(shown[:_SHOWN]):
        text = finding_lines([finding], kernel.run, most=1)
        most = _FURTHER_LINES if index else _FIRST_LINES
        lines += text[:most]
        left = len(text) - most
        more = [plural(left, "line") + " more"] * (left > 0) + [f"{count} more like it"] * (count > 0)
        if more:
            lines.append(f"  ... {', '.join(more)}")
    if len(shown) > _SHOWN:
        lines.append(f"and {plural(len(shown) - _SHOWN, 'further finding')}")
    lines += _where(judged)
    device = f"on {verification.device}" if verification.device else "no device answered"
    lines.append(f"{device}; inputs and order of calls: --nvfp4-seed {verification.order_seed}")
    failure = failure_at(
        [*lines, *stderr_lines(verification.stderr)],
        [finding for finding, _ in shown if finding.kind != _OUTPUTS],
        kernel=kernel.case.path,
    )
    failure.effects = tuple(_effects(verdict for verdict in judged if verdict.status != "passed"))
    return failure


def _distinct(findings: Sequence[Finding]) -> list[tuple[Finding, int]]:
    """Return the findings that differ in more than figures, each with the number of further ones like it.

    Those with a line come first: what happened to the outputs follows from them.
    """
    first: dict[str, Finding] = {}
    counts: dict[str, int] = {}
    for finding in findings:
        told = _outputs_first(finding)
        first.setdefault(key := told.identity, told)
        counts[key] = counts.get(key, -1) + 1
    return sorted(((first[key], counts[key]) for key in first), key=lambda pair: pair[0].line is None)


def _outputs_first(finding: Finding) -> Finding:
    """Return a finding about outputs with what is wrong in its first line and the call, of whatever kind, behind it."""
    if finding.kind != _OUTPUTS or (call := _CALL.match(finding.message)) is None:
        return finding
    what, _, rest = finding.message[call.end() :].partition("\n")
    lines = [what, f"  in {call[1]}", *rest.splitlines()]
    return replace(finding, message="\n".join(lines))


def _effects(wrong: Iterable[CaseVerdict]) -> list[str]:
    """Return what the outputs show: not written, wrong, or both."""
    found: dict[str, None] = {}
    for verdict in wrong:
        bad = [group for group in verdict.groups if not group.ok]
        found |= dict.fromkeys(
            "outputs not written" if group.unwritten == group.mismatches and not group.guard else "outputs wrong"
            for group in bad
        )
        if not bad and any(finding.kind == _OUTPUTS for finding in verdict.findings):
            found["outputs wrong"] = None
    return list(found)


def _where(judged: Sequence[CaseVerdict]) -> list[str]:
    """Return one line for each wrong status and problem, with the input families, and those that are right."""
    families: dict[tuple[str, str], list[str]] = {}
    right: dict[str, list[str]] = {}
    for verdict in judged:
        problem, family = verdict.case.problem.name, repr(verdict.case.family)
        if verdict.status == "passed":
            right.setdefault(problem, []).append(family)
        else:
            families.setdefault((verdict.status, problem), []).append(family)
    return [
        f"{status} on {problem} with inputs {_listed(names)}"
        + (f"; right with {_listed(right[problem])}" if problem in right else "")
        for (status, problem), names in families.items()
    ]


def _listed(names: Sequence[str]) -> str:
    """Return names, the first of them if there are many."""
    more = f" and {len(names) - _FAMILIES} more" if len(names) > _FAMILIES else ""
    return ", ".join(names[:_FAMILIES]) + more
