"""The contract of a kernel file whose settings name none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_nvfp4.contracts.recognise import VALUES, contradiction, recognise
from pytest_nvfp4.contracts.registry import contract_named
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.problem import GROUP_GEMM, SETS, Problem, ProblemError, resolve
from pytest_nvfp4.settings.error import SettingsError
from pytest_nvfp4.settings.kernel import KernelSettings

_MOST_BYTES: Final = 64 << 20


def with_recognised_contract(
    settings: KernelSettings, path: Path, *, shown: str, file: Path | None, own: Mapping[str, Problem]
) -> KernelSettings:
    """Return settings with the contract that a kernel file is recognised as, and with the contract's problems.

    ``shown`` is the path in messages, ``file`` the file of the settings, and ``own`` the user's problems.

    Raises:
        SettingsError: The file fits several contracts, none, or another one than the settings name.
    """
    if settings.entry is not None or settings.own_contract is not None:
        return settings
    try:  # not a pipe, which would wait for a writer; whoever compiles the file reports what it is
        text = read_file(path, source=shown, most=_MOST_BYTES).decode("utf-8", "replace")
    except (DoorError, OSError):
        return settings
    if settings.contract is not None:
        if (problem := contradiction(text, settings.contract)) is not None:
            raise SettingsError(f"{shown} {problem}")
        return settings
    found = recognise(text)
    if found.problem:
        raise SettingsError(
            f"{shown} {found.problem}; name its contract in pyproject.toml:\n"
            "    [[tool.pytest_nvfp4.kernel]]\n"
            f'    path = "{shown}"\n'
            f'    contract = "{(found.fits or tuple(VALUES))[0]}"'
        )
    if found.contract is None or found.contract == GROUP_GEMM:
        return settings
    contract = contract_named(found.contract)

    def named(problems: tuple[Problem, ...] | None) -> tuple[Problem, ...] | None:
        names = [problem.name for problem in problems or ()]
        for whole, members in SETS.items():  # a set of the contract may have fewer problems
            if {problem.name for problem in members} <= set(names):
                names = [whole, *(name for name in names if name not in {problem.name for problem in members})]
        return resolve(names, own=own, sets=contract.sets, contract=contract.name) if names else None

    try:
        return replace(
            settings,
            contract=contract.name,
            problems=named(settings.problems),
            verify=named(settings.verify),
            simulate=named(settings.simulate),
            benchmark=named(settings.benchmark),
            model=named(settings.model) or (),
        )
    except ProblemError as error:
        raise SettingsError(f"{file}: {shown} is a kernel of {contract.name}: {error}") from error
