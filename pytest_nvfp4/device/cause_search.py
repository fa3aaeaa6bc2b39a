"""The cause of a wrong result in the simulator, found by one more call: the operand of an MMA, or unwritten memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.result import Status
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.driver.memory import POISON
from pytest_nvfp4.finding import UNWRITTEN, UNWRITTEN_SOURCE, Finding
from pytest_nvfp4.sim.run.device_memory import ALLOCATION

PROVENANCE = "provenance"
"""Kind of the finding that names the wrong operand of an MMA (``sim.provenance.judge``)."""
_ENDED = frozenset({"deadlock", "out-of-bounds"})
_EXPLAINED = _ENDED | {"mismatch"}
"""Kinds of findings whose cause may be an operand of an MMA, or memory that nothing has written."""
_MOST_SEARCHED = 3
"""Most wrong problems on which the cause is searched for, each of which takes as long as some calls."""


class Judged(Protocol):
    """A case whose outputs were judged."""

    @property
    def case(self) -> JobCase:
        """The case."""

    @property
    def status(self) -> Status:
        """Its status."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What is wrong."""


class Simulate(Protocol):
    """``device.simulate.simulate`` for one kernel on one simulator."""

    def __call__(
        self,
        cases: Sequence[JobCase],
        *,
        provenance: bool = ...,
        unwritten: bool = ...,
        outputs: bool = ...,
        poison: int = ...,
    ) -> list[SimulationResult]:
        """Simulate the kernel once on each case."""


def explained(judged: Sequence[Judged], again: Simulate) -> list[list[Finding]]:
    """Return the findings of each case, with the cause before a wrong result.

    It is an operand of an MMA that read the wrong data (``sim.provenance``), or a use of device memory that nothing has
    written. The kernel is called once more, with tags as inputs, on the first problem with a wrong result, and on
    further ones until a cause is found. Uses of its allocations count if the outputs depend on what these hold, which
    they do not on padding.
    """
    found = [list(one.findings) for one in judged]
    wrong: dict[ProblemSpec, list[int]] = {}
    for index, one in enumerate(judged):
        if one.status == "failed" and any(finding.kind in _EXPLAINED for finding in one.findings):
            wrong.setdefault(one.case.problem, []).append(index)
    for several in itertools.islice(wrong.values(), _MOST_SEARCHED):
        (done,) = again([judged[several[0]].case], provenance=True, unwritten=True)
        ended = any(finding.kind in _ENDED for index in several for finding in found[index])
        causes, failed = _causes(done, again, ended=ended)
        for index in several:
            known = {finding.message for finding in found[index]}
            found[index] = [finding for finding in causes if finding.message not in known] + found[index] + failed
        if causes:
            break
    return found


def _causes(done: SimulationResult, again: Simulate, *, ended: bool) -> tuple[list[Finding], list[Finding]]:
    """Return the causes that a call on tags shows, and what made that call fail; ``ended`` if the case had no end."""
    uses = {"uninitialised"} if ended else {"uninitialised", UNWRITTEN_SOURCE}
    causes = [
        replace(finding, kind=UNWRITTEN) if finding.kind in uses else finding
        for finding in done.findings
        if finding.kind in {PROVENANCE, *uses}
    ]
    own = [finding for finding in causes if finding.kind == UNWRITTEN and ALLOCATION in finding.message]
    if own and not ended and not _depends_on_memory(again, done.case):
        causes = [finding for finding in causes if finding not in own]
    failed = [
        replace(finding, message=f"the search for the cause of wrong results failed: {finding.message}")
        for finding in done.findings
        if finding.kind == "internal"
    ]
    return causes, failed


def _depends_on_memory(again: Simulate, case: JobCase) -> bool:
    """Return whether the outputs of a wrong case depend on what new memory of the kernel holds."""
    judged = set()
    for poison in (POISON, 0):
        (done,) = again([case], outputs=True, poison=poison)
        judged.add((done.status, *(str(finding) for finding in done.findings if finding.kind == "mismatch")))
    return len(judged) > 1
