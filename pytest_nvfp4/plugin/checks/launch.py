"""``launch``: grid, block, cluster, shared memory, TMEM and TMA descriptors are what the snapshot says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.kernel import KernelUnderTest

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare_facts import FactSnapshot


def launch(nvfp4_case: KernelUnderTest, nvfp4_fact_snapshot: FactSnapshot) -> None:
    """No fact of a launch changed."""
    nvfp4_fact_snapshot(nvfp4_case.compiled_or_skip(), kind="launch")
