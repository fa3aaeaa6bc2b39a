"""The worker of the mode ``dry-run``: a made-up candidate, so that the wiring can be tried without an agent."""

from __future__ import annotations

from pytest_nvfp4.loop.protocols import Task
from pytest_nvfp4.loop.schemas import Candidate, WorkerResult
from pytest_nvfp4.loop.source import source_sha256
from pytest_nvfp4.loop.workplace import Workplaces


class DryRunWorker:
    """Appends a statement without effect to the kernel file; starts nothing.

    Args:
        places: Gives repository and policy.
    """

    def __init__(self, places: Workplaces) -> None:
        self._places = places

    def run(self, task: Task) -> Candidate:
        """Return a made-up candidate. Raises InfrastructureError: git failed."""
        repository, kernel = self._places.repository, self._places.policy.kernel
        source = repository.read(task.parent, kernel)
        data = source.rstrip(b"\n") + b"\n_ = %d  # a dry run of the loop\n" % task.number
        commit, tree = repository.add_candidate(task.number, parent=task.parent, files={kernel: data})
        return Candidate(
            number=task.number,
            iteration=task.iteration,
            slot=task.slot,
            parent=task.parent,
            by="dry-run",
            end="proposed",
            commit=commit,
            tree=tree,
            source_sha256=source_sha256({kernel: data}),
            files=(kernel,),
            result=WorkerResult(
                iteration=task.iteration, kernel_path=kernel, decision="KEEP", summary="a dry run: nothing was tried"
            ),
        )
