"""``layouts``: every named layout of the kernel equals its snapshot, or differs in a way that does not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.checks.base import Check, Differences
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare_layouts import LayoutSnapshot


class LayoutsCheck(Check):
    """The check of a kernel's layouts against their snapshot. Its options belong to the fixture ``layout_snapshot``."""

    name = "layouts"
    help = "no named layout changed in a way that matters"
    stage = 10

    def run(self, nvfp4_case: KernelUnderTest, layout_snapshot: LayoutSnapshot) -> None:
        """Fail if a layout changed at or above the gate (``--nvfp4-fail-on``)."""
        trace = nvfp4_case.trace()
        layout_snapshot(trace)
        if not trace.values:
            pytest.skip("the compile shows no named layout, so there is nothing to compare")
        nvfp4_case.establish_compared(plural(len(trace.values), "named layout"))

    def differences(self, record: CheckRecord) -> Differences:
        """Return the differences between two listings of layouts. Raises LayoutError."""
        from pytest_nvfp4.layout.diff import diff_listings
        from pytest_nvfp4.layout.listing import Listing

        old, new = Listing.parse(record.old or ""), Listing.parse(record.new or "")
        return Differences(layouts=diff_listings(old, new, protected=record.protected))
