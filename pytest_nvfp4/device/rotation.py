"""The inputs of verified and timed calls, which no kernel can know beforehand.

``verify`` draws the inputs of every case anew, with the case's seed and a key of the job. GPU MODE's own inputs are the
published ones but for one row of A of each group. So an answer that was computed in advance is wrong.

A benchmark has several sets of inputs in separate memory, with one row of A changed before every call. A kernel that
caches an answer by pointer, by part of the content or by the number of the call returns a wrong one,
because the changed row changes a row of the result. The row and its new content follow from the problem's seed, the
set, the visit and the key, which the kernel cannot see. The parent computes the inputs of any call from the same key.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.device.job import JobCase
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.problem import Problem

_ROW_KEY = 0x5EED
_DRAWS = 16
_PUBLISHED = "gpumode"
"""Input family whose contents for a seed are published, and are to be tested."""
_FIRST_VISIT, _CHANGED, _REPLAYED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class RowChange:
    """Replacement of row ``row`` of a group's A by ``data`` (packed E2M1, k // 2 bytes)."""

    group: int
    row: int
    data: bytes


def set_inputs(case: JobCase, index: int, *, blank: bool = False) -> ProblemInput:
    """Return the inputs of one set before its first visit; if ``blank``, without the content of A and B."""
    problem = case.problem.problem()
    return family(case.family).generate(Problem(problem.name, problem.groups, problem.seed + index), blank=blank)


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
    return _changed(set_inputs(case, index), index=index, visits=range(visit + 1), key=key)


def verified_inputs(case: JobCase, *, key: int, changed: bool = False) -> ProblemInput:
    """Return the inputs of a call of a verify job; with ``changed`` one more row of A of each group differs."""
    visits = range(_CHANGED, _CHANGED + changed)
    if case.family == _PUBLISHED:
        return _changed(set_inputs(case, 0), index=0, visits=(_FIRST_VISIT, *visits), key=key)
    return _changed(_drawn(case, key=key, what="verify"), index=0, visits=visits, key=key)


def replayed_inputs(case: JobCase, *, key: int, changed: bool = False) -> ProblemInput:
    """Return other inputs for the requests of a call: A and B differ.

    The scale factors are those of the call, because the contract gives the plain ones to the host.
    """
    called = verified_inputs(case, key=key, changed=changed)
    other = _drawn(case, key=key, what="replay")
    groups = (
        dataclasses.replace(group, a=new.a, b=new.b) for group, new in zip(called.groups, other.groups, strict=True)
    )
    return _changed(dataclasses.replace(called, groups=tuple(groups)), index=0, visits=(_REPLAYED,), key=key)


def _drawn(case: JobCase, *, key: int, what: str) -> ProblemInput:
    """Return the inputs of a case for a seed that follows from its own and a key."""
    problem = case.problem.problem()
    seed = int.from_bytes(hashlib.sha256(f"{what} {key} {problem.seed}".encode()).digest()[:4], "little")
    made = family(case.family).generate(Problem(problem.name, problem.groups, seed))
    return dataclasses.replace(made, problem=problem)


def _changed(base: ProblemInput, *, index: int, visits: Iterable[int], key: int) -> ProblemInput:
    """Return inputs with the changed rows of some visits."""
    rows = [group.a.copy() for group in base.groups]
    for visit in visits:
        for change in changes(base, index=index, visit=visit, key=key):
            rows[change.group][change.row] = np.frombuffer(change.data, dtype=np.uint8)
    groups = tuple(dataclasses.replace(group, a=a) for group, a in zip(base.groups, rows, strict=True))
    return dataclasses.replace(base, groups=groups)
