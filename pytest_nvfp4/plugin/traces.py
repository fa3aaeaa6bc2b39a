"""The ``nvfp4_trace`` fixture: traces of kernels for a user's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.failure import CheckFailure, fails_at_caller, not_compiled
from pytest_nvfp4.plugin.state import KernelCase, Run

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace


@dataclass(frozen=True, slots=True)
class TraceFactory:
    """Factory of traces: ``nvfp4_trace("kernels/x.py", problem="96x128x256")``."""

    _run: Run

    @fails_at_caller
    def __call__(
        self,
        kernel: str | Path,
        *,
        entry: str | None = None,
        problem: str | None = None,
        configuration: str | None = None,
        arch: str | None = None,
        compile_options: Sequence[str] = (),
        check: bool = True,
    ) -> Trace:
        """Compile a kernel without a device.

        Args:
            kernel: The kernel file, relative to the root.
            entry: ``FILE::FUNCTION`` relative to the root, or the name of a function in the kernel file.
            problem: A problem's name or shape; the first of the kernel's settings otherwise.
            configuration: The ``name`` of a ``[[tool.pytest_nvfp4.kernel]]`` table; the first that matches otherwise.
            arch: Architecture; that of the settings otherwise.
            compile_options: Options in addition to those of the kernel and the settings.
            check: Fail the test if the kernel does not compile; False to get the failed trace.

        Raises:
            CheckFailure: The kernel does not compile, or an argument cannot be used.
        """
        from pytest_nvfp4.problem import ProblemError
        from pytest_nvfp4.toolchain.request import EntryError

        path = self._run.options.root / kernel
        if not path.is_file():
            raise CheckFailure(
                f"nvfp4_trace({str(kernel)!r}): there is no file {path}; a kernel's path is relative to the root"
            )
        case = self._case(path, configuration)
        settings = case.settings
        if entry is not None:
            settings = replace(settings, entry=entry if "::" in entry else f"{path}::{entry}")
        if arch is not None:
            settings = replace(settings, arch=arch)
        more = (compile_options,) if isinstance(compile_options, str) else tuple(compile_options)
        settings = replace(settings, compile_options=settings.compile_options + more)
        try:
            chosen = self._run.settings_of(case.path).resolve_problems([problem])[0] if problem else case.problem
            trace = self._run.trace(replace(case, settings=settings, problem=chosen), source="entry")
        except (ProblemError, EntryError) as error:
            raise CheckFailure(f"nvfp4_trace({str(kernel)!r}): {error}", file=str(path)) from error
        if check and not trace.ok:
            raise not_compiled(trace, self._run)
        return trace

    def _case(self, path: Path, configuration: str | None) -> KernelCase:
        cases = self._run.cases(path, named=False)
        if cases[0].error:
            raise CheckFailure(cases[0].error, file=str(path))
        if configuration is None:
            return cases[0]
        for case in cases:
            if case.settings.name == configuration:
                return case
        known = ", ".join(dict.fromkeys(repr(case.settings.name) for case in cases))
        raise CheckFailure(
            f"nvfp4_trace: {self._run.relative(path)} has no configuration {configuration!r}; known are {known}"
        )
