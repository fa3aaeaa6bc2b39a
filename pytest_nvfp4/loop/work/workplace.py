"""The place where one worker makes one candidate, and what the harness makes of what it finds there afterwards.

A worker gets a checkout of the incumbent (``tree``), a folder for what it reports (``outbox``), and a file with its
prompt. The harness opens both folders before the worker starts, and reads them when all its processes have ended. It
runs no program in the checkout then, and believes nothing in it but the content of files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.loop.memory.source import source_sha256
from pytest_nvfp4.loop.protocols import InfrastructureError, Task
from pytest_nvfp4.loop.repository.checkout import check_out, remove
from pytest_nvfp4.loop.repository.repository import GitRepository, RefusedPathError
from pytest_nvfp4.loop.schemas import Candidate, WorkerEnd, WorkerProgress, WorkerResult
from pytest_nvfp4.loop.state import StateFolder, write_model
from pytest_nvfp4.loop.work import policy as policies
from pytest_nvfp4.loop.work import tree
from pytest_nvfp4.loop.work.outbox import Outbox
from pytest_nvfp4.loop.work.policy import Changes, Policy
from pytest_nvfp4.loop.work.tree import Known, TreeError
from pytest_nvfp4.text import clip, visible
from pytest_nvfp4.writing import write_whole

_MOST_TRACKED_BYTES: Final = 1 << 40
_MOST_TEXT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Workplace:
    """An open workplace.

    Attributes:
        task: What the worker is to do.
        tree: The checkout.
        outbox: The folder for what it reports.
        box: Folder for its home directory and temporary files.
        prompt: File with its prompt, which it may not write.
        before: The files of the checkout before it ran.
        descriptor: Descriptor of the checkout.
        reports: The open outbox.
    """

    task: Task
    tree: Path
    outbox: Path
    box: Path
    prompt: Path
    before: Mapping[str, Known]
    descriptor: int
    reports: Outbox

    def mirror_progress(self) -> None:
        """Copy what the worker reports about its progress to the candidate's folder; what is no report is left out."""
        with contextlib.suppress(DoorError):
            if (progress := self.reports.read("worker_progress.json", WorkerProgress)) is not None:
                write_model(self.task.folder / "worker_progress.json", progress)

    def result(self) -> WorkerResult | None:
        """Return the worker's result; None if it left none. Raises DoorError."""
        result = self.reports.read("worker_result.json", WorkerResult)
        if result is not None and result.iteration != self.task.iteration:
            raise DoorError("worker_result.json", f"belongs to iteration {result.iteration}, not {self.task.iteration}")
        return result


