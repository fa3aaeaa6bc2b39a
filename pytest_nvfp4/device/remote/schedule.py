"""Order of the work of a batch: what shares a batch, what shares a process, and interleaved blocks of benchmarks.

The clock and temperature of a GPU drift over minutes, so two benchmarks that run one after the other see different
clocks. Alternating blocks (A B, B A, A B, ...) see the same clocks to first order: a linear drift cancels.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.device.answer import CALL_STRIDE
from pytest_nvfp4.device.batch import can_batch
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.device.result import Measurement, Result

_MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """A job of a batch, or one block of it; ``index`` is the position of the job in the batch."""

    index: int
    block: int
    job: Job


def split_batch(batch: Batch) -> list[Batch]:
    """Split a batch as far as possible: jobs that share a process, or are compared, stay together.

    A remote returns a batch as a whole and loses it as a whole with its machine (Modal reruns a call whose container
    was preempted from the beginning). A result is final when its process has ended, and that of a comparison when its
    last block is done. Batches of what becomes final together therefore lose no final result with a machine.

    Returns:
        Batches with new identifiers in the order of their first jobs; the batch itself if it cannot be split.
    """
    groups: list[list[int]] = []
    for index, job in enumerate(batch.jobs):
        bound = [group for group in groups if any(_inseparable(batch.jobs[other], job, batch) for other in group)]
        groups = [group for group in groups if group not in bound]
        groups.append(sorted([index, *(other for group in bound for other in group)]))
    if len(groups) == 1:
        return [batch]
    return [
        batch.model_copy(update={"id": uuid.uuid4().hex, "jobs": tuple(batch.jobs[index] for index in group)})
        for group in sorted(groups)
    ]


def _inseparable(first: Job, second: Job, batch: Batch) -> bool:
    return can_batch(first, second) or compared(first, second, batch)


def compared(first: Job, second: Job, batch: Batch) -> bool:
    """Return whether two jobs of a batch are compared: benchmarks of the same cases, whose blocks alternate."""
    return batch.blocks > 1 and first.action == second.action == "benchmark" and first.cases == second.cases


def steps(batch: Batch) -> list[Step]:
    """Return the steps of a batch in order.

    Jobs other than benchmarks run once, before the benchmarks. A benchmark has at most one block per three rounds.
    """
    whole = [Step(index, 0, job) for index, job in enumerate(batch.jobs) if job.action != "benchmark"]
    cut = {index: _blocks(job, batch.blocks) for index, job in enumerate(batch.jobs) if job.action == "benchmark"}
    alternating = []
    for block in range(max((len(blocks) for blocks in cut.values()), default=0)):
        turn = [Step(index, block, blocks[block]) for index, blocks in cut.items() if block < len(blocks)]
        alternating += turn if block % 2 == 0 else turn[::-1]
    return whole + alternating


def group_steps(steps: Sequence[Step]) -> list[list[Step]]:
    """Group consecutive steps that may share a process (see `device.batch`); the order is unchanged."""
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1][-1] if groups else None
        if last is not None and last.block == step.block and can_batch(groups[-1][0].job, step.job):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def block_rounds(rounds: int, blocks: int) -> list[int]:
    """Return the rounds of each block of a benchmark: at least three, so that there may be fewer blocks."""
    count = max(1, min(blocks, rounds // _MIN_ROUNDS))
    each, rest = divmod(rounds, count)
    return [each + (block < rest) for block in range(count)]


def _blocks(job: Job, blocks: int) -> list[Job]:
    parts = block_rounds(job.timing.rounds, blocks)
    if len(parts) == 1:
        return [job]
    draw = random.Random(job.order_seed)
    return [
        job.model_copy(
            update={
                "timing": job.timing.model_copy(
                    update={"rounds": rounds, "counted": job.timing.counted if block == len(parts) - 1 else 0}
                ),
                "order_seed": draw.getrandbits(32),
            }
        )
        for block, rounds in enumerate(parts)
    ]


def merge_results(parts: Sequence[Result]) -> Result:
    """Merge the results of the blocks of a job; return the first result that did not pass, if any."""
    failed = next((part for part in parts if part.status != "passed"), None)
    if failed is not None or len(parts) == 1:
        return failed or parts[0]
    cases = sorted({measurement.case for measurement in parts[0].measurements})
    return parts[0].model_copy(
        update={
            "findings": tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
            **{name: _renumbered(parts, name) for name in ("outputs", "cases", "samples")},
            "measurements": tuple(
                _merge_measurements([one for part in parts for one in part.measurements if one.case == case])
                for case in cases
            ),
            "wall_s": round(sum(part.wall_s for part in parts), 3),
        }
    )


def _renumbered(parts: Sequence[Result], name: str) -> tuple[Any, ...]:
    """Return the entries of all blocks in one field, with call numbers that no two blocks share."""
    return tuple(
        entry.model_copy(update={"call": entry.call + block * CALL_STRIDE})
        for block, part in enumerate(parts)
        for entry in getattr(part, name)
    )


def _merge_measurements(blocks: list[Measurement]) -> Measurement:
    known = [block.outside_stream for block in blocks if block.outside_stream is not None]
    call_us = sorted(block.call_us for block in blocks)
    return blocks[0].model_copy(
        update={
            "device_us": tuple(time for block in blocks for time in block.device_us),
            "host_us": tuple(time for block in blocks for time in block.host_us),
            "call_us": call_us[len(call_us) // 2],
            "late_rounds": sum(block.late_rounds for block in blocks),
            "repeated_rounds": sum(block.repeated_rounds for block in blocks),
            "outside_stream": any(known) if known else None,
            "clocks_mhz": tuple(clock for block in blocks for clock in block.clocks_mhz),
            "launches": next((block.launches for block in blocks if block.launches is not None), None),
        }
    )
