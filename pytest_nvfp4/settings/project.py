"""The settings of a project: those of its kernels, by their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_nvfp4.problem import Problem
from pytest_nvfp4.settings.accepted import AcceptedFinding
from pytest_nvfp4.settings.error import SettingsError
from pytest_nvfp4.settings.globs import matches, relative_to
from pytest_nvfp4.settings.kernel import KernelSettings
from pytest_nvfp4.settings.named_problems import resolved
from pytest_nvfp4.settings.recognised import with_recognised_contract


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One ``[[tool.pytest_nvfp4.kernel]]`` table."""

    path: str
    settings: KernelSettings


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``[tool.pytest_nvfp4]``.

    Attributes:
        root: The folder that paths are relative to.
        file: The file of the settings; None if there is none.
        problems: The user's problems by name.
        default: Settings of a kernel without a table.
        tables: The tables in their order.
        accepted: The accepted findings.
    """

    root: Path
    file: Path | None = None
    problems: Mapping[str, Problem] = field(default_factory=dict)
    default: KernelSettings = field(default_factory=KernelSettings)
    tables: tuple[KernelTable, ...] = ()
    accepted: tuple[AcceptedFinding, ...] = ()

    def accepted_of(self, path: Path, check: str) -> tuple[AcceptedFinding, ...]:
        """Return the accepted findings of a check of a kernel file."""
        relative = relative_to(path, self.root)
        return tuple(each for each in self.accepted if (each.check, each.kernel) == (check, relative))

    @property
    def has_own_contracts(self) -> bool:
        """Whether a kernel has a contract of the user's own."""
        return any(one.own_contract for one in (self.default, *(table.settings for table in self.tables)))

    def for_kernel(self, path: Path, *, entry: bool = False) -> tuple[KernelSettings, ...]:
        """Return the configurations of a kernel file: one for each table whose path matches it, or the default.

        One without an entry and without a contract has that of the task that the file is recognised as
        (``contracts.recognise``). ``entry``: whether the command line names one.

        Raises:
            SettingsError: Two of them have the same name, or the file fits several contracts, none, or another one.
        """
        relative = relative_to(path, self.root)
        matching = tuple(table.settings for table in self.tables if matches(relative, table.path))
        names = [settings.name for settings in matching]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SettingsError(
                f"{self.file}: several [[tool.pytest_nvfp4.kernel]] tables match {relative} and are named "
                f"{twice!r}; give each its own `name`"
            )
        found = matching or (self.default,)
        if entry:
            return found
        return tuple(
            with_recognised_contract(settings, path, shown=relative, file=self.file, own=self.problems)
            for settings in found
        )

    def names_kernel(self, path: Path) -> bool:
        """Return whether a table matches a file."""
        relative = relative_to(path, self.root)
        return any(matches(relative, table.path) for table in self.tables)

    def resolve_problems(self, names: Sequence[str], *, contract: str | None = None) -> tuple[Problem, ...]:
        """Return problems of a contract by name; the user's take precedence. Raises ProblemError."""
        return resolved(names, self.problems, contract)
