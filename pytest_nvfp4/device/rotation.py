"""The inputs of a benchmark: several sets in separate memory, with one row of A changed before every call.

A kernel that caches an answer by pointer, by part of the content or by the number of the call returns a wrong one,
because the changed row changes a row of the result. The row and its new content follow from the problem's seed, the
set, the visit and a key of the job that the kernel cannot see. So the parent can compute the inputs of any round, and
answers cannot be computed in advance.
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
_DRAWS = 16


@dataclass(frozen=True, slots=True)
class RowChange:
    """Replacement of row ``row`` of a group's A by ``data`` (packed E2M1, k // 2 bytes)."""

    group: int
    row: int
    data: bytes


def set_inputs(case: JobCase, index: int) -> ProblemInput:
    """Return the inputs of one set before its first visit."""
    problem = case.problem.problem()
    return family(case.family).generate(Problem(problem.name, problem.groups, problem.seed + index))


def changes(inputs: ProblemInput, *, index: int, visit: int, key: int) -> list[RowChange]:
    """Return a changed row of A for each group with rows before a visit. ``key`` is the job's ``row_key``."""
    result = []
    for number, group in enumerate(inputs.groups):
        m, half = group.group.m, group.group.k // 2
        if m == 0:
            continue
        draw = np.random.Generator(np.random.PCG64([_ROW_KEY, key, inputs.problem.seed, index, visit, number]))
        row, data = 0, group.a[0]
        for _ in range(_DRAWS):
            row = int(draw.integers(m))
            donor = group.a[int(draw.integers(m))]
            # A rotated row of the same matrix keeps the distribution of the family, and so the bounds of its sums.
            data = np.roll(donor, int(draw.integers(1, half))) if half > 1 else donor
            if not np.array_equal(data, group.a[row]):
                break  # a row of equal elements may be drawn for an equal one
        result.append(RowChange(number, row, data.tobytes()))
    return result


def inputs_at(case: JobCase, *, index: int, visit: int, key: int) -> ProblemInput:
    """Return the inputs of a set at a visit: its first inputs with every change up to and including that visit's."""
    base = set_inputs(case, index)
    rows = [group.a.copy() for group in base.groups]
    for earlier in range(visit + 1):
        for change in changes(base, index=index, visit=earlier, key=key):
            rows[change.group][change.row] = np.frombuffer(change.data, dtype=np.uint8)
    groups = tuple(dataclasses.replace(group, a=a) for group, a in zip(base.groups, rows, strict=True))
    return dataclasses.replace(base, groups=groups)
