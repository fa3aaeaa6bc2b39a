"""The plugin's state of one run: options, settings, and traces as they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.options import Options

if TYPE_CHECKING:
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.settings import KernelSettings, Settings
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
    """

    path: Path
    settings: KernelSettings
    problem: Problem
    label: str


class Run:
    """Everything that the plugin's hooks and fixtures share in one run of pytest."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self.options = options

    @cached_property
    def settings(self) -> Settings:
        """``[tool.pytest_nvfp4]`` of the root's pyproject.toml. Raises SettingsError."""
        from pytest_nvfp4.settings import load

        return load(self.options.root)

    @cached_property
    def tracer(self) -> Tracer:
        """Makes traces; what one test process of this run has traced, the others reuse."""
        from pytest_nvfp4.toolchain.cache import TraceCache
        from pytest_nvfp4.toolchain.tracer import Limits, Tracer

        return Tracer(
            root=self.options.root,
            cache=TraceCache(self.options.cache),
            limits=Limits(deadline_s=self.options.timeout_s),
            session=self._session_name(),
        )

    def _session_name(self) -> str | None:
        """A name that the processes of one run share: xdist's run id."""
        return getattr(self._config, "workerinput", {}).get("testrunuid")

    def relative(self, path: Path) -> str:
        """A path as the user knows it: relative to the root where it is below it."""
        try:
            return path.resolve().relative_to(self.options.root.resolve()).as_posix()
        except ValueError:
            return str(path)

    def cases(self, path: Path, *, named: bool) -> list[Case]:
        """The configurations of a kernel file and their problems.

        Args:
            path: The kernel file.
            named: It was named on the command line, so ``--nvfp4-entry`` is meant for it.

        Raises:
            SettingsError, ProblemError: a setting or option cannot be used.
        """
        from pytest_nvfp4.problem import GPUMODE

        cases = []
        for configured in self.settings.for_kernel(path):
            settings = self._with_options(configured, named=named)
            if self.options.problems:
                problems: tuple[Problem, ...] | None = self.settings.resolve_problems(self.options.problems)
            else:
                problems = settings.problems
            if problems is None:
                label = settings.name if settings.entry else "-".join(filter(None, (settings.name, GPUMODE[0].name)))
                cases.append(Case(path, settings, GPUMODE[0], label))
            else:
                cases += [
                    Case(path, settings, problem, "-".join(filter(None, (settings.name, problem.name))))
                    for problem in problems
                ]
        return cases

    def _with_options(self, settings: KernelSettings, *, named: bool) -> KernelSettings:
        changes: dict[str, object] = {
            "compile_options": settings.compile_options + self.options.compile_options,
            "protected": settings.protected + self.options.protected,
        }
        if self.options.arch:
            changes["arch"] = self.options.arch
        if self.options.entry and named:
            changes["entry"] = self.options.entry
        return replace(settings, **changes)  # type: ignore[arg-type]

    def request(self, case: Case) -> TraceRequest:
        """What is to be traced for a case. Raises EntryError."""
        from pytest_nvfp4.toolchain.request import Entry, TraceRequest

        entry = None
        if case.settings.entry:
            given = case.settings.entry == self.options.entry
            base = self._config.invocation_params.dir if given else self.options.root
            source = "--nvfp4-entry" if given else str(self.settings.file)
            entry = Entry.parse(case.settings.entry, root=base, source=source)
        return TraceRequest(
            kernel=case.path.resolve(),
            problem=case.problem,
            entry=entry,
            arch=case.settings.arch,
            options=case.settings.compile_options,
        )

    def trace(self, case: Case) -> Trace:
        """The trace of a case."""
        return self.tracer.trace(self.request(case))


def safe_name(text: str) -> str:
    """A text as part of a file name: letters, digits and ``. _ + - [ ]`` stay, the rest becomes ``_``."""
    return re.sub(r"[^\w.+\-\[\]]", "_", text)


RUN = pytest.StashKey[Run]()
