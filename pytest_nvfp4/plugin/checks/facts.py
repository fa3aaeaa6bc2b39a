"""Base class of the checks that compare named facts of a trace with a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.checks.base import Check, Differences
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.layout.launch_facts import FactChange
    from pytest_nvfp4.plugin.compare_facts import FactSnapshot
    from pytest_nvfp4.toolchain.trace import Trace


class FactsCheck(Check):
    """A check of facts of a trace. Its name is the ``kind`` of the fixture ``nvfp4_fact_snapshot``."""

    def __init__(self) -> None:
        self.fact_kind = self

    def facts(self, trace: Trace) -> dict[str, str]:
        """Return the facts of a trace, by name."""
        raise NotImplementedError

    def gated(self, changes: Sequence[FactChange], *, same_dsl: bool) -> Sequence[FactChange]:  # noqa: ARG002
        """Return the changes that fail the check; by default all but the new name of a kernel.

        Args:
            changes: All changes.
            same_dsl: The snapshot was recorded with this version of the DSL.
        """
        return [change for change in changes if change.direction != "renamed"]

    def run(self, nvfp4_case: KernelUnderTest, nvfp4_fact_snapshot: FactSnapshot) -> None:
        """Fail if a fact changed in a way that matters."""
        trace = nvfp4_case.trace()
        nvfp4_fact_snapshot(trace, kind=self.name)
        nvfp4_case.establish_compared(plural(len(self.facts(trace)), f"{self.name} fact"))

    def differences(self, record: CheckRecord) -> Differences:
        """Return the facts that changed. Raises SheetError."""
        from pytest_nvfp4.layout.launch_facts import diff_facts
        from pytest_nvfp4.toolchain.sheet import Sheet

        old, new = (Sheet.parse(text or "", kind=record.kind).facts for text in (record.old, record.new))
        return Differences(facts=diff_facts(old, new))
