"""A repository with the shipped kernel, and a judge with the product's real commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.judge import ProductJudge
from pytest_nvfp4.loop.protocols import Purse
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.schemas import Candidate, Examination
from pytest_nvfp4.loop.state import StateFolder
from tests.loop.repositories import make_repository

from . import products

KERNEL = Path(__file__).parents[3] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
SETTINGS = """
[[tool.pytest_nvfp4.kernel]]
path = "k.py"
problems = ["128x128x256"]
verify-problems = ["128x128x256"]
simulate-problems = ["128x128x256"]
"""


class Loop:
    """A loop that is judged and not run.

    Args:
        root: Folder of the repository.
        settings: Its settings.
        sections: The configuration besides the kernel and the mode.
    """

    def __init__(self, root: Path, *, settings: str = SETTINGS, **sections: Any) -> None:
        make_repository(root, {"k.py": KERNEL.read_text(), "pyproject.toml": settings})
        kernel = {"file": "k.py", "problems": ["256x128x256"]}
        self.config = LoopConfig.model_validate({"kernel": kernel, "mode": "manual", **sections})
        self.root, self.state = root, StateFolder(root / ".nvfp4" / "loop")
        self.repository = GitRepository(root, name="l", kernel="k.py", state=self.state)
        self.judge = ProductJudge(self.config, worktrees=self.repository, state=self.state)
        self.start = self.repository.incumbent()
        self.made = 0

    def add(self, source: str) -> Candidate:
        """Add a candidate with this source."""
        self.made += 1
        files: dict[str, bytes | None] = {"k.py": source.encode()}
        commit, tree = self.repository.add_candidate(self.made, parent=self.start, files=files)
        return Candidate(number=self.made, iteration=1, parent=self.start, end="proposed", commit=commit, tree=tree)

    def examine(
        self, candidate: Candidate | None, *, known: Mapping[str, int] | None = None, purse: Purse | None = None
    ) -> Examination:
        """Examine a candidate, or the baseline."""
        commit = self.start if candidate is None or candidate.commit is None else candidate.commit
        return self.judge.examine(
            candidate,
            commit=commit,
            parent=self.start,
            known=known or {},
            folder=self.state.baseline if candidate is None else self.state.candidate(candidate.number),
            on_gate=lambda _gate: None,
            purse=purse or products.Purse(),
        )
