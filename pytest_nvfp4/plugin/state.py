"""State of one run of pytest: options, settings, the cases of kernels, and their traces."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.options import Options
from pytest_nvfp4.text import visible

if TYPE_CHECKING:
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.settings import AcceptedFinding, KernelSettings, Settings
    from pytest_nvfp4.toolchain.cache import TraceCache
    from pytest_nvfp4.toolchain.request import Entry, TraceRequest
    from pytest_nvfp4.toolchain.sealed_files import RefusedEntry
    from pytest_nvfp4.toolchain.trace import Trace
    from pytest_nvfp4.toolchain.tracer import Tracer


@dataclass(frozen=True)
class KernelCase:
    """One configuration of one kernel on one problem.

    Attributes:
        path: The kernel file.
        settings: Its configuration, with the command line applied.
        problem: The problem.
        label: Text in the brackets of node ids; empty for none.
        error: Why the kernel cannot be traced at all; None if it can.
        traced: Another case whose trace describes this kernel, because a compile for each problem would be wasteful;
            None for this case.
        variant: What distinguishes several cases of a check on one problem. The check defines its values.
    """

    path: Path
    settings: KernelSettings
    problem: Problem
    label: str
    error: str | None = None
    traced: KernelCase | None = None
    variant: str = ""

    @property
    def trace_case(self) -> KernelCase:
        """The case whose trace describes the kernel."""
        return self.traced or self

    def on(self, problem: Problem, *, label: str = "", variant: str = "") -> KernelCase:
        """Return the case of the same configuration on another problem, with this case's trace."""
        parts = (self.settings.name, label or problem.name)
        return KernelCase(self.path, self.settings, problem, _label(*parts), traced=self.trace_case, variant=variant)


