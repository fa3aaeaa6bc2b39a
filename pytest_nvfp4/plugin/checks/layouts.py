"""``layouts``: every named layout of the kernel is what its snapshot says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.kernel import KernelUnderTest

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare_layouts import LayoutSnapshot


def layouts(nvfp4_case: KernelUnderTest, layout_snapshot: LayoutSnapshot) -> None:
    """No layout changed in a way that matters."""
    layout_snapshot(nvfp4_case.compiled_or_skip())
