"""Repositories for tests of the loop, and what in them must not change."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.schemas import Candidate, Verdict, WorkerResult
from pytest_nvfp4.loop.state import StateFolder

KERNEL = "kernels/k.py"
FILES = {
    KERNEL: "STAGES = 1\n",
    "kernels/other.py": "OTHER = 1\n",
    "tests/test_k.py": "def test_k():\n    assert True\n",
    "snapshots/k.txt": "group_gemm_kernel.sA (64,8):(8,1)\n",
    "conftest.py": "",
    "pyproject.toml": "[tool.pytest_nvfp4]\n",
    ".gitignore": ".nvfp4/\nbuild/\n*.log\n",
}
"""The files of a user's repository."""


def user_git(top: Path, *arguments: str, **environ: str) -> str:
    """Run git as the user does, with settings of the repository only, and return what it prints."""
    variables = {"HOME": str(top.parent), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    identity = ("-c", "user.name=user", "-c", "user.email=user@example.org", "-c", "commit.gpgSign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=top, env=variables | environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def make_repository(top: Path, files: dict[str, str] | None = None, *options: str) -> Path:
    """Make a repository with one commit of some files."""
    top.mkdir(parents=True)
    user_git(top, "init", "--quiet", "--initial-branch=main", *options)
    for name, text in (FILES if files is None else files).items():
        place = top / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, newline="")
    user_git(top, "add", "--all")
    user_git(top, "commit", "--quiet", "-m", "first")
    return top


def opened(
    top: Path, *, name: str = "loop", kernel: str = KERNEL, start: Path | None = None, manual: bool = False
) -> GitRepository:
    """Return the loop's repository, whose state lies where it does by default."""
    state = StateFolder(top / ".nvfp4" / "loop")
    return GitRepository(start or top, name=name, kernel=kernel, state=state, manual=manual)


@dataclass(frozen=True)
class Footprint:
    """What a loop must leave as it is: a user's files, index, HEAD, branches, stash and settings."""

    files: dict[str, str]
    repository: dict[str, str]
    references: tuple[str, ...]
    status: str

    @classmethod
    def of(cls, top: Path) -> Footprint:
        """Take it; objects and the loop's own references and state are left out."""
        folder = Path(user_git(top, "rev-parse", "--path-format=absolute", "--git-common-dir"))
        status = user_git(top, "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--show-stash")
        references = user_git(top, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return cls(
            files=_hashes(top, without=(".git", ".nvfp4")),
            repository=_hashes(folder, without=("objects", "refs", "logs/refs", "packed-refs")),
            references=tuple(line for line in references if "nvfp4-loop" not in line),
            status=status,
        )


def _hashes(folder: Path, *, without: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if any(name == each or name.startswith(f"{each}/") for each in without):
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def candidate_of(repository: GitRepository, number: int, text: str, *, words: str = "") -> Candidate:
    """Return a proposed candidate on the incumbent."""
    parent = repository.incumbent()
    commit, tree = repository.add_candidate(number, parent=parent, files={repository.kernel: text.encode()})
    result = WorkerResult(iteration=number, kernel_path=repository.kernel, decision="KEEP", summary=words)
    return Candidate(
        number=number,
        iteration=number,
        parent=parent,
        end="proposed",
        commit=commit,
        tree=tree,
        files=(repository.kernel,),
        result=result if words else None,
    )


def verdict_of(candidate: Candidate, *, artifacts: dict[str, str] | None = None) -> Verdict:
    """Return a verdict that the candidate is faster."""
    return Verdict(
        candidate=candidate.number,
        iteration=candidate.iteration,
        against=candidate.parent,
        outcome="faster",
        reason="modelled geometric mean 20 % lower",
        metric="modelled",
        value=8.0,
        incumbent_value=10.0,
        artifacts=artifacts or {},
    )
