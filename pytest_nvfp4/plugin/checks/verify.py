"""``verify``: the kernel's results are right, bit for bit wherever every order of fp32 sums is exact.

The kernel runs on the device with the default input families, each call with fresh inputs and poisoned outputs, in an
order and a number it cannot know; the outputs are judged in this process by the exact oracle.
"""

from __future__ import annotations

from pytest_nvfp4.plugin.running import KernelOnDevice


def verify(nvfp4_running: KernelOnDevice) -> None:
    """Every output of every family is right, inputs stay as they were, and nothing else is written."""
    nvfp4_running.verify()
