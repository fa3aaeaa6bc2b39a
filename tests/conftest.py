"""What all tests share: how they are spread over test processes, that they may be interrupted, and take their time."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pytest_nvfp4.isolation.fork_server.pool import SWITCH_VARIABLE

# Helpers that assert: pytest explains their failures as it does those of tests. Kernel sources are left as they are.
pytest.register_assert_rewrite(
    *(
        f"tests.{folder}"
        for folder in ("driver", "host", "kernels", "layout", "numerics", "plugin", "proof", "silicon")
    ),
    *(f"tests.sim.{folder}" for folder in ("alu", "memory", "races", "run", "sync", "tcgen05", "tma", "wgmma")),
)

_APART = frozenset({"tests/sim/mutants/source/test_promise.py"})
"""Files whose tests share nothing, and which would keep one process busy when all others have ended."""

# Hypothesis without a clock: a machine that is slow, or does other work, must not fail a test. On top of the profile in
# force, so that what CI sets (no randomness) stays; --hypothesis-profile comes later, and stays too.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-part",
        metavar="I/N",
        help="of the tests marked slow, run every Nth one, from number I modulo N on; successive I run them all",
    )


@pytest.hookimpl(trylast=True)  # of what -m and -k have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _choose(config, items)
    # A long test that starts last would keep one test process busy when all others have ended.
    long = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in long)


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the part of the slow tests that ``--slow-part`` names."""
    if (part := config.getoption("--slow-part")) is None:
        return
    try:
        index, count = map(int, part.split("/"))
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        chosen = set(slow[index % count :: count])
    except (ValueError, ZeroDivisionError):
        raise pytest.UsageError(f"--slow-part: {part!r} is not I/N, such as 2/3") from None
    config.hook.pytest_deselected(items=[item for item in slow if item not in chosen])
    items[:] = [item for item in items if item in chosen or item.get_closest_marker("slow") is None]


def pytest_configure(config: pytest.Config) -> None:
    """Shells start background jobs with Ctrl-C ignored, nohup with SIGHUP; so would everything that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Device tables of whoever runs the tests are none of the shipped ones.
    os.environ["NVFP4_DATA_DIR"] = str(Path(tempfile.gettempdir()) / "nvfp4-tests-without-data")
    # Hundreds of tests start commands, each of which would import torch and the DSL for several seconds.
    if os.environ.get(SWITCH_VARIABLE) != "0":
        folder = tempfile.mkdtemp(prefix="nvfp4-servers-")
        os.environ[SWITCH_VARIABLE] = f"{folder}:{os.getpid()}"
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One test process more than there are cores: a third of their time, tests wait for processes of their own."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of a file in one test process: what its fixtures compile and simulate is then done once.

    The tests of ``_APART`` go to any process. That is for ``-n`` alone; another ``--dist`` is taken as it is.
    """
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False  # keep the order of pytest_collection_modifyitems
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return nodeid if file in _APART else file

    return Scheduling(config, log)
