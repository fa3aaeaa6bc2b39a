"""What the tests of proofs share."""

import sys

import pytest


@pytest.fixture
def no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3 cannot be imported."""
    monkeypatch.setitem(sys.modules, "z3", None)
