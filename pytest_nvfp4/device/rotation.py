"""The inputs of a benchmark: several sets in memory of their own, of which one row changes before every call.

A kernel that remembers an answer, by pointer, by content of a part, or by the number of the call, returns a wrong one:
the changed row changes a row of the result. Which row and what it becomes follows from the seed, the set, the visit
and a key of the job that the kernel is not shown, so the parent knows the inputs of any round without being told, and
nobody can have worked out their answers before.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.device.job import JobCase
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.problem import Problem

_ROW_KEY = 0x5EED


@dataclass(frozen=True, slots=True)
class RowChange:
    """Row ``row`` of a group's A becomes ``data`` (packed E2M1, k // 2 bytes). ``row`` is -1 for a group of no rows."""

    group: int
    row: int
    data: bytes


def set_inputs(case: JobCase, index: int) -> ProblemInput:
    """The inputs of one set before its first visit."""
    problem = case.problem.problem()
    return family(case.family).generate(Problem(problem.name, problem.groups, problem.seed + index))


def changes(inputs: ProblemInput, *, index: int, visit: int, key: int) -> list[RowChange]:
    """What changes in a set before a visit: one row of A in each group. ``key`` is the job's ``row_key``."""
    made = []
    for number, group in enumerate(inputs.groups):
        m, half = group.group.m, group.group.k // 2
        if m == 0:
            made.append(RowChange(number, -1, b""))
            continue
        draw = np.random.Generator(np.random.PCG64([_ROW_KEY, key, inputs.problem.seed, index, visit, number]))
        row = int(draw.integers(m))
        donor = group.a[int(draw.integers(m))]
        data = np.roll(donor, int(draw.integers(1, half))) if half > 1 else donor
        made.append(RowChange(number, row, data.tobytes()))
    return made


def inputs_at(case: JobCase, *, index: int, visit: int, key: int) -> ProblemInput:
    """The inputs of a set at a visit: its first inputs with every change up to and including that visit's."""
    base = set_inputs(case, index)
    rows = [group.a.copy() for group in base.groups]
    for earlier in range(visit + 1):
        for change in changes(base, index=index, visit=earlier, key=key):
            if change.row >= 0:
                rows[change.group][change.row] = np.frombuffer(change.data, dtype=np.uint8)
    groups = tuple(dataclasses.replace(group, a=a) for group, a in zip(base.groups, rows, strict=True))
    return dataclasses.replace(base, groups=groups)
