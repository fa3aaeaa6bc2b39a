"""Collection of kernel files: their checks become pytest items, and the files are not imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.plugin.checks.base import CheckItem, CollectedKernel
from pytest_nvfp4.plugin.checks.registry import CheckRegistry
from pytest_nvfp4.plugin.recognise import lacks_entry, recognise
from pytest_nvfp4.plugin.state import RUN, KernelCase
from pytest_nvfp4.problem import ProblemError


class KernelFile(pytest.File):
    """A kernel file. Its items are the checks of each of its configurations and problems."""

    def __init__(self, *, named: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._named = named

    def collect(self) -> Iterable[pytest.Item]:
        """Yield the items of all checks, also of a kernel that cannot be traced: they report why.

        Raises:
            CollectError: A check of another package cannot be used, or a problem violates the kernel's contract.
        """
        registry = CheckRegistry.of(self.config)
        if registry.errors:
            raise self.CollectError("\n".join(registry.errors))
        cases = self._cases()
        self._require_contract(cases)
        # Pytest looks up the fixtures of a function for each item; the items of one check have the same.
        fixtures: dict[str, Any] = {}
        for check, case in registry.items(CollectedKernel(self.path, cases, self.config)):
            item: CheckItem = CheckItem.from_parent(
                self,
                name=f"{check.name}[{case.label}]" if case.label else check.name,
                check=check,
                case=case,
                fixtureinfo=fixtures.get(check.name),
            )
            fixtures[check.name] = item._fixtureinfo
            yield item

    def _require_contract(self, cases: Sequence[KernelCase]) -> None:
        """Raise CollectError if a problem of a kernel under GPU MODE's contract violates it: that is bad input."""
        run = self.config.stash[RUN]
        for case in cases:
            if not case.settings.is_run or case.error is not None:
                continue
            settings = case.settings
            own = (*(settings.problems or ()), *(settings.verify or ()), *(settings.simulate or ()))
            try:
                for problem in run.chosen(self.path, settings) or own:
                    contract_of(problem).require(problem)
            except ProblemError as error:
                source = "--nvfp4-problem" if run.options.problems else str(run.settings_of(self.path).file)
                raise self.CollectError(f"{source}: {error}") from error

    def _cases(self) -> list[KernelCase]:
        run = self.config.stash[RUN]
        cases = run.cases(self.path, named=self._named)
        without_entry = next((case for case in cases if _needs_function(case)), None)
        error = lacks_entry(self.path, run) if without_entry else None
        if without_entry is None or error is None:
            return cases
        # One item reports the error, however many problems the kernel has.
        return [replace(without_entry, error=error), *(case for case in cases if not _needs_function(case))]


def _needs_function(case: KernelCase) -> bool:
    """Return whether the kernel's file must define ``custom_kernel``."""
    settings = case.settings
    named = settings.entry is not None or settings.call is not None or settings.called != "custom_kernel"
    return not named and case.error is None


def _named_outside(path: Path, config: pytest.Config) -> dict[str, Any]:
    """Return the node id of a file outside of pytest's root, of which pytest's own is empty; none for another."""
    if path.is_relative_to(config.rootpath):
        return {}
    return {"nodeid": Path(os.path.relpath(path, config.rootpath)).as_posix()}


def collect_file(path: Path, parent: pytest.Collector, collectors: list[pytest.Collector]) -> list[pytest.Collector]:
    """Return the collectors of a file: its checks if it is a kernel, and otherwise those of pytest.

    A kernel keeps pytest's own collectors, which import it, only if it contains tests.
    """
    named = parent.session.isinitpath(path)
    has_tests = recognise(path, run=parent.config.stash[RUN], config=parent.config, named=named)
    if has_tests is None:
        return collectors
    file: KernelFile = KernelFile.from_parent(parent, path=path, named=named, **_named_outside(path, parent.config))
    return [file, *(collectors if has_tests else [])]
