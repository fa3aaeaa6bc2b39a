"""Comparison of named facts with a snapshot: facts of a trace, and costs of a simulated call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.plugin.comparison import Change, Comparison, Pending, header, listed
from pytest_nvfp4.plugin.failure import CheckFailure, fails_at_caller
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.toolchain.sheet import Sheet

if TYPE_CHECKING:
    from pytest_nvfp4.device.result import SimulatedCall
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.toolchain.trace import Trace


class FactKind(Protocol):
    """A kind of facts of a trace: the part of `FactsCheck` that is used here."""

    def facts(self, trace: Trace) -> Mapping[str, str]:
        """Return the facts of a trace."""

    def gated(self, changes: Sequence[FactChange], *, same_dsl: bool) -> Sequence[FactChange]:
        """Return the changes that fail."""


def _compare(
    pending: Pending,
    received: Sheet,
    *,
    changes: Callable[[Sheet], tuple[Sequence[Change], Sequence[Change]]],
    failure: Callable[[int], str],
    note: str = "",
) -> None:
    """Compare a sheet with the stored one.

    Args:
        pending: The comparison.
        received: The sheet.
        changes: Returns, for the stored sheet, all changes and those that fail.
        failure: Returns the first words of a failure, for the number of changes that fail.
        note: A line below the changes.

    Raises:
        CheckFailure: The snapshot is missing or damaged, or a change fails.
    """
    text = received.render()
    pending.record(received.kind, text)
    stored = pending.stored_sheet(received)
    if stored is None:
        return
    every, gated = changes(stored)
    if pending.settle(text, passes=not gated):
        return
    raise pending.failure(
        f"{failure(len(gated))} against {pending.shown}:\n{listed(gated, others=len(every) - len(gated))}\n"
        f"{note}if the change is meant: {pending.update_command()}, and commit the snapshot"
    )


class FactSnapshot(Comparison):
    """Comparison of facts of a trace with the stored snapshot.

    Args:
        item: The test.
        run: Options and settings of the run.
        kinds: The kinds of facts, by name.
    """

    def __init__(self, item: pytest.Item, run: Run, kinds: Mapping[str, FactKind]) -> None:
        super().__init__(item, run)
        self._kinds = kinds

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

        def changes(stored: Sheet) -> tuple[Sequence[Change], Sequence[Change]]:
            every = diff_facts(stored.facts, received.facts)
            return every, rule.gated(every, same_dsl=stored.header.get("dsl") == trace.dsl_version)

        pending = self._begin(trace, name=name, what=f"{kind} facts")
        received = Sheet(kind, header(trace, self._run), rule.facts(trace))
        _compare(
            pending,
            received,
            changes=changes,
            failure=lambda n: f"{n} {kind} fact{'' if n == 1 else 's'} of {pending.kernel} changed",
        )


class CostSnapshot(Comparison):
    """Comparison of the costs of a simulated call with the stored snapshot."""

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
        from pytest_nvfp4.bench.cost import COUNTS, cost_changes, cost_facts

        def changes(stored: Sheet) -> tuple[Sequence[Change], Sequence[Change]]:
            every = cost_changes(
                stored.facts,
                received.facts,
                tolerance=tolerance,
                same_dsl=stored.header.get("dsl") == trace.dsl_version,
                same_counts=stored.header.get("counts") == COUNTS,
            )
            return every, [change for change in every if change.gates]

        pending = self._begin(trace, name=name, what="costs")
        origin = {"problem": problem.name, "model": f"{call.model}, {call.sms} SMs", "counts": COUNTS}
        names = {code.symbol: code.source_name for code in trace.code if code.source_name}
        received = Sheet("cost", header(trace, self._run) | origin, cost_facts(call, problem, names))
        _compare(
            pending,
            received,
            changes=changes,
            failure=lambda n: (
                f"{n} cost{' of' if n == 1 else 's of'} {pending.kernel} on {problem.name} changed for the worse"
            ),
            note="these are counts of one call, simulated on a model of the device; none is a time\n",
        )
