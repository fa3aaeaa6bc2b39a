"""Fixtures: the kernel of a check item, traces for tests of one's own, and snapshots of layouts and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.kernel import KernelUnderTest
from pytest_nvfp4.plugin.state import RUN, Case
from pytest_nvfp4.plugin.traces import TraceFactory

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.plugin.compare_cost import CostSnapshot
    from pytest_nvfp4.plugin.compare_facts import FactSnapshot
    from pytest_nvfp4.plugin.compare_layouts import LayoutSnapshot
    from pytest_nvfp4.plugin.kernels import KernelFactory
    from pytest_nvfp4.plugin.racing import KernelRaces
    from pytest_nvfp4.plugin.running import KernelOnDevice
    from pytest_nvfp4.plugin.searching import KernelInSearch
    from pytest_nvfp4.plugin.simulating import KernelInSimulator


@pytest.fixture
def nvfp4_case(request: pytest.FixtureRequest) -> KernelUnderTest:
    """The kernel that the check item is about; for check items only."""
    case = getattr(request.node, "case", None)
    if not isinstance(case, Case):
        raise pytest.UsageError("nvfp4_case is for check items of kernel files; a test uses nvfp4_trace(PATH)")
    return KernelUnderTest(request.node, request.config.stash[RUN], case)


@pytest.fixture
def nvfp4_running(request: pytest.FixtureRequest) -> KernelOnDevice:
    """The kernel that the check item runs on a device; for check items only."""
    from pytest_nvfp4.plugin.running import DeviceCase, KernelOnDevice

    case = getattr(request.node, "case", None)
    if not isinstance(case, DeviceCase):
        raise pytest.UsageError("nvfp4_running is for check items of kernel files; a test uses nvfp4_kernel(PATH)")
    return KernelOnDevice(request.node, request.config.stash[RUN], case)


@pytest.fixture
def nvfp4_simulated(request: pytest.FixtureRequest) -> KernelInSimulator:
    """The kernel that the check item runs in the simulator; for check items only."""
    from pytest_nvfp4.plugin.simulating import KernelInSimulator, SimulatedCase

    case = getattr(request.node, "case", None)
    if not isinstance(case, SimulatedCase):
        raise pytest.UsageError("nvfp4_simulated is for check items of kernel files; a test uses nvfp4_kernel(PATH)")
    return KernelInSimulator(request.node, request.config.stash[RUN], case)


@pytest.fixture
def nvfp4_races(request: pytest.FixtureRequest) -> KernelRaces:
    """The kernel that the check item watches for races; for check items only."""
    from pytest_nvfp4.plugin.racing import KernelRaces, RaceCase

    case = getattr(request.node, "case", None)
    if not isinstance(case, RaceCase):
        raise pytest.UsageError("nvfp4_races is for check items of kernel files")
    return KernelRaces(request.node, request.config.stash[RUN], case)


@pytest.fixture
def nvfp4_searching(request: pytest.FixtureRequest) -> KernelInSearch:
    """The kernel that the check item searches a failing problem of; for check items only."""
    from pytest_nvfp4.plugin.searching import KernelInSearch

    case = getattr(request.node, "case", None)
    if not isinstance(case, Case):
        raise pytest.UsageError("nvfp4_searching is for check items of kernel files; a test uses nvfp4_kernel(PATH)")
    return KernelInSearch(request.node, request.config.stash[RUN], case)


@pytest.fixture(scope="session")
def nvfp4_device(request: pytest.FixtureRequest) -> Device:
    """The device of this run; a test that asks for it is skipped where there is none, or fails if one is required."""
    return request.config.stash[DEVICES].any_arch()


@pytest.fixture(scope="session")
def nvfp4_kernel(request: pytest.FixtureRequest) -> KernelFactory:
    """Run kernels in tests: ``nvfp4_kernel(PATH).verify(problem="96x128x256", families=["pow2_exact"])``."""
    from pytest_nvfp4.plugin.kernels import KernelFactory

    return KernelFactory(request.config.stash[RUN], request.config.stash[DEVICES])


@pytest.fixture(scope="session")
def nvfp4_trace(request: pytest.FixtureRequest) -> TraceFactory:
    """Compile kernels without a device: ``nvfp4_trace(PATH, entry=..., problem=...)`` returns the trace."""
    return TraceFactory(request.config.stash[RUN])


@pytest.fixture
def layout_snapshot(request: pytest.FixtureRequest) -> LayoutSnapshot:
    """Compare a kernel's layouts with the stored snapshot: ``layout_snapshot(trace)`` or ``layout_snapshot(PATH)``."""
    from pytest_nvfp4.plugin.compare_layouts import LayoutSnapshot

    factory: TraceFactory = request.getfixturevalue("nvfp4_trace")
    case = getattr(request.node, "case", None)
    return LayoutSnapshot(
        request.node, request.config.stash[RUN], factory, case=case if isinstance(case, Case) else None
    )


@pytest.fixture
def nvfp4_fact_snapshot(request: pytest.FixtureRequest) -> FactSnapshot:
    """Compare launch or codegen facts with the stored snapshot: ``nvfp4_fact_snapshot(trace, kind="launch")``."""
    from pytest_nvfp4.plugin.compare_facts import FactSnapshot

    return FactSnapshot(request.node, request.config.stash[RUN])


@pytest.fixture
def nvfp4_cost_snapshot(request: pytest.FixtureRequest) -> CostSnapshot:
    """Compare what a simulated call did with the stored snapshot; for check items."""
    from pytest_nvfp4.plugin.compare_cost import CostSnapshot

    return CostSnapshot(request.node, request.config.stash[RUN])
