"""The worker and the reviewer that a configuration asks for."""

from __future__ import annotations

import os

from pytest_nvfp4.loop.config import LoopConfig
from pytest_nvfp4.loop.errors import ConfigError
from pytest_nvfp4.loop.policy import Policy, of_settings
from pytest_nvfp4.loop.protocols import Reviewer, Worker
from pytest_nvfp4.loop.repository import GitRepository
from pytest_nvfp4.loop.reviewer import CommandReviewer, ManualReviewer, Prompt
from pytest_nvfp4.loop.source import source_sha256
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.worker import CommandWorker
from pytest_nvfp4.loop.worker_manual import ManualWorker
from pytest_nvfp4.loop.workplace import Workplaces
from pytest_nvfp4.settings import SettingsError, find_root
from pytest_nvfp4.settings import load as load_settings


def make_policy(config: LoopConfig, repository: GitRepository) -> Policy:
    """Return what workers may change.

    Raises:
        ConfigError: A pattern would allow what is never allowed, or the kernel's file holds what checks it.
        GitError: The branch cannot be read or made.
    """
    commit = repository.incumbent()
    files = repository.files(commit)
    pyproject = repository.read(commit, "pyproject.toml") if "pyproject.toml" in files else b""
    snapshots, importable = of_settings(pyproject)
    return Policy(
        repository.kernel,
        config.policy.may_change,
        never=(*_named_by_settings(repository), *snapshots),
        importable=importable,
        files=files,
    )


def _named_by_settings(repository: GitRepository) -> list[str]:
    """Return the files of the functions that compile and exercise a kernel, beside its own. Raises ConfigError."""
    path = repository.git.top / repository.kernel
    named = []
    try:
        settings = load_settings(find_root(path))
        for each in settings.for_kernel(path):
            for key, text in (("entry", each.entry), ("exercise", each.exercise)):
                if text is None:
                    continue
                file = settings.root / text.partition("::")[0]
                if file.resolve() != path.resolve():
                    named.append(os.path.relpath(file, repository.git.top))
                elif key == "exercise":
                    raise ConfigError(
                        [
                            f"{settings.file}: exercise = {text!r} of {repository.kernel} lies in that very file, "
                            "where a worker could change what checks it; move the function to another file"
                        ]
                    )
    except SettingsError as error:
        raise ConfigError([str(error)]) from None
    return named


def source_at(repository: GitRepository, policy: Policy, commit: str) -> str:
    """Return the hash of all files of a commit that a worker may change, as candidates have it. Raises GitError."""
    return source_sha256(
        {path: repository.read(commit, path) for path in repository.files(commit) if policy.allows(path)}
    )


def make_worker(config: LoopConfig, repository: GitRepository, state: StateFolder, policy: Policy) -> Worker:
    """Return the worker of the mode ``command`` or ``manual``. Raises ConfigError: its command cannot be used."""
    places = Workplaces(repository, policy, state)
    if config.mode == "manual":
        return ManualWorker(places, wait_s=config.limits.wait_s)
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
