"""The worker and the reviewer that a configuration asks for."""

from __future__ import annotations

from pytest_nvfp4.loop.config import LoopConfig
from pytest_nvfp4.loop.policy import Policy, of_settings
from pytest_nvfp4.loop.protocols import Reviewer, Worker
from pytest_nvfp4.loop.repository import GitRepository
from pytest_nvfp4.loop.reviewer import CommandReviewer, ManualReviewer, Prompt
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.worker import CommandWorker
from pytest_nvfp4.loop.worker_dry import DryRunWorker
from pytest_nvfp4.loop.worker_manual import ManualWorker
from pytest_nvfp4.loop.workplace import Workplaces


def make_policy(config: LoopConfig, repository: GitRepository, *, never: tuple[str, ...] = ()) -> Policy:
    """Return what workers may change.

    Args:
        config: The configuration.
        repository: The loop's repository.
        never: Further files that they may not, such as those that the kernel's settings name.

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
        never=(*never, *snapshots),
        importable=importable,
        files=files,
    )


def make_worker(config: LoopConfig, repository: GitRepository, state: StateFolder, policy: Policy) -> Worker:
    """Return the worker of the configured mode. Raises ConfigError: its command cannot be used."""
    places = Workplaces(repository, policy, state)
    if config.mode == "dry-run":
        return DryRunWorker(places)
    if config.mode == "manual":
        return ManualWorker(places, wait_s=config.limits.wait_s)
    most = int(config.budget.disk_mb * 1e6)
    return CommandWorker(config.worker, places=places, root=repository.git.top, most_bytes=most)


def make_reviewer(
    config: LoopConfig, repository: GitRepository, state: StateFolder, *, prompt: Prompt
) -> Reviewer | None:
    """Return the reviewer of the configured mode; None if there is none. Raises ConfigError: see `make_worker`.

    In the mode ``manual`` there is one if the table ``[reviewer]`` has a command, which is not started.
    """
    if not config.reviewer.command or config.mode == "dry-run":
        return None
    if config.mode == "manual":
        return ManualReviewer(repository, state, prompt=prompt)
    return CommandReviewer(config.reviewer, repository, state, prompt=prompt)
