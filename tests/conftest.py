"""What all tests share: how they are spread over test processes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of a file in one test process: what its fixtures compile and simulate is then done once.

    That is for ``-n`` alone; another ``--dist`` is taken as it is.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)