class Run:
    """Options, settings and traces, shared by the plugin's hooks and fixtures in one run of pytest.

    Attributes:
        options: Options of the command line and the ini file.
        settings: ``[tool.pytest_nvfp4]`` of the root's pyproject.toml.
        uncollected: Files that pytest visited and no collector accepted.
        make_tracer: Makes the tracer, with the arguments of ``Tracer``; None for one that compiles here.

    Raises:
        pytest.UsageError: The settings, or the problems of the command line, are invalid.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        from pytest_nvfp4.problem import ProblemError
        from pytest_nvfp4.settings import SettingsError, load, matches_any

        self._config = config
        self.options = options
        self.uncollected: list[Path] = []
        self._cases: dict[tuple[Path, bool], list[KernelCase]] = {}
        self._settings: dict[Path, Settings] = {}
        self.make_tracer: Callable[..., Tracer] | None = None
        try:
            self.settings: Settings = load(options.root)
            tables = (table.settings for table in self.settings.tables)
            if not any(settings.contract for settings in (self.settings.default, *tables)) and not self._names_others():
                self.settings.resolve_problems(options.problems)
            # Compile every glob now, so that an invalid one is a usage error instead of a failure during collection.
            matches_any(options.root, options.kernels, root=options.root)
            self.settings.names_kernel(options.root)
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from error
        except ProblemError as error:
            raise pytest.UsageError(f"--nvfp4-problem: {error}") from error
        except re.error as error:
            raise pytest.UsageError(f"a glob of kernel files cannot be used: {error.pattern!r}: {error}") from error

    def _names_others(self) -> bool:
        """Return whether the command line names a file of another project, which may have other problems."""
        here = self._config.invocation_params.dir
        files = (here / each.partition("::")[0] for each in self._config.args)
        return bool(self.options.problems) and any(
            file.is_file() and self.options.snapshots.root_of(file).resolve() != self.settings.root.resolve()
            for file in files
        )

    def settings_of(self, path: Path) -> Settings:
        """Return the settings of a file's project, which is another one than the run's if the file lies elsewhere.

        Raises:
            SettingsError: They cannot be used.
        """
        from pytest_nvfp4.settings import load

        root = self.options.snapshots.root_of(path)
        if root == self.settings.root or root.resolve() == self.settings.root.resolve():
            return self.settings
        if root not in self._settings:
            self._settings[root] = load(root)
        return self._settings[root]

    def accepted(self, path: Path, check: str) -> tuple[AcceptedFinding, ...]:
        """Return the accepted findings of a check of a kernel file; none if its settings cannot be used."""
        from pytest_nvfp4.settings import SettingsError

        try:
            return self.settings_of(path).accepted_of(path, check)
        except SettingsError:
            return ()

    @cached_property
    def cache(self) -> TraceCache:
        """The cache of traces; other caches are folders of its root."""
        from pytest_nvfp4.toolchain.cache import TraceCache

        return TraceCache(self.options.cache)

    @property
    def refused_entries(self) -> Sequence[RefusedEntry]:
        """The entries of caches that this process refused; none if it used no cache."""
        return self.cache.sealed.refused if "cache" in self.__dict__ else ()

    @cached_property
    def tracer(self) -> Tracer:
        """The tracer; the test processes of a run share its results."""
        from pytest_nvfp4.toolchain.tracer import Limits, Tracer

        return (self.make_tracer or Tracer)(
            root=self.options.root,
            cache=self.cache,
            limits=Limits(deadline_s=self.options.timeout_s),
            session=getattr(self._config, "workerinput", {}).get("testrunuid"),  # xdist's id of the whole run
            fresh=bool(self._config.getoption("--nvfp4-fresh")),
            notify=self.notify,
        )

    def notify(self, message: str) -> None:
        """Write a line past pytest's capture; nothing in a test process of xdist.

        Capture belongs to the main thread: what other threads write while a test runs is a part of its output.
        """
        plugins = self._config.pluginmanager
        reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
        if reporter is not None:
            past = contextlib.nullcontext()
            if capture is not None and threading.current_thread() is threading.main_thread():
                past = capture.global_and_fixture_disabled()
            live = plugins.get_plugin("nvfp4-live")
            quiet = contextlib.nullcontext() if live is None else live.quiet()
            with past, quiet, contextlib.suppress(OSError, ValueError):  # a closed terminal
                reporter.ensure_newline()
                reporter.write_line(f"nvfp4: {message}")
                reporter.flush()

    def relative(self, path: Path) -> str:
        """Return a path for messages: relative to the root if it is below it, with control characters escaped."""
        return visible(_below(path, self.options.root) or str(path))

    def argument(self, path: Path) -> str:
        """Return a path as an argument for the shell, relative to the folder that pytest was started in."""
        return visible(shlex.quote(os.path.relpath(path, self.options.here)))

    def portable(self, path: Path) -> str:
        """Return a path that is the same on every machine: relative to its project, or the bare name outside it."""
        return " ".join(visible(_below(path, self.options.snapshots.root_of(path)) or path.name).split())

    def cases(self, path: Path, *, named: bool) -> list[KernelCase]:
        """Return the configurations of a kernel file on their problems; at least one.

        The file is read once in a run: its contract is recognised from its source.

        Args:
            path: The kernel file.
            named: The file is named on the command line, so ``--nvfp4-entry`` applies to it.
        """
        if (path, named) not in self._cases:
            self._cases[path, named] = self._new_cases(path, named=named)
        return list(self._cases[path, named])

    def _new_cases(self, path: Path, *, named: bool) -> list[KernelCase]:
        from pytest_nvfp4.problem import GPUMODE, ProblemError
        from pytest_nvfp4.settings import KernelSettings, SettingsError

        try:
            configured = self.settings_of(path).for_kernel(path, entry=named and self.options.entry is not None)
        except SettingsError as error:
            return [KernelCase(path, KernelSettings(), GPUMODE[0], "", error=str(error))]
        self._warn_of_unread(path)
        cases: list[KernelCase] = []
        for table in configured:
            settings = self._with_options(table, named=named)
            try:
                settings = settings.with_own_problems()
                problems = self.chosen(path, settings) or settings.problems
            except ProblemError as error:
                cases.append(KernelCase(path, settings, GPUMODE[0], settings.name, error=str(error)))
                continue
            if problems is None:
                # An entry may ignore problems, so its node ids name none.
                first = (settings.verify or settings.kernel_contract.tests)[0]
                cases.append(
                    KernelCase(path, settings, first, _label(settings.name, "" if settings.entry else first.name))
                )
            else:
                cases += [
                    KernelCase(path, settings, problem, _label(settings.name, problem.name)) for problem in problems
                ]
        return _with_unique_labels(cases)

    def _warn_of_unread(self, path: Path) -> None:
        """Warn of settings nearer to a kernel than those of this run: commands read them, and pytest does not."""
        from pytest_nvfp4.settings import Settings, SettingsError, find_root, load

        root, nearest = self.settings_of(path).root.resolve(), find_root(path)
        with contextlib.suppress(SettingsError):
            if nearest != root and root in nearest.parents and replace(load(nearest), file=None) != Settings(nearest):
                warnings.warn(
                    pytest.PytestWarning(
                        f"{nearest / 'pyproject.toml'}: its [tool.pytest_nvfp4] is not read in this run, whose root is "
                        f"{root}: move it to {root / 'pyproject.toml'}, or start pytest with --rootdir {nearest}"
                    ),
                    stacklevel=1,
                )

    def chosen(self, path: Path, settings: KernelSettings) -> tuple[Problem, ...]:
        """Return the problems of the command line for a configuration of a file; empty if it names none.

        Raises:
            ProblemError: The file's project has no problem of a name.
        """
        return self.settings_of(path).resolve_problems(self.options.problems, contract=settings.contract)

    def _with_options(self, settings: KernelSettings, *, named: bool) -> KernelSettings:
        return replace(
            settings,
            compile_options=settings.compile_options + self.options.compile_options,
            protected=settings.protected + self.options.protected,
            arch=self.options.arch or settings.arch,
            # Paths of the command line are relative to the folder it was typed in, all others to the root.
            entry=str(self.options.here / self.options.entry) if named and self.options.entry else settings.entry,
        )

    def request(self, case: KernelCase, *, source: str | None = None) -> TraceRequest:
        """Return the request that traces a case.

        Args:
            case: The case.
            source: Origin of its entry, for the error message; the settings' file otherwise.

        Raises:
            EntryError: The entry names no file.
        """
        from pytest_nvfp4.toolchain.request import Entry, TraceRequest

        entry, calls = None, case.settings.entry is None and case.settings.own_contract is not None
        if calls:
            entry = self.called(case, source=source)
        elif case.settings.entry:
            project = self.settings_of(case.path)
            source = source or str(project.file or "--nvfp4-entry")
            entry = Entry.parse(case.settings.entry, root=project.root, source=source)
        return TraceRequest(
            kernel=case.path.resolve(),
            problem=case.problem,
            entry=entry,
            calls=calls,
            arch=case.settings.arch,
            options=case.settings.compile_options,
            readable=case.settings.readable,
            network=case.settings.network,
        )

    def called(self, case: KernelCase, *, source: str | None = None) -> Entry:
        """Return the function that the user's own contract calls. Raises EntryError as `request` does."""
        from pytest_nvfp4.toolchain.request import Entry

        own, project = case.settings, self.settings_of(case.path)
        return Entry.of_call(
            own.call,
            kernel=case.path,
            function=own.called,
            root=project.root,
            source=source or f"{project.file}, call",
        )

    def trace(self, case: KernelCase, *, source: str | None = None) -> Trace:
        """Return the trace of a case; see `request`. Raises EntryError."""
        return self.tracer.trace(self.request(case, source=source))


def _below(path: Path, root: Path) -> str | None:
    """Return a path relative to a folder; None outside of it."""
    for candidate, base in ((path.resolve(), root.resolve()), (path, root)):
        if candidate.is_relative_to(base):
            return candidate.relative_to(base).as_posix()
    return None


def _label(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _with_unique_labels(cases: list[KernelCase]) -> list[KernelCase]:
    """Return the cases, or a single one with an error if two would have the same node id."""
    labels = [case.label for case in cases]
    for label in labels:
        if labels.count(label) > 1:
            error = (
                f"two configurations of {cases[0].path.name} on their problems would both be called [{label}]; "
                "give a [[tool.pytest_nvfp4.kernel]] table or a problem another name"
            )
            return [replace(cases[0], label="", error=error)]
    return cases


def xdist_worker(config: pytest.Config) -> str | None:
    """Return the name of this process if it is a test process of xdist."""
    return getattr(config, "workerinput", {}).get("workerid")


def is_xdist_worker(config: pytest.Config) -> bool:
    """Return whether this process is a test process of xdist."""
    return hasattr(config, "workerinput")


RUN = pytest.StashKey[Run]()
CASE = pytest.StashKey[KernelCase]()
"""Case of a check item; other items have none."""
