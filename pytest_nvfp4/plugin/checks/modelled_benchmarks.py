"""Modelled times in pytest-benchmark: a machine of their own, and no measured time beside them.

With ``--benchmark-json``, ``--benchmark-save``, ``--benchmark-autosave`` or ``--benchmark-compare``, a run that models
times and measures none stores them as those of a machine such as ``modelled-b200``, in a folder of this name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.bench.baseline import modelled_baseline
from pytest_nvfp4.bench.mark import EXTRA_KEY, MODELLED_TIMER, mark_item
from pytest_nvfp4.bench.modelled_facts import TimeChange
from pytest_nvfp4.bench.replay import BenchmarkReplay
from pytest_nvfp4.bench.storage import use_machine
from pytest_nvfp4.device.modelled import ModelledCall

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.checks.base import CheckItem


class ModelledBenchmarks:
    """Hooks that turn pytest-benchmark's session into one of a modelled machine; to be registered as a plugin.

    Args:
        config: pytest's configuration, before pytest-benchmark reads it.
        machine_of: Returns the name of the modelled machine of an item; None for an item that models nothing.
    """

    def __init__(self, config: pytest.Config, machine_of: Callable[[pytest.Item], str | None]) -> None:
        self._machine_of = machine_of
        self._machine: str | None = None
        self._reason = "the items of this run are not known here"
        # pytest-benchmark loads what it compares with before there are items: that is done again afterwards.
        self._compare = config.option.benchmark_compare
        config.option.benchmark_compare = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Choose the machine from the items, and load what is compared. Raises pytest.UsageError."""
        benchmarks = getattr(session.config, "_benchmarksession", None)
        if benchmarks is None:
            return
        session.config.option.benchmark_compare = benchmarks.compare = self._compare
        machines = sorted({machine for item in session.items if (machine := self._machine_of(item)) is not None})
        measured = [item.nodeid for item in session.items if self._measures(item)]
        if len(machines) > 1:
            raise pytest.UsageError(
                f"this run models times of {' and '.join(machines)}, and pytest-benchmark stores those of one machine: "
                "select the kernels of one with -k, or name one with --nvfp4-model-device"
            )
        if benchmarks.disabled:
            self._reason = "pytest-benchmark is disabled (--benchmark-disable, or -n)"
        elif measured:
            self._reason = f"this run also measures {measured[0]}; select the modelled ones with -k model"
        elif machines:
            self._machine = machines[0]
            use_machine(benchmarks, machines[0])
        benchmarks.handle_loading()
        if self._machine is not None:
            self._refuse_measured(benchmarks.compared_mapping)

    def _measures(self, item: pytest.Item) -> bool:
        """Return whether an item uses pytest-benchmark's fixture; the checks of kernels measure on a device only."""
        return "benchmark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("nvfp4") is None

    def _refuse_measured(self, compared: Mapping[Any, Mapping[str, Mapping[str, Any]]]) -> None:
        for path, entries in compared.items():
            timers = {str(entry.get("options", {}).get("timer")) for entry in entries.values()}
            if timers - {MODELLED_TIMER}:
                raise pytest.UsageError(
                    f"--benchmark-compare: {path} holds measured times, and modelled times are compared with modelled "
                    f"ones only; name a file of {self._machine}"
                )

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Describe the modelled machine in place of the one that pytest runs on, which decides nothing."""
        if self._machine is not None:
            machine_info.clear()
            machine_info.update(node=self._machine, machine=self._machine)
            machine_info[EXTRA_KEY] = {"is_a_measurement": False}

    def store(self, item: CheckItem, request: pytest.FixtureRequest, call: ModelledCall) -> str | TimeChange:
        """Store a modelled time, and return its change against the baseline, or why there is none.

        Raises:
            BaselineError: The baseline cannot be used.
        """
        if self._machine is None:
            return f"not stored: {self._reason}"
        mark_item(item, timer=MODELLED_TIMER)
        benchmark = request.getfixturevalue("benchmark")
        benchmark.group = self._machine
        BenchmarkReplay(benchmark).replay_modelled(call)
        session = item.config._benchmarksession  # type: ignore[attr-defined]
        if not self._compare:
            return ""
        return modelled_baseline(session.compared_mapping or {}, call, item.nodeid)
