"""Inputs that a job carries: those of contracts of the user's own, whose process runs where the job is made.

Everything else is generated from seeds, on both sides. A job of such a contract needs no process of it where it runs,
and the kernel, which runs there, can reach neither the contract nor its reference.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.contracts.own.contract import SETS, VARIANTS, Given, set_label
from pytest_nvfp4.contracts.own.packing import pack
from pytest_nvfp4.contracts.own.run import ContractError, drawing, drawn
from pytest_nvfp4.contracts.registry import contract_named, contract_of, is_own
from pytest_nvfp4.device.job import GivenInputs, Job
from pytest_nvfp4.problem import Problem

_MOST_BYTES = 256 << 20


@lru_cache(maxsize=4)
def given_of(given: Sequence[GivenInputs]) -> Given:
    """Return the inputs that a job carries."""
    return Given({(one.problem, one.family, one.label): zlib.decompress(base64.b64decode(one.data)) for one in given})


def outputs_of(job: Job, case: int) -> tuple[Tensor, ...]:
    """Return the outputs of a case, without their contents."""
    problem, family = job.cases[case].problem.problem(), job.cases[case].family
    contract = contract_of(problem)
    if not is_own(problem.contract):
        return contract.signature(problem).outputs
    label = next(one.label for one in job.given if (one.problem, one.family) == (problem.name, family))
    return contract.call(given_of(job.given).inputs(problem, family, label)).outputs


def with_given(job: Job) -> Job:
    """Return a job with the inputs of its cases that are under contracts of the user's own. Raises ContractError."""
    draws: dict[str, list[_Draw]] = {}
    for case in dict.fromkeys(job.cases):
        if is_own(case.problem.contract):
            problem = case.problem.problem()
            draws.setdefault(problem.contract, []).extend(
                _Draw(problem, case.family, label, _seed(problem.seed, salt)) for label, salt in _labels(job)
            )
    made = [one for contract, asked in draws.items() for one in _drawn(contract, asked)]
    return job.model_copy(update={"given": tuple(made)}) if made else job


@dataclass(frozen=True, slots=True)
class _Draw:
    """A draw that a job needs."""

    problem: Problem
    family: str
    label: str
    seed: int


def _labels(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the label of each draw that a job needs, and what its seed depends on besides the problem's."""
    if job.action == "verify":
        for label in ("verify", "changed", "replay"):
            yield label, f"{label} {job.row_key}"
    elif job.action == "benchmark":
        for index in range(SETS):
            for variant in range(VARIANTS):
                yield set_label(index, variant), f"{index} {variant} {job.row_key}"
    else:
        yield set_label(0), ""


def _drawn(contract: str, draws: Sequence[_Draw]) -> Iterator[GivenInputs]:
    file, known = contract.partition("::")[0], contract_named(contract)
    requests: list[dict[str, Any]] = []
    for at, draw in enumerate(draws):
        first = at == 0 or draws[at - 1].problem != draw.problem
        requests.append(drawing(draw.problem, known.family(draw.family), seed=draw.seed, results=first))
    answers = zip(draws, drawn(contract, requests), strict=True)
    for problem, of_problem in groupby(answers, key=lambda pair: pair[0].problem):
        made = [(draw, answer, arrays) for draw, (answer, arrays) in of_problem]
        if (size := sum(array.size for *_, arrays in made for array in arrays)) > _MOST_BYTES:
            raise ContractError(
                f"the inputs of {problem.name} have {size:,} bytes for this job, and at most {_MOST_BYTES:,} are sent: "
                "make the problem smaller",
                file=file,
            )
        _, first_answer, first_arrays = made[0]
        shapes = [(one.dtype, one.shape) for one in first_arrays]
        for draw, answer, arrays in made:
            if [(one.dtype, one.shape) for one in arrays] != shapes:
                raise ContractError(
                    f"inputs of {problem.name} have other shapes or types for another seed or family", file=file
                )
            fields = {
                "inputs": answer.inputs,
                "outputs": first_answer.outputs,
                "destination": first_answer.destination,
            }
            data = base64.b64encode(zlib.compress(pack(fields, arrays), 1)).decode("ascii")
            yield GivenInputs(problem=problem.name, family=draw.family, label=draw.label, data=data)


def _seed(seed: int, salt: str) -> int:
    """Return the seed of a draw; without a salt it is that of the problem."""
    return int.from_bytes(hashlib.sha256(f"{salt} {seed}".encode()).digest()[:4], "little") if salt else seed
