"""``layouts``: every named layout of the kernel is what its snapshot says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.fixtures import KernelUnderTest

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare import LayoutSnapshot


def layouts(nvfp4_case: KernelUnderTest, layout_snapshot: LayoutSnapshot) -> None:
    """No layout changed in a way that matters."""
    trace = nvfp4_case.trace_or_skip()
    layout_snapshot(trace, protected=nvfp4_case.case.settings.protected)
