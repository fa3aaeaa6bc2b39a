"""The judge on CPU containers of a remote: a server of the tests' own, with the remote's real client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("modal", reason="modal is not installed: pip install 'pytest-nvfp4[modal]'")
pytest.importorskip("grpclib")

from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import BudgetSection
from pytest_nvfp4.loop.machine.budget import Budget
from pytest_nvfp4.loop.protocols import BudgetError, Purse
from pytest_nvfp4.loop.schemas import Examination
from pytest_nvfp4.loop.state import LoopState
from tests.device.remote.loopback import Fault, Loopback

from .real import KERNEL, Loop

SETTINGS = """
[[tool.pytest_nvfp4.kernel]]
path = "k.py"
problems = ["40x128x512"]
verify-problems = ["40x128x512"]
simulate-problems = ["40x128x512"]
"""
JUDGE = {"gates": ["compile", "verify"], "remote": "modal", "containers": 1, "jobs": 2}
MEASURED = {"target": {"metric": "measured"}, "device": {"name": "local"}}
"""A target for which nothing is simulated but the gates."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Loopback]]:
    """Servers, of which the judge's processes use the last one."""
    with contextlib.ExitStack() as made:

        def start() -> Loopback:
            server = made.enter_context(Loopback(backend="sim"))
            for name, value in (server.environ() | {"NVFP4_CACHE_DIR": str(tmp_path / "cache")}).items():
                monkeypatch.setenv(name, value)
            return server

        yield start


@pytest.mark.slow
def test_candidates_are_judged_side_by_side_on_containers_and_their_cost_counts(
    serve: Callable[[], Loopback], tmp_path: Path
) -> None:
    loop = Loop(tmp_path / "repo", settings=SETTINGS, judge=JUDGE, budget={"dollars": 5}, **MEASURED)
    source = KERNEL.read_text()
    wrong = source.replace("tBgSFB[None, k_tile], tBsSFB", "tBgSFB[None, 0], tBsSFB")
    assert wrong != source
    candidates = [loop.add(f"{source}\nX = 1\n"), loop.add(wrong)]

    def budget(dollars: float) -> Budget:
        state = LoopState(iteration=1, phase="JUDGE")
        return Budget(BudgetSection(dollars=dollars), loop.state, state, wall_s=0.0, clock=Clock())

    def examine(number: int, purse: Purse) -> Examination:
        return loop.examine(candidates[number - 1], purse=purse)

    account = budget(5)
    gone = serve()
    gone.faults.add(Fault("FunctionMap", "close"))
    lost = examine(1, account.attempt("examine/0001"))
    assert gone.count("FunctionMap") > 0
    assert not lost.passed
    assert "the remote modal failed" in lost.infrastructure, lost
    assert [gate.gate for gate in lost.gates] == ["compile"], "no gate is red by it"

    server = serve()
    purses = [account.attempt(f"examine/000{number}") for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        right, red = pool.map(examine, (1, 2), purses)
    assert (right.passed, right.infrastructure) == (True, ""), right
    assert [gate.gate for gate in right.gates] == ["compile", "verify"]
    assert (red.passed, red.infrastructure) == (False, ""), red
    assert (red.gates[-1].gate, red.gates[-1].outcome) == ("verify", "failed"), red
    assert "40x128x512" in red.gates[-1].message
    assert server.count("AppCreate") == server.count("AppClientDisconnect") == 2
    assert min(right.usd, red.usd) > 0
    total = lost.usd + right.usd + red.usd
    assert account.total().usd == pytest.approx(total)

    again = budget(total + 1e-6)  # another process, which reads what was spent
    assert again.total().usd == pytest.approx(total)
    with pytest.raises(BudgetError, match=r"budget\.dollars"):
        again.attempt("examine/0003").reserve(usd=1e-5)
