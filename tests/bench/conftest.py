from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _not_a_test_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-benchmark measures nothing in xdist's test processes, which it knows by this variable.

    The runs that these tests start are runs of their own, also where the tests themselves are shared out by xdist.
    """
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
