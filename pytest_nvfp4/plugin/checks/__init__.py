"""The built-in checks. Each is a test function that gets its kernel from its item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.plugin.checks.benchmark import benchmark
from pytest_nvfp4.plugin.checks.codegen import codegen
from pytest_nvfp4.plugin.checks.compiles import compiles
from pytest_nvfp4.plugin.checks.cost import cost
from pytest_nvfp4.plugin.checks.coverage import coverage
from pytest_nvfp4.plugin.checks.launch import launch
from pytest_nvfp4.plugin.checks.layouts import layouts
from pytest_nvfp4.plugin.checks.races import races
from pytest_nvfp4.plugin.checks.search import search
from pytest_nvfp4.plugin.checks.tmem import tmem
from pytest_nvfp4.plugin.checks.verify import verify
from pytest_nvfp4.plugin.kernel import COMPILE
from pytest_nvfp4.plugin.racing import RACES as RACES_NAME
from pytest_nvfp4.plugin.searching import SEARCH
from pytest_nvfp4.plugin.simulating import COST, COVERAGE


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name in node ids, and the test function that makes it."""

    name: str
    function: Callable[..., Any]


CHECKS: tuple[Check, ...] = (
    Check(COMPILE, compiles),
    Check("layouts", layouts),
    Check("launch", launch),
    Check("codegen", codegen),
)
"""The checks of a kernel file, in the order they run."""

TMEM = Check("tmem", tmem)
"""The check of what a kernel allocates in TMEM, for kernels whose file speaks of it."""

VERIFY = Check("verify", verify)
"""The check that runs a kernel on a device and judges its results."""

SIMULATED = (Check(COVERAGE, coverage), Check(COST, cost))
"""The checks of what a kernel does in the simulator, in the order they run."""

RACES = Check(RACES_NAME, races)
"""The check of a kernel's synchronisation, in the simulator."""

SEARCHED = Check(SEARCH, search)
"""The check that searches for a problem that a kernel gets wrong."""

BENCHMARK = Check("benchmark", benchmark)
"""The check that times a kernel on a device."""
