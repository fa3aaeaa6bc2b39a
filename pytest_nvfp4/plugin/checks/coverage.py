"""``coverage``: every output element is written, and by one CTA.

The kernel runs once in the simulator, which records the writer of every element, also of a tensor that the kernel
allocates in the call and returns. Elements that were never written, or that two CTAs of a launch wrote, fail; an
element that one CTA wrote more than once is a warning; copies and operators of the host are writers. Later calls on the
same inputs whose launches are unlike those of the first call are checked too (``device.worker.later_calls``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.checks.base import Check, CheckItem, CollectedKernel, Needs
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, fitted_preparation
from pytest_nvfp4.plugin.checks.unlaunched import skip_without_launch
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at, finding_lines, simulated_stderr
from pytest_nvfp4.plugin.fitted import FITTED
from pytest_nvfp4.plugin.state import KernelCase
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.device.result import SimulatedCall
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.finding import Finding

_KINDS = frozenset({"never-written", "written-by-two"})
_FINDINGS_SHOWN = 8
_HOST = "the host's copies or operators"
_UNRECORDED = "the kernel returned a part of another tensor, or one that it had allocated before the call"


class SimulatedCheck(Check):
    """Base class of the checks that count what one call does in the simulator."""

    stage = 40

    def cases(self, kernel: CollectedKernel) -> Iterable[KernelCase]:
        """Return the simulated cases."""
        return kernel.simulated_cases()

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace and one simulation."""
        return Needs(traces=(item.case.trace_case,), simulations=(item.case,))


class CoverageCheck(SimulatedCheck):
    """The check of which CTA wrote which output element."""

    name = "coverage"
    help = "every output element is written, and by one CTA (simulated)"
    wrong_results_reported_by = "verify"
    summary_title = "coverage (simulated)"

    def cases(self, kernel: CollectedKernel) -> Iterable[KernelCase]:
        """Return the simulated cases, and the case on the fitted problem."""
        return [*super().cases(kernel), *kernel.fitted_cases()]

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace and one simulation, or what fits the problem."""
        if item.case.variant != FITTED:
            return super().needs(item)
        return Needs((item.case.trace_case,), preparations=(fitted_preparation(item),))

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if an element was never written, or by two CTAs; note a line about the CTAs."""
        done = simulate_launches(nvfp4_case)
        own = [finding for finding in done.errors if finding.kind in _KINDS]
        others = [finding for finding in done.errors if finding.kind not in _KINDS]
        if done.call is not None and done.call.launches:
            nvfp4_case.note(coverage_line(done.call))
        if own:
            raise _failure(nvfp4_case, [*others, *own], done)
        call = require_call(nvfp4_case, done)
        if call.unrecorded and not call.outputs:
            pytest.skip(f"which CTA wrote the outputs is not recorded: {_UNRECORDED}")
        host = sum(output.host for output in call.outputs)
        elements = plural(sum(output.elements for output in call.outputs), "output element")
        writers = f": {host} by {_HOST}, the others by one CTA each" if host else ", by one CTA each"
        nvfp4_case.establish(f"each of {elements} is written{writers} (simulated): {coverage_line(call)}")
        for finding in done.findings:
            if finding.kind == "written-twice":
                nvfp4_case.warn_of(finding)


def simulate_launches(kernel: KernelUnderTest) -> SimulationResult:
    """Simulate the kernel and write its timeline; skip the item if a call without errors launches nothing."""
    done = kernel.without_accepted(kernel.simulated())
    kernel.write_timeline(done)
    if done.call is not None and not done.call.launches and not done.errors:
        skip_without_launch(kernel, "to count")
    return done


def require_call(kernel: KernelUnderTest, done: SimulationResult) -> SimulatedCall:
    """Return what the call did, if nothing but its coverage is wrong.

    Raises:
        CheckFailure: The kernel fails, and no item of this run reports that.
    """
    others = [finding for finding in done.errors if finding.kind not in _KINDS]
    if others or done.call is None or done.status not in ("passed", "failed"):
        kernel.defer_wrong_results(kernel.item.check.wrong_results_reported_by)
        raise _failure(kernel, others or list(done.findings), done)
    return done.call


def _failure(kernel: KernelUnderTest, findings: list[Finding], done: SimulationResult) -> CheckFailure:
    lines = finding_lines(findings, kernel.run, most=_FINDINGS_SHOWN)
    lines.append(f"{done.status} on {done.case.problem.name}, simulated")
    if done.call is not None and done.call.launches:
        lines.append(coverage_line(done.call))
    return failure_at([*lines, *simulated_stderr(done)], findings, kernel=kernel.case.path)


def coverage_line(call: SimulatedCall) -> str:
    """Return the map of CTAs of a call in one line: CTAs, waves, tiles, and CTAs that wrote no output."""
    writing = [launch for launch in call.launches if launch.writers is not None]
    host = sum(output.host for output in call.outputs)
    if not writing and not host and not call.unrecorded:
        return f"no launch of {len(call.launches)} wrote an output"
    parts = []
    for launch in writing:
        idle = launch.ctas - (launch.writers or 0)
        parts.append(
            f"{plural(launch.ctas, 'CTA')}, {plural(launch.waves(call.sms), 'wave')} on {call.sms} SMs "
            f"({launch.ctas_per_sm} an SM), "
            + (f"{plural(idle, 'CTA')} wrote no output" if idle else "every CTA wrote output")
        )
    tiles = sum(output.tiles for output in call.outputs)
    outputs = f"{plural(tiles, 'tile')} of C, " * bool(tiles)
    outputs += plural(sum(output.elements for output in call.outputs), "element")
    if twice := sum(output.twice for output in call.outputs):
        outputs += f", {twice} of them written more than once by one CTA"
    if host:
        outputs += f", {host} of them written by {_HOST}"
    if call.unrecorded:
        outputs += f"; {plural(call.unrecorded, 'output')} not recorded ({_UNRECORDED})"
    if silent := len(call.launches) - len(writing):
        outputs += f"; {plural(silent, 'launch', 'launches')} that wrote no output"
    return "; ".join([*parts, outputs])
