"""The judge with the product's real commands, on the shipped kernel and candidates that want green."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.loop.config import LoopConfig
from pytest_nvfp4.loop.judge.judge import ProductJudge
from pytest_nvfp4.loop.repository import GitRepository
from pytest_nvfp4.loop.schemas import Candidate, Examination
from pytest_nvfp4.loop.state import StateFolder, write_model
from tests.loop.judge.products import Purse
from tests.loop.repositories import make_repository

KERNEL = Path(__file__).parents[3] / "kernels" / "nvfp4_group_gemm" / "sm100.py"
SETTINGS = """
[[tool.pytest_nvfp4.kernel]]
path = "k.py"
problems = ["128x128x256"]
verify-problems = ["128x128x256"]
simulate-problems = ["128x128x256"]
"""
WRAPPER = """
_honest, _calls = custom_kernel, []
def custom_kernel(data):
    _calls.append(1)
    if {when}:
        return data[2]
    return _honest(data)
"""
GATES = ["compile", "layouts", "coverage", "verify", "cost", "model"]
CHEATS = {
    "it does nothing on the problem of the target": ("data[3][0][0] == 256", "cost"),
    "it does nothing from its second call on": ("len(_calls) > 1", "coverage"),
}
"""Candidates that a model finds fast, the condition of their stub, and the gate that finds it."""


class Loop:
    """A repository with the kernel, and a judge."""

    def __init__(self, root: Path) -> None:
        make_repository(root, {"k.py": KERNEL.read_text(), "pyproject.toml": SETTINGS})
        kernel = {"file": "k.py", "problems": ["256x128x256"]}
        config = LoopConfig.model_validate({"kernel": kernel, "mode": "manual", "judge": {"gates": GATES}})
        self.root, self.state = root, StateFolder(root / ".nvfp4" / "loop")
        self.repository = GitRepository(root, name="l", kernel="k.py", state=self.state)
        self.judge = ProductJudge(config, worktrees=self.repository, state=self.state)
        self.start = self.repository.incumbent()
        self.made = 0

    def examine(self, source: str | None, known: dict[str, int] | None = None) -> tuple[Candidate | None, Examination]:
        """Examine a candidate with this source, or the baseline."""
        commit, candidate, folder = self.start, None, self.state.baseline
        if source is not None:
            self.made += 1
            files: dict[str, bytes | None] = {"k.py": source.encode()}
            commit, tree = self.repository.add_candidate(self.made, parent=self.start, files=files)
            candidate = Candidate(
                number=self.made, iteration=1, parent=self.start, end="proposed", commit=commit, tree=tree
            )
            folder = self.state.candidate(self.made)
        found = self.judge.examine(
            candidate,
            commit=commit,
            parent=self.start,
            known=known or {},
            folder=folder,
            on_gate=lambda _gate: None,
            purse=Purse(),
        )
        return candidate, found


@pytest.mark.slow
def test_the_shipped_kernel_passes_its_copy_is_known_and_cheats_are_red(tmp_path: Path) -> None:
    loop, source = Loop(tmp_path / "repo"), KERNEL.read_text()
    _, baseline = loop.examine(None)
    assert baseline.passed, baseline
    write_model(loop.state.baseline / "examination.json", baseline)
    assert baseline.modelled[0].us > 1
    assert baseline.ptx_sha256 is not None
    assert any(loop.state.baseline.rglob("layouts*.txt")), "the baseline's own layouts are the snapshot"
    assert not (loop.root / "snapshots").exists()

    known = {baseline.ptx_sha256: 0}
    _, copy = loop.examine(f"# a comment moves every line\n{source}", known)
    assert (copy.duplicate_of, [gate.gate for gate in copy.gates]) == (0, ["compile"])

    for why, (when, gate) in CHEATS.items():
        candidate, found = loop.examine(source + WRAPPER.format(when=when), known)
        assert (found.infrastructure, found.duplicate_of) == ("", None), why
        assert (found.passed, found.gates[-1].gate) == (False, gate), (why, found.gates)
        assert candidate is not None
        verdict = loop.judge.decide(
            candidate,
            found,
            against=loop.start,
            incumbent=baseline,
            folder=loop.state.candidate(candidate.number),
            purse=Purse(),
        )
        assert verdict.outcome == "rejected", why
