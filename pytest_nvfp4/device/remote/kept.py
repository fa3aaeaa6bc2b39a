"""Results of remotes on disk, written as they arrive: what was paid for once is not paid for again.

An entry is one job's result on one kind of device. It is used again only where the user asks for that (``--lf``,
``--nvfp4-resume``), and only if kernel, case, way of measuring, remote, GPU and this package's own code are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.code_hash import code_hash
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Answer, Batch, Place, RemoteError
from pytest_nvfp4.device.remote.interleave import in_turn
from pytest_nvfp4.device.remote.wire import pack_answer, unpack_answer
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.toolchain.cache import content_key

_SETTLED = frozenset({"passed", "failed", "error", "cheated"})
"""What the kernel did. Time-outs, crashes and missing devices may be the remote's doing, and are tried again."""
_PARTS = (
    "problem.py",
    "numerics",
    "isolation",
    "toolchain/worker",
    "device/worker",
    "device/assemble.py",
    "device/job.py",
    "device/rotation.py",
    "device/batch.py",
)
"""What decides what a job's answer is; how it is judged is not among it."""
_MOST_BYTES = 1 << 30
Draws = tuple[int, int]
"""``Job.order_seed`` and ``Job.row_key``."""
_MOST_AGE_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Recalled:
    """A result of an earlier session: of which job (with the draws that it was run with), and where that ran."""

    job: Job
    result: Result
    place: Place


class KeptAnswers:
    """The kept results of one remote and GPU.

    Args:
        root: The cache's folder.
        remote: Name of the remote, with what its results depend on (target, GPU).
    """

    def __init__(self, root: Path, *, remote: str) -> None:
        self._root = root / "remote"
        self._remote = remote

    @cached_property
    def _code(self) -> str:
        return code_hash(_PARTS)

    def key(self, job: Job, batch: Batch) -> str:
        """A name for what a job asks: its id, its deadline and what was drawn for it do not matter (unless the batch
        says so), and others of a batch do only where their blocks run in turn with its own.
        """
        return content_key({"remote": self._remote, "code": self._code, **question(job, batch)})

    def _path(self, job: Job, batch: Batch) -> Path:
        key = self.key(job, batch)
        return self._root / key[:2] / f"{key}.json"

    def get(self, batch: Batch) -> dict[int, Recalled]:
        """What is known of a batch, by the places of its jobs in it.

        Of jobs that are compared all are known or none: what is measured anew is so beside what it is compared with.
        """
        found = {}
        for index, job in enumerate(batch.jobs):
            if (read := self._read(self._path(job, batch))) is not None:
                draws, answer = read
                result = answer.results[0].model_copy(update={"job": job.id})
                found[index] = Recalled(with_draws(job, draws), result, answer.place)
        unknown = [job for index, job in enumerate(batch.jobs) if index not in found]
        return {
            index: one
            for index, one in found.items()
            if not any(in_turn(batch.jobs[index], other, batch) for other in unknown)
        }

    @staticmethod
    def _read(path: Path) -> tuple[Draws, Answer] | None:
        try:
            if time.time() - path.stat().st_mtime > _MOST_AGE_S:
                return None
            drawn, _, text = path.read_text(encoding="utf-8").partition("\n")
            seed, key = map(int, drawn.split())
            answer = unpack_answer(text)
            return ((seed, key), answer) if len(answer.results) == 1 else None
        except (OSError, ValueError, RemoteError):
            return None

    def add(self, batch: Batch, answer: Answer) -> None:
        """Keep the results of a batch. A full or read-only disk is no reason to fail."""
        for job, result in zip(batch.jobs, answer.results, strict=False):
            if result.status in _SETTLED:
                one = Answer(batch=batch.id, results=(result,), place=answer.place)
                with contextlib.suppress(OSError):
                    drawn = " ".join(map(str, draws_of(job)))
                    self._write(self._path(job, batch), f"{drawn}\n{pack_answer(one)}")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

    def prune(self) -> None:
        """Forget the oldest entries beyond a bound on their bytes, and those that are too old to be used."""
        with contextlib.suppress(OSError):
            entries = sorted(
                ((path.stat().st_mtime, path.stat().st_size, path) for path in self._root.glob("??/*.json")),
                reverse=True,
            )
            held, now = 0, time.time()
            for written, size, path in entries:
                held += size
                if held > _MOST_BYTES or now - written > _MOST_AGE_S:
                    path.unlink(missing_ok=True)


def draws_of(job: Job) -> Draws:
    """What was drawn for a job, so that a kernel cannot know it."""
    return job.order_seed, job.row_key


def with_draws(job: Job, draws: Draws) -> Job:
    """The job with other draws."""
    return job.model_copy(update={"order_seed": draws[0], "row_key": draws[1]})


def question(job: Job, batch: Batch | None = None) -> dict[str, Any]:
    """What a job asks, without what does not change the answer."""
    alone = job.model_dump(mode="json", exclude={"id", "order_seed", "row_key", "deadline_s", "memory_bytes"})
    if job.kernel is not None:
        alone["kernel"] = [job.kernel.sha256, job.kernel.main, job.kernel.arch, list(job.kernel.compile_options)]
    asked: dict[str, Any] = {"job": alone}
    if batch is not None:
        asked["capability"] = batch.capability
        if batch.exact:
            asked["draws"] = draws_of(job)
        if batch.blocks > 1 and job.action == "benchmark":
            rivals = [other for other in batch.jobs if other is not job and in_turn(job, other, batch)]
            asked["with"] = sorted(json.dumps(question(other)) for other in rivals)
            asked["blocks"] = batch.blocks
    return asked
