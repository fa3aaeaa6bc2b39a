"""``launch``: grid, block, cluster, shared memory, TMEM and TMA descriptors equal their snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.checks.facts import FactsCheck

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace


class LaunchCheck(FactsCheck):
    """The check of a kernel's launches. Every change but a new name of the kernel fails."""

    name = "launch"
    help = "grid, block, cluster, shared memory, TMEM and TMA descriptors did not change"
    stage = 10

    def facts(self, trace: Trace) -> dict[str, str]:
        """Return the facts of the launches."""
        from pytest_nvfp4.toolchain.sheet import launch_facts

        return launch_facts(trace)
