"""The worker and the reviewer that a configuration asks for."""

from __future__ import annotations

from typing import Final

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.memory.source import source_sha256
from pytest_nvfp4.loop.protocols import Reviewer, Worker
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.work.policy import Policy, of_settings
from pytest_nvfp4.loop.work.reviewer import CommandReviewer, ManualReviewer, Prompt
from pytest_nvfp4.loop.work.worker import CommandWorker
from pytest_nvfp4.loop.work.worker_manual import ManualWorker
from pytest_nvfp4.loop.work.workplace import Workplaces

_MOST_NAMES: Final = 5


def make_policy(config: LoopConfig, repository: GitRepository) -> Policy:
    """Return what workers may change.

    Raises:
        ConfigError: A pattern would allow what is never allowed.
        GitError: The branch cannot be read or made.
    """
    commit = repository.incumbent()
    files = repository.files(commit)
    pyproject = repository.read(commit, "pyproject.toml") if "pyproject.toml" in files else b""
    snapshots, importable = of_settings(pyproject)
    return Policy(
        repository.kernel,
        config.policy.may_change,
        never=snapshots,
        importable=importable,
        files=files,
    )


def source_at(repository: GitRepository, policy: Policy, commit: str) -> str:
    """Return the hash of all files of a commit that a worker may change, as candidates have it. Raises GitError."""
    return source_sha256(
        {path: repository.read(commit, path) for path in repository.files(commit) if policy.allows(path)}
    )


def make_worker(config: LoopConfig, repository: GitRepository, state: StateFolder, policy: Policy) -> Worker:
    """Return the worker of the mode ``command`` or ``manual``. Raises ConfigError: its command cannot be used."""
    places = Workplaces(repository, policy, state)
    if config.mode == "manual":
        return ManualWorker(places)
    most = int(config.budget.disk_mb * 1e6)
    return CommandWorker(config.worker, places=places, root=repository.git.top, most_bytes=most)


def make_reviewer(
    config: LoopConfig, repository: GitRepository, state: StateFolder, *, prompt: Prompt
) -> Reviewer | None:
    """Return the reviewer of the mode ``command`` or ``manual``; None if there is none. Raises ConfigError.

    In the mode ``manual`` there is one if the table ``[reviewer]`` has a command, which is not started.
    """
    if not config.reviewer.command:
        return None
    if config.mode == "manual":
        return ManualReviewer(repository, state, prompt=prompt)
    return CommandReviewer(config.reviewer, repository, state, prompt=prompt)


def cautions(repository: GitRepository, worker: Worker, reviewer: Reviewer | None) -> list[str]:
    """Return what the user should know before the loop runs, a line each. Raises GitError."""
    lines = []
    if changed := repository.uncommitted():
        names = ", ".join(changed[:_MOST_NAMES]) + (", ..." if len(changed) > _MOST_NAMES else "")
        lines.append(f"the loop sees what is committed, and not the changes of {names}")
    for who, runner in (("worker", worker), ("reviewer", reviewer)):
        if isinstance(runner, CommandWorker | CommandReviewer):
            lines += [f"the {who} is not confined completely: {line}" for line in runner.command.lost()]
    return lines
