"""Inputs that a job carries: those of contracts of the user's own, whose process runs where the job is made.

Everything else is generated from seeds, on both sides. A job of such a contract needs no process of it where it runs,
and the kernel, which runs there, can reach neither the contract nor its reference.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.contracts.own.contract import SETS, VARIANTS, Given, set_label
from pytest_nvfp4.contracts.own.packing import Array, pack
from pytest_nvfp4.contracts.own.run import ContractError, ask
from pytest_nvfp4.contracts.registry import contract_of, is_own
from pytest_nvfp4.device.job import GivenInputs, Job, ProblemSpec

_MOST_BYTES = 256 << 20


@lru_cache(maxsize=4)
def given_of(given: Sequence[GivenInputs]) -> Given:
    """Return the inputs that a job carries."""
    return Given({(one.problem, one.label): zlib.decompress(base64.b64decode(one.data)) for one in given})


def outputs_of(job: Job, case: int) -> tuple[Tensor, ...]:
    """Return the outputs of a case, without their contents."""
    problem = job.cases[case].problem.problem()
    contract = contract_of(problem)
    if not is_own(problem.contract):
        return contract.signature(problem).outputs
    label = next(one.label for one in job.given if one.problem == problem.name)
    return contract.call(given_of(job.given).inputs(problem, label)).outputs


def with_given(job: Job) -> Job:
    """Return a job with the inputs of its cases that are under contracts of the user's own. Raises ContractError."""
    made = [
        one
        for problem in dict.fromkeys(case.problem for case in job.cases if is_own(case.problem.contract))
        for one in _drawn(job, problem)
    ]
    return job.model_copy(update={"given": tuple(made)}) if made else job


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


def _drawn(job: Job, problem: ProblemSpec) -> Iterator[GivenInputs]:
    labels = list(_labels(job))
    parts = [
        {"problem": problem.name, "seed": _seed(problem.seed, salt), "results": at == 0}
        for at, (_, salt) in enumerate(labels)
    ]
    fields, arrays = ask(problem.contract, {"do": "draw", "parts": parts})
    file = problem.contract.partition("::")[0]
    if (size := sum(array.size for array in arrays)) > _MOST_BYTES:
        raise ContractError(
            f"the inputs of {problem.name} have {size:,} bytes for this job, and at most {_MOST_BYTES:,} are sent: "
            "make the problem smaller",
            file=file,
        )
    first = fields["parts"][0]
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for (label, _), part in zip(labels, fields["parts"], strict=True):
        count = sum(kind == "array" for _, kind, _ in part["inputs"])
        own, arrays = arrays[:count], arrays[count:]
        now = [(one.dtype, one.shape) for one in own]
        shapes = shapes or now
        if now != shapes:
            raise ContractError(f"inputs of {problem.name} have other shapes or types for another seed", file=file)
        yield GivenInputs(problem=problem.name, label=label, data=_packed(part["inputs"], own, first))


def _packed(inputs: object, arrays: list[Array], first: dict[str, object]) -> str:
    fields = {"inputs": inputs, "outputs": first["outputs"], "destination": first["destination"]}
    return base64.b64encode(zlib.compress(pack(fields, arrays), 1)).decode("ascii")


def _seed(seed: int, salt: str) -> int:
    """Return the seed of a draw; without a salt it is that of the problem."""
    return int.from_bytes(hashlib.sha256(f"{salt} {seed}".encode()).digest()[:4], "little") if salt else seed
