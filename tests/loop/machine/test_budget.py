"""The account: a ceiling that nothing exceeds, over restarts, and with stages of many threads at once."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.configuration.config import BudgetSection
from pytest_nvfp4.loop.machine.budget import Budget
from pytest_nvfp4.loop.protocols import BudgetError
from pytest_nvfp4.loop.state import LoopState, Spent, StateFolder
from tests.loop.stubs import FixedClock


@pytest.fixture(autouse=True, scope="module")
def _no_fsync() -> Iterator[None]:
    """Nobody pulls the plug in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


Stage = tuple[int, float, float, str]


def _budget(root: Path, *, iteration: int = 1, **limits: float) -> Budget:
    return Budget(
        BudgetSection.model_validate(limits),
        StateFolder(root),
        LoopState(iteration=iteration, phase="JUDGE"),
        wall_s=0.0,
        clock=FixedClock(),
    )


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.floats(0, 5), st.floats(0, 1), st.sampled_from(["settle", "kill", "fail", "end"])
        ),
        max_size=12,
    )
)
def test_the_ceiling_holds(tmp_path_factory: pytest.TempPathFactory, stages: list[Stage]) -> None:
    root = tmp_path_factory.mktemp("budget")
    budget, really = _budget(root, dollars=10), 0.0
    for number, worst, share, then in stages:
        purse = budget.attempt(f"decide/{number}")
        try:
            purse.reserve(usd=worst)
        except BudgetError:
            assert budget.total().usd + worst > 10
            continue
        really += worst * share  # whatever happens next, this money is gone
        if then == "settle":
            purse.settle(usd=worst * share)
        elif then == "end":
            purse.settle(usd=worst * share)
            budget.record(f"decide/{number}", Spent(usd=worst * share))
        elif then == "kill":
            budget = _budget(root, dollars=10)
        assert really - 1e-6 <= budget.total().usd <= 10 + 1e-6


def test_stages_of_several_threads_fit_together(tmp_path: Path) -> None:
    budget, begun = _budget(tmp_path, gpu_seconds=100), list[int]()
    together = threading.Barrier(8)

    def work(number: int) -> None:
        purse = budget.attempt(f"decide/{number}")
        together.wait()
        try:
            purse.reserve(gpu_s=30)
        except BudgetError:
            return
        begun.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 3
    assert budget.total().gpu_s == 90


def test_another_iteration_has_nothing_reserved(tmp_path: Path) -> None:
    _budget(tmp_path).attempt("decide/1").reserve(usd=3)
    assert _budget(tmp_path).total().usd == 3
    assert _budget(tmp_path, iteration=2).total().usd == 0


@pytest.mark.parametrize(
    "damaged", ["", "{", '{"version": 1, "iteration": 1, "entries": {"decide/1": {"spent": {"usd": -3}}}}']
)
def test_a_damaged_ledger_forgets_no_spending(tmp_path: Path, damaged: str) -> None:
    _budget(tmp_path).attempt("decide/1").reserve(usd=3)
    ledger = StateFolder(tmp_path).ledger
    ledger.write_text(damaged)
    with pytest.raises(DoorError, match=r"ledger\.json is damaged.*--fresh-start") as error:
        _budget(tmp_path)
    assert error.value.source == str(ledger)
    ledger.unlink()
    assert _budget(tmp_path).total().usd == 0


@pytest.mark.parametrize(("interrupted", "refused"), [("", False), ("JUDGE", True)])
def test_a_ledger_counts_until_its_iteration_is_complete(tmp_path: Path, interrupted: str, refused: bool) -> None:
    folder = StateFolder(tmp_path)
    folder.ledger.write_text("{")
    state = LoopState(iteration=1, phase="STOPPED", interrupted=interrupted, spent=Spent(usd=2))
    with pytest.raises(DoorError) if refused else contextlib.nullcontext():
        budget = Budget(BudgetSection(), folder, state, wall_s=0.0, clock=FixedClock())
        assert budget.total().usd == 2


def test_claims_cannot_overflow(tmp_path: Path) -> None:
    budget = _budget(tmp_path, tokens=10)
    for number in range(4):
        budget.record(f"worker/{number}", Spent(usd=1e9, tokens=(1 << 63) - 1))
    assert budget.total().tokens == (1 << 63) - 1
    assert budget.reached().startswith("budget.tokens = 10 is reached")


def test_without_a_dollar_what_costs_nothing_goes_on(tmp_path: Path) -> None:
    budget = _budget(tmp_path, dollars=0)
    assert budget.reached() == ""
    budget.attempt("examine/1").reserve(usd=0)
    with pytest.raises(
        BudgetError, match=r"budget\.dollars = 0 does not suffice: .* may take 0\.01 USD, and 0 USD are left"
    ):
        budget.attempt("examine/1").reserve(usd=0.01)
