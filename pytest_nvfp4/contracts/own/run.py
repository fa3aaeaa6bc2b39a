"""Run a contract of the user's own behind a wall, with a deadline, and read its answer.

The kernel under test has no part in it: the process reads the contract's file and what lies beside it, is started by
the process that judges, and its answer enters through the door. The file must have the content that it had when the
run began.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4 import isolation
from pytest_nvfp4.contracts.own.packing import Array, pack, unpack
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.run_module import module_command
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.temporary import temporary_folder

_DEADLINE_S: Final = 120.0
_MOST_BYTES: Final = 1 << 30
_FILE_BYTES: Final = 4 << 20
_MEMORY_BYTES: Final = 16 << 30
_DIGITS: Final = 16


class ContractError(ProblemError):
    """A contract of the user's own cannot be used; ``file`` and ``line`` say where."""

    def __init__(self, message: str, *, file: str, line: int | None = None) -> None:
        super().__init__(f"{file}{f':{line}' if line else ''}: {message}")
        self.message, self.file, self.line = message, file, line


@dataclass(frozen=True, slots=True)
class OwnProblems:
    """The problems of a contract by name, and the names of its benchmarks."""

    problems: dict[str, Problem]
    benchmarks: tuple[str, ...]

    def named(self, name: str) -> Problem:
        """Return the problem of a name. Raises ProblemError."""
        if name not in self.problems:
            raise ProblemError(f"the contract has no problem {name!r}; it has {', '.join(self.problems)}")
        return self.problems[name]


@lru_cache(maxsize=64)
def identity(place: str) -> str:
    """Return ``FILE::NAME#HASH`` for ``FILE::NAME``: the hash is that of the file when the run began.

    Raises:
        ContractError: The file cannot be read.
    """
    return f"{place}#{_digest(place.partition('::')[0])}"


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(read_file(Path(file), source="the contract", most=_FILE_BYTES)).hexdigest()[:_DIGITS]
    except (OSError, DoorError) as error:
        raise ContractError(f"the contract cannot be read: {error}", file=file) from error


@lru_cache(maxsize=64)
def own_problems(contract: str) -> OwnProblems:
    """Return the problems of a contract, given its identity. Raises ContractError."""
    fields, _ = ask(contract, {"do": "problems"})
    file, found = _file(contract), fields.get("problems")
    benchmarks, seed = fields.get("benchmarks"), fields.get("seed")
    if not isinstance(found, dict) or not isinstance(benchmarks, list) or type(seed) is not int:
        raise ContractError("its problems cannot be read; seed must be an integer", file=file)
    problems = {name: Problem(name, (), seed, contract, tuple(axes.items())) for name, axes in found.items()}
    return OwnProblems(problems, tuple(benchmarks))


def ask(contract: str, request: dict[str, Any], arrays: Sequence[Array] = ()) -> tuple[dict[str, Any], list[Array]]:
    """Run a contract on a request (see ``program``), and return its answer. Raises ContractError."""
    file = _file(contract)
    name = contract.partition("::")[2].partition("#")[0]
    if (now := _digest(file)) != contract.rpartition("#")[2]:
        raise ContractError(f"the contract changed during the run (its hash is {now}): run again", file=file)
    with temporary_folder("contract") as folder:
        (folder / "request").write_bytes(pack({}, arrays))
        wall = Wall(folder=str(folder), readable=(str(Path(file).parent),), memory_bytes=_MEMORY_BYTES)
        try:
            outcome = isolation.run(
                module_command("pytest_nvfp4.contracts.own.program", file, name, json.dumps(request)),
                cwd=folder,
                deadline_s=_DEADLINE_S,
                environ={"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
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
