"""The plugin's state of one run: options, settings, the kernels' cases, and traces as they are made."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.options import Options

if TYPE_CHECKING:
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.settings import KernelSettings
    from pytest_nvfp4.toolchain.cache import TraceCache
    from pytest_nvfp4.toolchain.request import TraceRequest
    from pytest_nvfp4.toolchain.trace import Trace
    from pytest_nvfp4.toolchain.tracer import Tracer


@dataclass(frozen=True)
class Case:
    """One configuration of one kernel on one problem.

    Attributes:
        path: The kernel file.
        settings: Its configuration, with the command line applied.
        problem: The problem.
        label: What stands in brackets in its node ids; empty for none.
        trouble: Why it cannot be traced at all; None when it can.
    """

    path: Path
    settings: KernelSettings
    problem: Problem
    label: str
    trouble: str | None = None


class Run:
    """Everything that the plugin's hooks and fixtures share in one run of pytest.

    Attributes:
        options: What the user asked for.
        settings: ``[tool.pytest_nvfp4]`` of the root's pyproject.toml.
        passed_over: Files that pytest came across and nobody collected.
        chosen_problems: The problems of the command line; empty where it names none.

    Raises:
        pytest.UsageError: the settings, or the problems of the command line, cannot be used.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        from pytest_nvfp4.problem import ProblemError
        from pytest_nvfp4.settings import Settings, SettingsError, fits_any, load

        self._config = config
        self.options = options
        self.passed_over: list[Path] = []
        try:
            self.settings: Settings = load(options.root)
            self.chosen_problems = self.settings.resolve_problems(options.problems)
            fits_any(options.root, options.kernels, root=options.root)
            self.settings.names_kernel(options.root)
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from error
        except ProblemError as error:
            raise pytest.UsageError(f"--nvfp4-problem: {error}") from error
        except re.error as error:
            raise pytest.UsageError(f"a glob of kernel files cannot be used: {error.pattern!r}: {error}") from error

    @cached_property
    def cache(self) -> TraceCache:
        """Where traces are kept, and below whose root everything else is that need not be found again."""
        from pytest_nvfp4.toolchain.cache import TraceCache

        return TraceCache(self.options.cache)

    @cached_property
    def tracer(self) -> Tracer:
        """Makes traces; what one test process of this run has traced, the others reuse."""
        from pytest_nvfp4.toolchain.tracer import Limits, Tracer

        return Tracer(
            root=self.options.root,
            cache=self.cache,
            limits=Limits(deadline_s=self.options.timeout_s),
            session=getattr(self._config, "workerinput", {}).get("testrunuid"),  # xdist's name of the whole run
        )

    def relative(self, path: Path) -> str:
        """A path as the user knows it, safe to show: relative to the root where it is below it."""
        from pytest_nvfp4.text import visible

        return visible(self._below(path) or str(path))

    def typed(self, path: Path) -> str:
        """A path as it would be typed on the command line, from where this run was started."""
        from pytest_nvfp4.text import visible

        return visible(shlex.quote(os.path.relpath(path, self.options.here)))

    def portable(self, path: Path) -> str:
        """A path for a file that others read too: relative to the root, or the bare name of a file outside it."""
        from pytest_nvfp4.text import visible

        return " ".join(visible(self._below(path) or path.name).split())

    def _below(self, path: Path) -> str | None:
        for one, root in ((path.resolve(), self.options.root.resolve()), (path, self.options.root)):
            if one.is_relative_to(root):
                return one.relative_to(root).as_posix()
        return None

    def cases(self, path: Path, *, named: bool) -> list[Case]:
        """The configurations of a kernel file and their problems; at least one.

        Args:
            path: The kernel file.
            named: It was named on the command line, so ``--nvfp4-entry`` is meant for it.
        """
        from pytest_nvfp4.problem import GPUMODE
        from pytest_nvfp4.settings import KernelSettings, SettingsError

        try:
            configured = self.settings.for_kernel(path)
        except SettingsError as error:
            return [Case(path, KernelSettings(), GPUMODE[0], "", trouble=str(error))]
        cases: list[Case] = []
        for one in configured:
            settings = self._with_options(one, named=named)
            problems = self.chosen_problems or settings.problems
            if problems is None:
                # an entry need not know of problems, so its node ids do not speak of one
                shown = "" if settings.entry else GPUMODE[0].name
                cases.append(Case(path, settings, GPUMODE[0], _label(settings.name, shown)))
            else:
                cases += [Case(path, settings, problem, _label(settings.name, problem.name)) for problem in problems]
        return _apart(cases)

    def _with_options(self, settings: KernelSettings, *, named: bool) -> KernelSettings:
        return replace(
            settings,
            compile_options=settings.compile_options + self.options.compile_options,
            protected=settings.protected + self.options.protected,
            arch=self.options.arch or settings.arch,
            # the command line's own paths are relative to where it was typed, all others to the root
            entry=str(self.options.here / self.options.entry) if named and self.options.entry else settings.entry,
        )

    def request(self, case: Case, *, source: str | None = None) -> TraceRequest:
        """What is to be traced for a case.

        Args:
            case: The case.
            source: Where its entry was written, for the error; the settings' file otherwise.

        Raises:
            EntryError: its entry names no file.
        """
        from pytest_nvfp4.toolchain.request import Entry, TraceRequest

        entry = None
        if case.settings.entry:
            source = source or str(self.settings.file or "--nvfp4-entry")
            entry = Entry.parse(case.settings.entry, root=self.options.root, source=source)
        return TraceRequest(
            kernel=case.path.resolve(),
            problem=case.problem,
            entry=entry,
            arch=case.settings.arch,
            options=case.settings.compile_options,
        )

    def trace(self, case: Case, *, source: str | None = None) -> Trace:
        """The trace of a case; see `request`. Raises EntryError."""
        return self.tracer.trace(self.request(case, source=source))


def _label(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _apart(cases: list[Case]) -> list[Case]:
    """The cases, or a single one that says why their node ids would not tell them apart."""
    labels = [case.label for case in cases]
    for label in labels:
        if labels.count(label) > 1:
            trouble = (
                f"two configurations of {cases[0].path.name} on their problems would both be called [{label}]; "
                "give a [[tool.pytest_nvfp4.kernel]] table or a problem another name"
            )
            return [replace(cases[0], label="", trouble=trouble)]
    return cases


RUN = pytest.StashKey[Run]()
