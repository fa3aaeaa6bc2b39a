"""Collect the checks of kernel files as pytest items, without importing the files."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin.checks import CHECKS, Check
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.state import RUN, Case, Run
from pytest_nvfp4.toolchain.source import read_source


class CheckItem(pytest.Function):
    """One check of one kernel on one problem: ``sm100.py::layouts[gpumode-0]``.

    It is a test function of this package that gets its kernel from the item, so fixtures, marks and plugins that work
    on test functions work on it.
    """

    def __init__(self, *, check: Check, case: Case, **kwargs: Any) -> None:
        super().__init__(callobj=check.function, **kwargs)
        self.check = check
        self.case = case
        self.add_marker(pytest.mark.nvfp4)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is: in the kernel's file."""
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ARG002
        """What a person sees: the finding, without this package's own lines."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class BrokenItem(pytest.Item):
    """The one item of a kernel file that cannot be checked at all; it fails and says why."""

    def __init__(self, *, message: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._message = message
        self.add_marker(pytest.mark.nvfp4)

    def runtest(self) -> None:
        """Fail."""
        raise CheckFailure(self._message, file=str(self.path))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is."""
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ARG002
        """The message alone."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class KernelFile(pytest.File):
    """A kernel file: its items are the checks of each of its configurations and problems."""

    def __init__(self, *, named: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._named = named

    def collect(self) -> Iterable[pytest.Item]:
        """One item a check, configuration and problem; one failing item where that is impossible."""
        from pytest_nvfp4.problem import ProblemError
        from pytest_nvfp4.settings import SettingsError

        run = self.config.stash[RUN]
        try:
            cases = run.cases(self.path, named=self._named)
        except (SettingsError, ProblemError) as error:
            yield BrokenItem.from_parent(self, name="compile", message=str(error))
            return
        source = read_source(self.path)
        contract = source is not None and source.defines_contract
        for case in cases:
            bracket = f"[{case.label}]" if case.label else ""
            if not contract and case.settings.entry is None:
                yield BrokenItem.from_parent(
                    self, name=f"compile{bracket}", message=no_contract(run.relative(self.path), source is not None)
                )
                continue
            for check in CHECKS:
                yield CheckItem.from_parent(self, name=f"{check.name}{bracket}", check=check, case=case)


def no_contract(name: str, uses_dsl: bool) -> str:
    """The message for a file that defines no ``custom_kernel`` and has no entry."""
    what = "imports cutlass but defines no custom_kernel(data)" if uses_dsl else "defines no custom_kernel(data)"
    return (
        f"{name} {what}, and no entry is configured for it.\n"
        "A kernel outside GPU MODE's contract is checked through a function of yours that compiles or launches it:\n"
        f"    pytest {name} --nvfp4-entry FILE::FUNCTION\n"
        "or, for good, in pyproject.toml:\n"
        "    [[tool.pytest_nvfp4.kernel]]\n"
        f'    path = "{name}"\n'
        '    entry = "FILE::FUNCTION"'
    )


def _is_test_module(path: Path, config: pytest.Config) -> bool:
    """Whether pytest's own rules make a file a test module."""
    patterns = config.getini("python_files")
    return any(fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(str(path), pattern) for pattern in patterns)


def _wanted(path: Path, *, run: Run, named: bool) -> bool:
    """Whether a file is to be collected as a kernel."""
    from pytest_nvfp4.settings import SettingsError, fits_any

    try:
        configured = run.settings.names_kernel(path)
    except SettingsError:
        configured = False  # collection of any kernel file says what is wrong with the settings
    if configured:
        return True
    in_folder = bool(run.options.kernels) and fits_any(path, run.options.kernels, root=run.options.root)
    if not named and not in_folder:
        return False
    if named and run.options.entry:
        return True
    source = read_source(path)
    if source is None:
        return False
    if source.defines_contract:
        return True
    # It uses the DSL without the contract: a kernel that lacks an entry, unless it is a module of tests.
    return not any(name.startswith(("test", "Test")) for name in source.functions)


def collect_file(path: Path, parent: pytest.Collector) -> KernelFile | None:
    """The collector of a file if it is a kernel: named on the command line, or covered by the settings."""
    if path.suffix != ".py" or path.name in ("conftest.py", "__init__.py"):
        return None
    run = parent.config.stash[RUN]
    named = parent.session.isinitpath(path)
    explicit = bool(run.options.kernels) and _explicit(path, run)
    if _is_test_module(path, parent.config) and not explicit:
        return None
    if not _wanted(path, run=run, named=named):
        return None
    collector: KernelFile = KernelFile.from_parent(parent, path=path, named=named)
    return collector


def _explicit(path: Path, run: Run) -> bool:
    """Whether the settings claim a file that pytest would take for a test module."""
    from pytest_nvfp4.settings import SettingsError, fits_any

    try:
        return fits_any(path, run.options.kernels, root=run.options.root) or run.settings.names_kernel(path)
    except SettingsError:
        return False
