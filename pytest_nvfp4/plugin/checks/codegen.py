"""``codegen``: the compiler made of the kernel what it made before.

More spills, stack or local memory fail, and so does an opcode that appears or vanishes (a store that was split, a TMA
load that became ordinary loads). Counts and registers that merely moved are reported. Under another version of the DSL
than the snapshot's, only spills and local memory fail: another compiler writes other code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.kernel import KernelUnderTest

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare_facts import FactSnapshot


def codegen(nvfp4_case: KernelUnderTest, nvfp4_fact_snapshot: FactSnapshot) -> None:
    """No spill, and no opcode gained or lost."""
    nvfp4_fact_snapshot(nvfp4_case.compiled_or_skip(), kind="codegen")
