"""``benchmark``: the kernel is not slower than its baseline, and its times are what they claim to be.

Times are the device's: cold L2, inputs that rotate and change, answers checked at rounds the kernel cannot foresee.
They are replayed into pytest-benchmark, so ``--benchmark-autosave``, ``--benchmark-compare`` and the rest work on them;
with a baseline to compare with, the verdict is drawn here, and only ``slower`` fails.
"""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.plugin.running import KernelOnDevice


def benchmark(nvfp4_running: KernelOnDevice, benchmark: Any) -> None:
    """The kernel is as fast as before, or faster."""
    nvfp4_running.benchmark(benchmark)
