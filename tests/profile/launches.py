"""Launches as the simulator counts them, and as a tool measures them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.device.result import SimulatedLaunch
from pytest_nvfp4.profile.result import Extents, Metric, ProfiledLaunch

KERNEL = "kernel_cutlass_gemm_kernel_TiledMMA_0"


def counted(counters: Mapping[str, int], *, kernel: str = KERNEL, grid: Extents = (4, 1, 1)) -> SimulatedLaunch:
    """A simulated launch of CTAs of 96 threads."""
    return SimulatedLaunch(
        kernel=kernel,
        grid=grid,
        block=(96, 1, 1),
        cluster=(1, 1, 1),
        shared_bytes=0,
        ctas_per_sm=1,
        counters=dict(counters),
    )


def measured(
    counters: Mapping[str, float | None], *, name: str = KERNEL, grid: Extents | None = (4, 1, 1), instances: int = 1
) -> ProfiledLaunch:
    """A measured launch."""
    return ProfiledLaunch(
        name=name,
        grid=grid,
        block=(96, 1, 1),
        instances=instances,
        counters={key: Metric.of(value) for key, value in counters.items()},
    )
