"""``launch``: grid, block, cluster, shared memory, TMEM and TMA descriptors equal their snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.checks.facts import FactsCheck

if TYPE_CHECKING:
    from pytest_nvfp4.layout.launch_facts import FactChange
    from pytest_nvfp4.toolchain.trace import Trace


class LaunchCheck(FactsCheck):
    """The check of a kernel's launches. Every change fails."""

    name = "launch"
    help = "grid, block, cluster, shared memory, TMEM and TMA descriptors did not change"
    stage = 10

    def facts(self, trace: Trace) -> dict[str, str]:
        """Return the facts of the launches."""
        from pytest_nvfp4.toolchain.sheet import launch_facts

        return launch_facts(trace)

    def gated(self, changes: Sequence[FactChange], *, same_dsl: bool) -> list[FactChange]:  # noqa: ARG002
        """Return all changes."""
        return list(changes)
