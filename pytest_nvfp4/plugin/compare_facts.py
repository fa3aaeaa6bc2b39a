"""Comparison of named facts with a snapshot: facts of a trace, and costs of a simulated call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest

from pytest_nvfp4.bench.cost import COUNTS, cost_changes, cost_facts
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.plugin.comparison import Change, Comparison, header, listed
from pytest_nvfp4.plugin.failure import CheckFailure, fails_at_caller
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.text import plural
from pytest_nvfp4.toolchain.sheet import Sheet, SheetError
from pytest_nvfp4.toolchain.trace import Trace

COST_PROPERTY = "nvfp4_cost."
"""Start of the names of the properties of test reports, and so of JUnit, that hold the counters of a call."""
COST_ORIGIN = "nvfp4_cost_of."
"""Start of the names of those that say what was counted: ``problem``, ``model`` of the device, ``counts``."""


class FactKind(Protocol):
    """A kind of facts of a trace: the part of `FactsCheck` that is used here."""

    def facts(self, trace: Trace) -> Mapping[str, str]:
        """Return the facts of a trace."""

    def gated(self, changes: Sequence[FactChange], *, same_dsl: bool) -> Sequence[FactChange]:
        """Return the changes that fail."""


@dataclass(frozen=True, slots=True)
class FactSnapshot:
    """Comparison of facts of a trace with the stored snapshot; the kinds of facts are those of the checks, by name."""

    _item: pytest.Item
    _run: Run
    _kinds: Mapping[str, FactKind]

    @fails_at_caller
    def __call__(self, trace: Trace, *, kind: str, name: str | None = None) -> None:
        """Compare.

        Args:
            trace: The trace whose facts are compared.
            kind: ``launch`` (every change fails) or ``codegen`` (see `checks.codegen`).
            name: Name of the snapshot within the test.

        Raises:
            CheckFailure: The snapshot is missing or damaged, or a fact changed.
        """
        if kind not in self._kinds:
            known = " and ".join(map(repr, self._kinds))
            raise CheckFailure(f"nvfp4_fact_snapshot(kind={kind!r}): the kinds are {known}")
        rule = self._kinds[kind]
        comparison = Comparison(self._item, self._run, trace, name=name, what=f"{kind} facts")
        received = Sheet(kind, header(trace, self._run), rule.facts(trace))
        if (stored := stored_sheet(comparison, received)) is None:
            return
        every = diff_facts(stored.facts, received.facts)
        gated = rule.gated(every, same_dsl=stored.header.get("dsl") == trace.dsl_version)
        changed = f"{plural(len(gated), f'{kind} fact')} of {comparison.kernel} changed"
        _settle(comparison, received, every, gated, failure=changed)


@dataclass(frozen=True, slots=True)
class CostSnapshot:
    """Comparison of the costs of a simulated call with the stored snapshot."""

    _item: pytest.Item
    _run: Run

    @fails_at_caller
    def __call__(
        self,
        trace: Trace,
        call: SimulatedCall,
        problem: Problem,
        *,
        tolerance: Sequence[tuple[str, float]] = (),
        name: str | None = None,
    ) -> None:
        """Compare.

        Args:
            trace: The kernel's trace, for names and versions. It may be of another problem.
            call: Counters of the call.
            problem: Its problem.
            tolerance: The user's tolerances, see `bench.cost`.
            name: Name of the snapshot within the test.

        Raises:
            CheckFailure: The snapshot is missing or damaged, or a cost grew.
        """
        comparison = Comparison(self._item, self._run, trace, name=name, what="costs")
        origin = {"problem": problem.name, "model": f"{call.model}, {call.sms} SMs", "counts": COUNTS}
        names = {code.symbol: code.source_name for code in trace.code if code.source_name}
        received = Sheet("cost", header(trace, self._run) | origin, cost_facts(call, problem, names))
        self._item.user_properties += [
            *((f"{COST_ORIGIN}{key}", value) for key, value in origin.items()),
            *((f"{COST_PROPERTY}{counter}", value) for counter, value in received.facts.items()),
        ]
        if (stored := stored_sheet(comparison, received)) is None:
            return
        every = cost_changes(
            stored.facts,
            received.facts,
            tolerance=tolerance,
            same_dsl=stored.header.get("dsl") == trace.dsl_version,
            same_counts=stored.header.get("counts") == COUNTS,
        )
        gated = [change for change in every if change.gates]
        changed = f"{plural(len(gated), 'cost')} of {comparison.kernel} on {problem.name} changed for the worse"
        note = "these are counts of one call, simulated on a model of the device; none is a time\n"
        _settle(comparison, received, every, gated, failure=changed, note=note)


def stored_sheet(comparison: Comparison, received: Sheet) -> Sheet | None:
    """Record a comparison, and return the sheet to compare with; None if it was missing or damaged and is now written.

    Raises:
        CheckFailure: It is missing or damaged, and ``--snapshot-update`` was not given.
    """
    text = received.render()
    comparison.record(received.kind, text)
    if comparison.stored is None:
        comparison.settle_new(text)
        return None
    try:
        return Sheet.parse(comparison.stored, kind=received.kind)
    except SheetError as error:
        if not comparison.updating:
            raise comparison.damaged(text, error) from error
        comparison.settle(text, passes=False)
        return None


def _settle(
    comparison: Comparison,
    received: Sheet,
    every: Sequence[Change],
    gated: Sequence[Change],
    *,
    failure: str,
    note: str = "",
) -> None:
    """Settle a comparison. Raises CheckFailure, with the changes and a note below them, if a change fails it."""
    if not comparison.settle(received.render(), passes=not gated):
        raise comparison.failure(
            f"{failure} against {comparison.shown}:\n{listed(gated, others=len(every) - len(gated))}\n"
            f"{note}if the change is meant: {comparison.update_command()}, and commit the snapshot"
        )
