"""What the tests of proofs share."""

import sys
from collections.abc import Sequence

import pytest

from pytest_nvfp4.layout.listing import Record

from .shipped import shipped


@pytest.fixture
def no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3 cannot be imported."""
    monkeypatch.setitem(sys.modules, "z3", None)


@pytest.fixture(scope="module")
def records() -> Sequence[Record]:
    """The layouts of the repository's kernel."""
    return shipped()
