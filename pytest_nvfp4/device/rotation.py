"""The inputs of verified and timed calls, which no kernel can know beforehand.

``verify`` draws the inputs of every case anew, with the case's seed and a key of the job. GPU MODE's own inputs are the
published ones but for one row of A of each group. So an answer that was computed in advance is wrong.

A benchmark has several sets of inputs in separate memory, with one row of A changed before every call. A kernel that
caches an answer by pointer, by part of the content or by the number of the call returns a wrong one,
because the changed row changes a row of the result. The row and its new content follow from the problem's seed, the
set, the visit and the key, which the kernel cannot see. The parent computes the inputs of any call from the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_nvfp4.contracts.base import Contract, RowChange
from pytest_nvfp4.contracts.own.contract import set_label
from pytest_nvfp4.contracts.registry import contract_of, is_own
from pytest_nvfp4.device.given import given_of
from pytest_nvfp4.device.job import GivenInputs, JobCase

_PUBLISHED = "gpumode"
"""Input family whose contents for a seed are published, and are to be tested."""
_FIRST_VISIT, _CHANGED, _REPLAYED = 0, 1, 2


def set_inputs(case: JobCase, index: int, *, blank: bool = False, given: Sequence[GivenInputs] = ()) -> Any:
    """Return the inputs of one set before its first visit; if ``blank``, without large contents.

    ``given`` are the inputs that the job carries, here and below.
    """
    problem = case.problem.problem()
    if is_own(problem.contract):
        return given_of(given).inputs(problem, case.family, set_label(index))
    return contract_of(problem).with_seed(problem, case.family, problem.seed + index, blank=blank)


def changes(inputs: Any, *, index: int, visit: int, key: int) -> list[RowChange]:
    """Return what changes before a visit. ``key`` is the job's ``row_key``."""
    return contract_of(inputs.problem).changes(inputs, index=index, visit=visit, key=key)


def inputs_at(
    case: JobCase, *, index: int, visit: int, key: int, base: Any = None, given: Sequence[GivenInputs] = ()
) -> Any:
    """Return the inputs of a set at a visit: its first inputs with every change up to and including that visit's.

    ``base`` are those first inputs, if they are at hand.
    """
    first = set_inputs(case, index, given=given) if base is None else base
    return _changed(first, index=index, visits=range(visit + 1), key=key)


def verified_inputs(case: JobCase, *, key: int, changed: bool = False, given: Sequence[GivenInputs] = ()) -> Any:
    """Return the inputs of a call of a verify job; with ``changed`` one more row of A of each group differs."""
    if is_own(case.problem.contract):
        return given_of(given).inputs(case.problem.problem(), case.family, "changed" if changed else "verify")
    first, visits = _first(case, key=key)
    return _changed(first, index=0, visits=(*visits, *range(_CHANGED, _CHANGED + changed)), key=key)


def verified_changes(case: JobCase, *, key: int) -> list[RowChange]:
    """Return in what ``verified_inputs`` with ``changed`` differ from those without, under this package's contracts."""
    return changes(_first(case, key=key)[0], index=0, visit=_CHANGED, key=key)


def _first(case: JobCase, *, key: int) -> tuple[Any, tuple[int, ...]]:
    """Return inputs of a verify job before any change, and the visits by which all of its calls differ from them."""
    if case.family == _PUBLISHED:
        return set_inputs(case, 0), (_FIRST_VISIT,)
    return _drawn(case, key=key, what="verify"), ()


def replayed_inputs(case: JobCase, *, key: int, changed: bool = False, given: Sequence[GivenInputs] = ()) -> Any:
    """Return other inputs for the requests of a call, which has given the host a part of its own ones."""
    if is_own(case.problem.contract):
        return given_of(given).inputs(case.problem.problem(), case.family, "replay")
    called = verified_inputs(case, key=key, changed=changed)
    other = _contract(case).replayed(called, _drawn(case, key=key, what="replay"))
    return _changed(other, index=0, visits=(_REPLAYED,), key=key)


def _contract(case: JobCase) -> Contract:
    return contract_of(case.problem.problem())


def _drawn(case: JobCase, *, key: int, what: str) -> Any:
    """Return the inputs of a case for a seed that follows from its own and a key."""
    problem = case.problem.problem()
    seed = int.from_bytes(hashlib.sha256(f"{what} {key} {problem.seed}".encode()).digest()[:4], "little")
    return contract_of(problem).with_seed(problem, case.family, seed)


def _changed(base: Any, *, index: int, visits: Iterable[int], key: int) -> Any:
    """Return inputs with the changes of some visits."""
    contract = contract_of(base.problem)
    made = [change for visit in visits for change in contract.changes(base, index=index, visit=visit, key=key)]
    return contract.changed(base, made)
