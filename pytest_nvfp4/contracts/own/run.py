"""Run a contract of the user's own behind a wall, with a deadline, and read its answer.

The kernel under test has no part in it: the process reads the contract's file and what lies beside it, is started by
the process that judges, and its answer enters through the door. The file must have the content that it had when the
run began.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

from pytest_nvfp4 import isolation
from pytest_nvfp4.contracts.own.answers import Computed, Drawn, Legal, Listed
from pytest_nvfp4.contracts.own.axes import Axes, read_axes, text_of, values_of
from pytest_nvfp4.contracts.own.files import files_of, may_use_torch
from pytest_nvfp4.contracts.own.packing import Array, pack, unpack
from pytest_nvfp4.contracts.own.safetensors import MOST_BYTES
from pytest_nvfp4.isolation import blas
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.isolation.environment import NO_GPU, UNATTENDED
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.temporary import temporary_folder

_DEADLINE_S: Final = 120.0
_MOST_BYTES: Final = 1 << 30
_FILE_BYTES: Final = 4 << 20
_MEMORY_BYTES: Final = 16 << 30
_DIGITS: Final = 16
M = TypeVar("M", Drawn, Computed)
N = TypeVar("N", Listed, Legal, Drawn, Computed)


class ContractError(ProblemError):
    """A contract of the user's own cannot be used; ``file`` and ``line`` say where."""

    def __init__(self, message: str, *, file: str, line: int | None = None) -> None:
        super().__init__(f"{file}{f':{line}' if line else ''}: {message}")
        self.message, self.file, self.line = message, file, line


@dataclass(frozen=True, slots=True)
class OwnProblems:
    """What a contract lists.

    Attributes:
        problems: Its problems by name.
        benchmarks: Names of those that are timed.
        families: Names of its input families, one at least.
        axes: The values of each axis of other problems that may be drawn; None if it lists none.
        restricted: Whether only some combinations of them are problems (see `legal`).
    """

    problems: dict[str, Problem]
    benchmarks: tuple[str, ...]
    families: tuple[str, ...]
    axes: Axes | None
    restricted: bool

    def named(self, name: str) -> Problem:
        """Return the problem of a name, or of axes as ``own.axes.text_of`` writes them. Raises ProblemError."""
        if name in self.problems:
            return self.problems[name]
        others = ""
        if self.axes is not None:
            first = next(iter(self.problems.values()))
            if (found := read_axes(name, self.axes)) is not None:
                return replace(first, name=name, axes=tuple(found.items()))
            others = f", or others by its axes, such as {text_of({key: each[0] for key, each in self.axes.items()})}"
        raise ProblemError(f"the contract has no problem {name!r}; it has {', '.join(self.problems)}{others}")


@lru_cache(maxsize=64)
def identity(place: str) -> str:
    """Return ``FILE::NAME#HASH`` for ``FILE::NAME``: the hash is that of the files when the run began.

    Raises:
        ContractError: The file cannot be read.
    """
    return f"{place}#{_digest(place.partition('::')[0])}"


def _digest(file: str) -> str:
    digest = hashlib.sha256()
    try:
        for path in files_of(file):
            most = MOST_BYTES if path.suffix == ".safetensors" else _FILE_BYTES
            digest.update(read_file(path, source=f"{path.name}:", most=most))
        return digest.hexdigest()[:_DIGITS]
    except (OSError, DoorError) as error:
        raise ContractError(f"the contract cannot be read: {error}", file=file) from error


@lru_cache(maxsize=64)
def own_problems(contract: str) -> OwnProblems:
    """Return the problems of a contract, given its identity. Raises ContractError."""
    fields, _ = _ask(contract, {"do": "problems"})
    listed = _read(Listed, fields, contract)
    axes = None if listed.axes is None else {name: values_of(values) for name, values in listed.axes.items()}
    problems = {
        name: Problem(name, (), listed.seed, contract, tuple(each.items())) for name, each in listed.problems.items()
    }
    return OwnProblems(problems, listed.benchmarks, listed.families, axes, listed.restricted)


def legal(contract: str, problems: Sequence[Problem]) -> list[bool]:
    """Return which drawn problems a contract admits, given its identity. Raises ContractError."""
    fields, _ = _ask(contract, {"do": "legal", "problems": [dict(problem.axes) for problem in problems]})
    found = _read(Legal, fields, contract).legal
    if len(found) != len(problems):
        raise ContractError(f"it answers for {len(found)} of {len(problems)} problems", file=_file(contract))
    return list(found)


