"""Compare kernels fairly: cut each benchmark into blocks, run the blocks in turn, and put the times together again.

A GPU's clock and temperature drift over minutes. Two benchmarks one after the other meet different clocks; blocks in
turn (A B, B A, A B, ...) meet the same ones, to first order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_nvfp4.device.batch import can_batch
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.device.result import Measurement, Result

_LEAST_ROUNDS = 3
_CALLS = 1_000_000
"""Calls of a later block are numbered from a multiple of this, so that no two outputs of a job share a number."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process: a job of the batch, or a block of it."""

    index: int
    block: int
    job: Job


def steps(batch: Batch) -> list[Step]:
    """The processes of a batch, in order.

    Jobs other than benchmarks run once, before the benchmarks. A benchmark has at most as many blocks as it has three
    rounds for each.
    """
    whole = [Step(index, 0, job) for index, job in enumerate(batch.jobs) if job.action != "benchmark"]
    cut = {index: _blocks(job, batch.blocks) for index, job in enumerate(batch.jobs) if job.action == "benchmark"}
    turns = []
    for block in range(max((len(blocks) for blocks in cut.values()), default=0)):
        turn = [Step(index, block, blocks[block]) for index, blocks in cut.items() if block < len(blocks)]
        turns += turn if block % 2 == 0 else turn[::-1]
    return whole + turns


def in_turn(one: Job, other: Job, batch: Batch) -> bool:
    """Whether two jobs of a batch are compared: benchmarks of the same cases, whose blocks run in turn."""
    return batch.blocks > 1 and one.action == other.action == "benchmark" and one.cases == other.cases


def together(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps in their order, those that may share a process side by side (see ``device.batch``)."""
    found: list[list[Step]] = []
    for step in steps:
        last = found[-1][-1] if found else None
        if last is not None and last.block == step.block and can_batch(found[-1][0].job, step.job):
            found[-1].append(step)
        else:
            found.append([step])
    return found


def _blocks(job: Job, blocks: int) -> list[Job]:
    count = max(1, min(blocks, job.timing.rounds // _LEAST_ROUNDS))
    if count == 1:
        return [job]
    each, rest = divmod(job.timing.rounds, count)
    draw = random.Random(job.order_seed)
    return [
        job.model_copy(
            update={
                "timing": job.timing.model_copy(update={"rounds": each + (block < rest)}),
                "order_seed": draw.getrandbits(32),
            }
        )
        for block in range(count)
    ]


def merged(parts: Sequence[Result]) -> Result:
    """The result of a job of the results of its blocks: the first that did not pass, else all of them together."""
    bad = next((part for part in parts if part.status != "passed"), None)
    if bad is not None or len(parts) == 1:
        return bad or parts[0]
    first = parts[0]
    return first.model_copy(
        update={
            "findings": tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
            "outputs": tuple(
                output.model_copy(update={"call": output.call + number * _CALLS})
                for number, part in enumerate(parts)
                for output in part.outputs
            ),
            "cases": tuple(
                report.model_copy(update={"call": report.call + number * _CALLS})
                for number, part in enumerate(parts)
                for report in part.cases
            ),
            "samples": tuple(
                sample.model_copy(update={"call": sample.call + number * _CALLS})
                for number, part in enumerate(parts)
                for sample in part.samples
            ),
            "measurements": tuple(
                _together([m for part in parts for m in part.measurements if m.case == case])
                for case in sorted({m.case for m in first.measurements})
            ),
            "wall_s": round(sum(part.wall_s for part in parts), 3),
        }
    )


def _together(blocks: list[Measurement]) -> Measurement:
    outside = [block.outside_stream for block in blocks]
    known = [seen for seen in outside if seen is not None]
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
        }
    )
