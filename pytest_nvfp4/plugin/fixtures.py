"""Fixtures: the kernel of a check item, and for a user's tests traces, kernels, the device and snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.state import CASE, RUN
from pytest_nvfp4.plugin.traces import TraceFactory
from pytest_nvfp4.plugin.verifications import VERIFICATIONS

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.source import SourceResult
    from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
    from pytest_nvfp4.plugin.compare_facts import CostSnapshot, FactSnapshot
    from pytest_nvfp4.plugin.compare_layouts import LayoutSnapshot
    from pytest_nvfp4.plugin.compare_modelled import ModelSnapshot
    from pytest_nvfp4.plugin.kernels import KernelFactory


@pytest.fixture
def nvfp4_case(request: pytest.FixtureRequest) -> KernelUnderTest:
    """Kernel of a check item; for checks only."""
    from pytest_nvfp4.plugin.checks.base import CheckItem
    from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest

    if not isinstance(request.node, CheckItem):
        raise pytest.UsageError("nvfp4_case is for check items of kernel files; a test uses nvfp4_trace(PATH)")
    return KernelUnderTest(request.node)


@pytest.fixture(scope="session")
def nvfp4_device(request: pytest.FixtureRequest) -> Device:
    """Device of this run; without one, the test is skipped, or fails with ``--nvfp4-require-device``."""
    return request.config.stash[DEVICES].device()


@pytest.fixture(scope="session")
def nvfp4_kernel(request: pytest.FixtureRequest) -> KernelFactory:
    """Run kernels in tests: ``nvfp4_kernel(PATH).verify(problem="96x128x256", families=["pow2_exact"])``."""
    from pytest_nvfp4.plugin.kernels import KernelFactory

    return KernelFactory(request.config.stash[RUN], request.config.stash[VERIFICATIONS])


@pytest.fixture(scope="session")
def nvfp4_trace(request: pytest.FixtureRequest) -> TraceFactory:
    """Compile kernels without a device: ``nvfp4_trace(PATH, entry=..., problem=...)`` returns the trace."""
    return TraceFactory(request.config.stash[RUN])


@pytest.fixture(scope="session")
def nvfp4_run() -> Callable[..., SourceResult]:
    """Simulate one launch of a CUDA C++ or PTX file: ``nvfp4_run(PATH, grid=2, block=64, args=[x]).check().arrays``."""
    from pytest_nvfp4.device.source import run_source

    return run_source


@pytest.fixture
def layout_snapshot(request: pytest.FixtureRequest) -> LayoutSnapshot:
    """Compare a kernel's layouts with the stored snapshot: ``layout_snapshot(trace)`` or ``layout_snapshot(PATH)``."""
    from pytest_nvfp4.plugin.compare_layouts import LayoutSnapshot

    factory: TraceFactory = request.getfixturevalue("nvfp4_trace")
    return LayoutSnapshot(request.node, request.config.stash[RUN], factory, request.node.stash.get(CASE, None))


@pytest.fixture
def nvfp4_fact_snapshot(request: pytest.FixtureRequest) -> FactSnapshot:
    """Compare launch or codegen facts with the stored snapshot: ``nvfp4_fact_snapshot(trace, kind="launch")``."""
    from pytest_nvfp4.plugin.checks.registry import CheckRegistry
    from pytest_nvfp4.plugin.compare_facts import FactSnapshot

    registry = CheckRegistry.of(request.config)
    kinds = {check.name: kind for check in registry if (kind := check.fact_kind) is not None}
    return FactSnapshot(request.node, request.config.stash[RUN], kinds)


@pytest.fixture
def nvfp4_cost_snapshot(request: pytest.FixtureRequest) -> CostSnapshot:
    """Compare the costs of a simulated call with the stored snapshot; for checks only."""
    from pytest_nvfp4.plugin.compare_facts import CostSnapshot

    return CostSnapshot(request.node, request.config.stash[RUN])


@pytest.fixture
def nvfp4_model_snapshot(request: pytest.FixtureRequest) -> ModelSnapshot:
    """Compare a modelled time with the stored snapshot; for checks only."""
    from pytest_nvfp4.plugin.compare_modelled import ModelSnapshot

    return ModelSnapshot(request.node, request.config.stash[RUN])