class Workplaces:
    """Makes workplaces, and candidates of what workers leave there.

    Args:
        repository: The loop's repository.
        policy: What a worker may change.
        state: The directory of state.
    """

    def __init__(self, repository: GitRepository, policy: Policy, state: StateFolder) -> None:
        self.repository = repository
        self.policy = policy
        self._state = state

    def closed(self) -> list[Path]:
        """Return the folders of which a worker may write nothing: the user's checkout, repository, and the state."""
        return [self.repository.git.top, self.repository.git.common, self._state.root]

    @contextlib.contextmanager
    def opened(self, task: Task, *, keep: bool = False) -> Iterator[Workplace]:
        """Make a workplace for the length of a ``with`` block; what an earlier one has left is removed first.

        Args:
            task: What the worker is to do.
            keep: Go on with a workplace that an interrupted loop has left, if it is for the same parent; and leave it
                if the block raises.

        Raises:
            InfrastructureError, OSError: It cannot be made.
        """
        place = self._state.work(task.number)
        marker = place / "parent"
        try:
            before = self._prepare(task, place, marker, keep=keep)
            write_whole(place / "prompt.txt", task.prompt)
            descriptor = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except TreeError as error:
            raise InfrastructureError(f"the worktree {place / 'tree'} cannot be made: {error}") from error
        reports = None
        try:
            with self.repository.in_use(place):
                reports = Outbox(place / "outbox")
                yield Workplace(
                    task=task,
                    tree=place / "tree",
                    outbox=place / "outbox",
                    box=place / "box",
                    prompt=place / "prompt.txt",
                    before=before,
                    descriptor=descriptor,
                    reports=reports,
                )
        except BaseException:
            if not keep:
                remove(place)
            raise
        finally:
            os.close(descriptor)
            if reports is not None:
                reports.close()
        remove(place)

    def candidate(
        self,
        place: Workplace,
        *,
        by: str,
        failure: str | None,
        attempts: int,
        wall_s: float,
        problems: tuple[str, ...] = (),
    ) -> Candidate:
        """Return what a worker has left, as a candidate, and copy its reports to the candidate's folder.

        Args:
            place: The workplace; no process of the worker runs any more.
            by: Who worked.
            failure: How the worker failed, as a sentence; None if it did not. What it has changed counts all the same.
            attempts: Times that it was started.
            wall_s: Seconds that it ran.
            problems: What went wrong before.

        Raises:
            InfrastructureError, OSError: The candidate cannot be stored.
        """
        task = place.task
        found = [*problems, *([failure] if failure else [])]
        place.mirror_progress()
        result = None
        try:
            result = place.result()
            if result is not None:
                write_model(task.folder / "worker_result.json", result)
        except DoorError as error:
            found.append(str(error))
        changed = self._changes(place)
        commit = stored = None
        if not changed.violations and changed.files and (result is None or result.decision == "KEEP"):
            try:
                commit, stored = self.repository.add_candidate(task.number, parent=task.parent, files=changed.files)
            except RefusedPathError as error:
                changed = replace(changed, violations=(str(error),))
            if commit and stored == self.repository.tree_of(task.parent):  # line ends alone, which git does not store
                commit = stored = None
        return Candidate(
            number=task.number,
            iteration=task.iteration,
            slot=task.slot,
            parent=task.parent,
            by=clip(visible(by), 200),
            end=_end(changed, result, commit, failure),
            commit=commit,
            tree=stored,
            source_sha256=source_sha256(changed.allowed) if commit else None,
            files=tuple(sorted(changed.files)) if commit else (),
            violations=changed.violations,
            problems=tuple(clip(visible(text, multiline=True), _MOST_TEXT - 100) for text in found),
            result=result,
            attempts=attempts,
            wall_s=wall_s,
        )

    def _prepare(self, task: Task, place: Path, marker: Path, *, keep: bool) -> dict[str, Known]:
        """Make the folders of a workplace, and return the files that its checkout has in the beginning."""
        if keep and (place / "tree").is_dir() and marker.is_file() and marker.read_text("utf-8") == task.parent:
            with self.repository.worktree(task.parent, place / "before") as fresh:
                return _taken(fresh)
        remove(place)
        check_out(self.repository.git, task.parent, place / "tree")
        before = _taken(place / "tree")
        write_whole(marker, task.parent)
        return before

    def _changes(self, place: Workplace) -> Changes:
        parent = place.task.parent
        try:
            return policies.changes(
                self.policy,
                place.before,
                place.descriptor,
                ignored=lambda paths: self.repository.ignored(parent, paths),
            )
        except OSError as error:
            return Changes({}, {}, (f"the worktree cannot be read: {error.strerror}",))


def _end(changed: Changes, result: WorkerResult | None, commit: str | None, failure: str | None) -> WorkerEnd:
    if changed.violations:
        return "violation"
    if result is not None and result.decision == "REVERT":
        return "withdrawn"
    if commit is not None:
        return "proposed"
    return "failed" if failure else "unchanged"


def _taken(folder: Path) -> dict[str, Known]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tree.take(descriptor, most=policies.MOST_ENTRIES, most_bytes=_MOST_TRACKED_BYTES)
    finally:
        os.close(descriptor)
