"""Compare what a simulated call did with a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pytest_nvfp4.bench.cost import COUNTS, cost_changes, cost_facts
from pytest_nvfp4.plugin.comparison import Comparison, Pending, header, listed
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.toolchain.sheet import Sheet

if TYPE_CHECKING:
    from pytest_nvfp4.device.result import SimulatedCall
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.toolchain.trace import Trace

_KIND: Literal["cost"] = "cost"


class CostSnapshot(Comparison):
    """Compare the costs of a call with the stored snapshot."""

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
            trace: The kernel's trace, for names and versions.
            call: What the call did.
            problem: Its problem.
            tolerance: The user's tolerances, see ``bench.cost``.
            name: Name of the snapshot within the test.

        Raises:
            CheckFailure: the snapshot is missing or damaged, or a cost grew.
        """
        __tracebackhide__ = True
        try:
            self._compare(self._begin(trace, name=name, what="costs"), call, problem, tolerance)
        except CheckFailure as failure:
            raise failure.with_traceback(None) from None

    def _compare(
        self, pending: Pending, call: SimulatedCall, problem: Problem, tolerance: Sequence[tuple[str, float]]
    ) -> None:
        trace = pending.trace  # of another problem, perhaps: names and versions do not depend on it
        names = {code.symbol: code.source_name for code in trace.code if code.source_name}
        head = header(trace, self._run) | {
            "problem": problem.name,
            "model": f"{call.model}, {call.sms} SMs",
            "counts": COUNTS,
        }
        received = Sheet(_KIND, head, cost_facts(call, problem, names))
        text = received.render()
        pending.record(_KIND, text)
        stored = pending.stored_sheet(received)
        if stored is None:
            return
        changes = cost_changes(
            stored.facts,
            received.facts,
            tolerance=tolerance,
            same_dsl=stored.header.get("dsl") == trace.dsl_version,
            same_counts=stored.header.get("counts") == COUNTS,
        )
        gated = [change for change in changes if change.gates]
        if pending.settle(text, passes=not gated):
            return
        raise pending.failure(
            f"{len(gated)} cost{' of' if len(gated) == 1 else 's of'} {pending.kernel} on {problem.name} changed for "
            f"the worse against {pending.shown}:\n{listed(gated, others=len(changes) - len(gated))}\n"
            "these are counts of what one call does, simulated on a model of the device; none is a time\n"
            f"if the change is meant: {pending.update_command()}, and commit the snapshot"
        )
