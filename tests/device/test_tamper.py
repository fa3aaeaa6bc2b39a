"""Which sources name the test harness: regions are the only part of it that a kernel may import."""

from __future__ import annotations

import pytest

from pytest_nvfp4.device.worker.tamper import names_harness


@pytest.mark.parametrize(
    "line",
    [
        "from pytest_nvfp4.profiler import region",
        "    from pytest_nvfp4.profiler import region, region_start as begin,region_stop, region_mark  # times\r",
    ],
)
def test_regions_may_be_imported(line: str) -> None:
    assert names_harness(f"try:\n{line}\nexcept ImportError:\n    pass\n".encode()) is None


@pytest.mark.parametrize(
    "line",
    [
        "import pytest_nvfp4",
        "import pytest_nvfp4.profiler",
        "from pytest_nvfp4 import profiler",
        "from pytest_nvfp4.profiler import session",
        "from pytest_nvfp4.profiler import region, session",
        "from pytest_nvfp4.profiler import region; import pytest_nvfp4.numerics",
        "from pytest_nvfp4.profiler import region as a, b",
        "from pytest_nvfp4.profiler.emit import region",
        "from pytest_nvfp4.profiler import *",
        "x = 1; from pytest_nvfp4.profiler import region",
        "import _pytest",
    ],
)
def test_nothing_else_may_be_named(line: str) -> None:
    assert names_harness(f"{line}\n".encode()) in ("pytest_nvfp4", "_pytest")
