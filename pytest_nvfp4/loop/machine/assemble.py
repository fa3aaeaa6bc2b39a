"""Make the parts of a loop from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import Event, LoopConfig
from pytest_nvfp4.loop.judge.judge import ProductJudge
from pytest_nvfp4.loop.machine.context import Parts, write_log
from pytest_nvfp4.loop.machine.dry_run import DryRunJudge, DryRunRepository, DryRunReviewer, DryRunWorker
from pytest_nvfp4.loop.machine.notify import CommandNotifier
from pytest_nvfp4.loop.machine.session import Session
from pytest_nvfp4.loop.memory.memory import CandidateMemory
from pytest_nvfp4.loop.memory.prompts import Prompts
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.work import reviewer, worker
from pytest_nvfp4.loop.work.template import CommandTemplate
from pytest_nvfp4.loop.work.workers import cautions, make_policy, make_reviewer, make_worker, source_at


def session_of(
    config: LoopConfig,
    *,
    root: Path,
    folder: StateFolder,
    until_s: float | None,
    clock: Clock,
    show: Callable[[str], None],
) -> Session:
    """Return what runs a loop.

    Args:
        config: Its configuration.
        root: Root of the repository.
        folder: Directory of state; a dry run has one of its own beside it.
        until_s: Seconds until the loop ends; None for no such time.
        clock: Clocks.
        show: Called with each line of the log.

    Raises:
        ConfigError: The configuration cannot be used.
        InfrastructureError: There is no repository that can be used.
    """
    if config.mode == "dry-run":
        folder = StateFolder(folder.root.with_name(f"{folder.root.name}-dry-run"))
        return Session(
            config, folder, lambda: _dry_run(config, folder, root, show), until_s=until_s, clock=clock, show=show
        )
    repository = GitRepository(
        root, name=config.name, kernel=config.kernel.file, state=folder, manual=config.mode == "manual"
    )
    return Session(
        config,
        folder,
        lambda: _parts(config, folder, repository, clock, show),
        branch_lock=repository.lock,
        set_aside=repository.retire,
        until_s=until_s,
        clock=clock,
        show=show,
    )


def _parts(
    config: LoopConfig, folder: StateFolder, repository: GitRepository, clock: Clock, show: Callable[[str], None]
) -> Parts:
    """Return the parts that the configuration asks for. Raises ConfigError and InfrastructureError."""
    if not folder.state.exists():
        repository.refuse_candidates()
    root, policy = repository.git.top, make_policy(config, repository)
    memory = CandidateMemory(folder, source_of=lambda commit: source_at(repository, policy, commit))
    prompts = Prompts(config, folder, memory, root=root)
    worker = make_worker(config, repository, folder, policy)
    reviewer = make_reviewer(config, repository, folder, prompt=prompts.reviewer_prompt)
    for line in cautions(repository, worker, reviewer):
        show(write_log(folder, clock, f"caution: {line}"))
    return Parts(
        repository=repository,
        worker=worker,
        judge=ProductJudge(config, worktrees=repository, state=folder),
        reviewer=reviewer,
        memory=memory,
        prompts=prompts,
        notify=CommandNotifier(config.notify, root=root, log=lambda line: show(write_log(folder, clock, line))),
        show=show,
    )


def _dry_run(config: LoopConfig, folder: StateFolder, root: Path, show: Callable[[str], None]) -> Parts:
    """Return made-up parts; what the configuration says of the real ones is examined. Raises ConfigError."""
    for section, keys, option in ((config.worker, worker.KEYS, "worker"), (config.reviewer, reviewer.KEYS, "reviewer")):
        if section.command:
            CommandTemplate(section.command, keys=keys, option=f"{option}.command")
    CommandNotifier(config.notify, root=root, log=show)
    memory = CandidateMemory(folder)
    return Parts(
        repository=DryRunRepository(folder),
        worker=DryRunWorker(),
        judge=DryRunJudge(),
        reviewer=DryRunReviewer() if config.reviewer.command else None,
        memory=memory,
        prompts=Prompts(config, folder, memory, root=root),
        notify=_quiet,
        show=show,
    )


def _quiet(event: Event, *, title: str, text: str) -> None:
    """Notify nobody: a dry run starts nothing."""
    del event, title, text
