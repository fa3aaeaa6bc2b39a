"""Counters of calls in pytest-benchmark's files, beside the times of the run and under names of their own.

With ``--benchmark-json``, ``--benchmark-save`` or ``--benchmark-autosave`` the files have a key ``nvfp4_costs`` beside
the list of benchmarks: a counter is no time, and no statistics are made of it. A run without any time stores its
counters all the same, as those of the machine ``counted``, also with pytest-xdist, under which nothing is timed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_nvfp4.bench.cost import as_number
from pytest_nvfp4.bench.mark import EXTRA_KEY
from pytest_nvfp4.bench.storage import use_machine
from pytest_nvfp4.plugin.compare_facts import COST_ORIGIN, COST_PROPERTY

COSTS_KEY = "nvfp4_costs"
"""Key of the counters in pytest-benchmark's JSON: node id -> origin and counters."""
MACHINE = "counted"
"""Machine of files that hold counters and no times."""


class _NoTime:
    """An entry of pytest-benchmark's session that it takes for a failed benchmark, so that it writes its files."""

    has_error = True

    def __bool__(self) -> bool:
        return False


class CountedCosts:
    """Hooks that store the counters of a run; to be registered as a plugin."""

    def __init__(self) -> None:
        self._costs: dict[str, dict[str, Any]] = {}
        self._alone = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the counters of an item, of every test process."""
        if report.when != "call":
            return
        found = {name: str(value) for name, value in report.user_properties}
        counters = {
            name.removeprefix(COST_PROPERTY): as_number(value)
            for name, value in found.items()
            if name.startswith(COST_PROPERTY)
        }
        if counters:
            origin = {
                name.removeprefix(COST_ORIGIN): value for name, value in found.items() if name.startswith(COST_ORIGIN)
            }
            self._costs[report.nodeid] = {**origin, "is_a_time": False, "counters": counters}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Let pytest-benchmark write its files for counters alone; its own hook writes them before it yields."""
        benchmarks = getattr(session.config, "_benchmarksession", None)
        if benchmarks is not None and self._costs and not benchmarks.benchmarks:
            self._alone = True
            benchmarks.benchmarks.append(_NoTime())
            use_machine(benchmarks, MACHINE)
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Name no machine for counters alone, because none decides about them."""
        if self._alone:
            machine_info.clear()
            machine_info.update(node=MACHINE, machine=MACHINE)
            machine_info[EXTRA_KEY] = {"is_a_measurement": False}

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Add the counters."""
        if self._costs:
            output_json[COSTS_KEY] = dict(sorted(self._costs.items()))
