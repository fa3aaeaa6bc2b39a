"""``coverage``: every output element is written, and by one CTA.

The kernel runs once in the simulator, which knows the writer of every element: what nobody wrote and what two CTAs of
a launch wrote fails; an element that one CTA wrote more than once is a warning.
"""

from __future__ import annotations

from pytest_nvfp4.plugin.simulating import KernelInSimulator


def coverage(nvfp4_simulated: KernelInSimulator) -> None:
    """Every output element is written by exactly one CTA."""
    nvfp4_simulated.coverage()