def drawing(problem: Problem, family: str, *, seed: int, results: bool) -> dict[str, Any]:
    """Return a request to draw the inputs of a problem, and to describe its outputs if ``results``."""
    axes = dict(problem.axes)
    return {"problem": problem.name, "axes": axes, "family": family, "seed": seed, "results": results}


def drawn(contract: str, requests: Sequence[dict[str, Any]]) -> list[tuple[Drawn, list[Array]]]:
    """Return a draw for each request (see `drawing`). Raises ContractError."""
    return _answers(Drawn, contract, "draw", requests, [()] * len(requests))


def computed(
    contract: str, requests: Sequence[dict[str, Any]], arrays: Sequence[Sequence[Array]]
) -> list[tuple[Computed, list[Array]]]:
    """Return the results of given inputs. Raises ContractError.

    Args:
        contract: Its identity.
        requests: ``problem`` and ``inputs`` of each draw.
        arrays: The arrays of each draw.
    """
    requests = [{**one, "arrays": len(each)} for one, each in zip(requests, arrays, strict=True)]
    return _answers(Computed, contract, "results", requests, arrays)


def _answers(
    model: type[M], contract: str, do: str, requests: Sequence[dict[str, Any]], held: Sequence[Sequence[Array]]
) -> list[tuple[M, list[Array]]]:
    """Return the answer to each part of a request. One process answers as many parts as it can hold."""
    done: list[tuple[M, list[Array]]] = []
    while len(done) < len(requests):
        at = len(done)
        fields, arrays = _ask(contract, {"do": do, "parts": requests[at:]}, [one for each in held[at:] for one in each])
        parts = fields.get("parts")
        if not isinstance(parts, list) or not 0 < len(parts) <= len(requests) - at:
            raise ContractError("its answer has other parts than the request", file=_file(contract))
        for part in parts:
            answer = _read(model, part, contract)
            if answer.arrays > len(arrays):
                raise ContractError("its answer lacks arrays", file=_file(contract))
            done.append((answer, arrays[: answer.arrays]))
            arrays = arrays[answer.arrays :]
    return done


def _read(model: type[N], fields: object, contract: str) -> N:
    try:
        return validated(model, fields, source="the contract's answer")
    except DoorError as error:
        raise ContractError(str(error), file=_file(contract)) from error


def _ask(contract: str, request: dict[str, Any], arrays: Sequence[Array] = ()) -> tuple[dict[str, Any], list[Array]]:
    """Run a contract on a request (see ``program``), and return its answer. Raises ContractError."""
    file = _file(contract)
    name = contract.partition("::")[2].partition("#")[0]
    if (now := _digest(file)) != contract.rpartition("#")[2]:
        raise ContractError(f"the contract changed during the run (its hash is {now}): run again", file=file)
    with temporary_folder("contract") as folder:
        (folder / "request").write_bytes(pack({"request": request}, arrays))
        readable = tuple({str(path.parent): None for path in files_of(file)})
        wall = Wall(folder=str(folder), readable=readable, memory_bytes=_MEMORY_BYTES)
        preload = ("numpy", "torch") if may_use_torch(file) else ("numpy",)
        try:
            outcome = isolation.run(
                worker("pytest_nvfp4.contracts.own.program", file, name, preload=preload),
                cwd=folder,
                deadline_s=_DEADLINE_S,
                # Those of kernels in the simulator: with torch it is forked from the same server.
                environ={
                    **NO_GPU,
                    **blas.variables(),
                    **UNATTENDED,
                    "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
                },
                wall=wall,
                result_bytes=_MOST_BYTES,
            )
        except OSError as error:
            raise ContractError(f"the contract did not run: {error}", file=file) from error
    if outcome.result is None or outcome.returncode != 0:
        why = f"its answer exceeds {_MOST_BYTES} bytes" if outcome.result_overflow else outcome.describe_end()
        shown = outcome.stderr.text.strip()[-400:]
        raise ContractError(f"the contract's process {why}{f': {shown}' if shown else ''}", file=file)
    try:
        fields, answered = unpack(outcome.result, source="the contract's answer")
    except DoorError as error:
        raise ContractError(str(error), file=file) from error
    if isinstance(wrong := fields.get("error"), dict):
        line = wrong.get("line")
        raise ContractError(str(wrong.get("message"))[:4000], file=file, line=line if type(line) is int else None)
    return fields, answered


def _file(contract: str) -> str:
    return contract.partition("::")[0]
