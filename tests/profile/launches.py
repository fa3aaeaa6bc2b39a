"""Launches as the simulator counts them, and as a tool measures them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.device.modelled import ModelledLaunch, PathPart
from pytest_nvfp4.device.result import SimulatedLaunch
from pytest_nvfp4.profile.analysis import ModelledGains
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


def modelled(**changes: float) -> ModelledGains:
    """A modelled launch whose longest wait is for DRAM at line 12, and answers to what-if questions."""
    path = (
        PathPart(role="store", source="k.py:90", cause="instructions", us=9),
        PathPart(role="load", source="k.py:12", cause="DRAM", us=5),
        PathPart(role="load", source="k.py:14", cause="TMA latency", us=4),
    )
    times = dict.fromkeys(("us", "kernel_us", "launch_us", "fill_us", "drain_us", "tail_us"), 1.0)
    launch = ModelledLaunch(kernel="k", ctas=1, waves=1, bound="DRAM", busy=(), path=path, **times)
    return ModelledGains(launch, changes)
