"""Jobs that are asked for at once, in pieces that become final together.

A result is final once the process that made it has ended, that of a comparison once the last of its blocks is done. A
remote answers a batch as a whole, and loses it as a whole with the machine that it runs on (Modal runs a call whose
container was preempted once more, from its beginning). So a batch is no more than what becomes final together: whatever
was final before a machine is lost has come, and is kept.
"""

from __future__ import annotations

import uuid

from pytest_nvfp4.device.batch import can_batch
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.device.remote.interleave import in_turn


def pieces(batch: Batch) -> list[Batch]:
    """A batch in as many batches as it can be cut into: jobs that share a process, or are compared, stay together.

    Args:
        batch: The batch.

    Returns:
        Batches with ids of their own, in the order of their first jobs; one that cannot be cut is returned as it is.
    """
    found: list[list[int]] = []
    for index, job in enumerate(batch.jobs):
        bound = [piece for piece in found if any(_bound(batch.jobs[other], job, batch) for other in piece)]
        found = [piece for piece in found if piece not in bound]
        found.append(sorted([index, *(other for piece in bound for other in piece)]))
    if len(found) == 1:
        return [batch]
    return [
        batch.model_copy(update={"id": uuid.uuid4().hex, "jobs": tuple(batch.jobs[index] for index in piece)})
        for piece in sorted(found)
    ]


def _bound(one: Job, other: Job, batch: Batch) -> bool:
    return can_batch(one, other) or in_turn(one, other, batch)
