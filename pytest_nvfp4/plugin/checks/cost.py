"""``cost``: no counter of what one call does grew.

The simulator counts exactly and repeatably: bytes and requests of TMA, matrix instructions and their padding, traffic
and bank conflicts of shared memory, sectors of global memory, atomics, instructions of each role of warps, waits. A
counter that grew by more than its tolerance fails; one that shrank is reported until the snapshot is updated. With
another version of the DSL than the snapshot's, ordinary instructions, loads and stores fail nothing, because another
compiler generates other code. No counter is a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.bench.storage import stores
from pytest_nvfp4.plugin.checks.base import Differences
from pytest_nvfp4.plugin.checks.coverage import SimulatedCheck, require_call, simulate_launches
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare_facts import CostSnapshot


class CostCheck(SimulatedCheck):
    """The check of a call's counters against their snapshot."""

    name = "cost"
    help = "no counter of what one call does grew (simulated)"
    optional = True
    wrong_results_reported_by = "coverage"

    def configure(self, config: pytest.Config) -> None:
        """Register the hooks that store counters in pytest-benchmark's files, if any are written."""
        if stores(config, compares=False):
            from pytest_nvfp4.plugin.checks.counted_costs import CountedCosts

            config.pluginmanager.register(CountedCosts(), "nvfp4-counted")

    def run(self, nvfp4_case: KernelUnderTest, nvfp4_cost_snapshot: CostSnapshot) -> None:
        """Fail if a counter grew by more than its tolerance."""
        from pytest_nvfp4.bench.cost import cost_facts

        call = require_call(nvfp4_case, simulate_launches(nvfp4_case))
        case = nvfp4_case.case
        nvfp4_cost_snapshot(nvfp4_case.trace(), call, case.problem, tolerance=case.settings.cost_tolerance)
        costs = plural(len(cost_facts(call, case.problem)), "cost")
        nvfp4_case.establish_compared(f"{costs} of one call on {case.problem.name} (simulated)")

    def differences(self, record: CheckRecord) -> Differences:
        """Return the counters that changed, those that fail by default first. Raises SheetError."""
        from pytest_nvfp4.bench.cost import cost_changes
        from pytest_nvfp4.toolchain.sheet import Sheet

        old, new = (Sheet.parse(text or "", kind=self.name).facts for text in (record.old, record.new))
        found = sorted(cost_changes(old, new), key=lambda each: not each.gates)
        return Differences(facts=[each.change for each in found])
