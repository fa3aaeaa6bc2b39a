"""Kernels whose time is modelled: those under GPU MODE's contract, and those with an ``exercise``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.simulation import runnable
from pytest_nvfp4.cli.subject import check_kernel_file, configured, relative
from pytest_nvfp4.problem import GPUMODE, Problem
from pytest_nvfp4.settings import KernelSettings, find_root, load
from pytest_nvfp4.toolchain.request import Entry

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.finding import Finding

OWN_INPUTS = "inputs of its own"
"""Name of the problem of a kernel that is called by its ``exercise``."""
_FAMILY = "gpumode"
_ELSE_EXERCISE = (
    "name a function that calls the kernel on inputs of its own with --exercise [FILE::]FUNCTION, or as `exercise` in "
    "[tool.pytest_nvfp4] of pyproject.toml"
)
"""Advice for a kernel without custom_kernel(data)."""


@dataclass(frozen=True)
class Subject:
    """A kernel to be modelled.

    Attributes:
        label: The file as the user named it.
        spec: The kernel as part of a job.
        base: The folder its files are relative to.
        root: The folder that paths are shown relative to.
        cases: The calls to model.
        verified: Problems that it is verified on; empty if its exercise judges its own results.
    """

    label: str
    spec: KernelSpec
    base: Path
    root: Path
    cases: tuple[JobCase, ...]
    verified: tuple[Problem, ...] = ()

    def finding_text(self, finding: Finding) -> str:
        """Return a finding as text, with its file relative to the root."""
        return str(replace(finding, file=finding.file and relative(finding.file, self.root)))


def subject_of(
    kernel: Path, names: Sequence[str], *, arch: str | None, configuration: str | None, exercise: str | None
) -> Subject:
    """Return the kernel at a path, with its settings and the calls to model.

    Args:
        kernel: Its file.
        names: Problems of the command line; if empty, the first of the kernel's own.
        arch: Architecture of the command line.
        configuration: Name of one of several configurations.
        exercise: ``[FILE::]FUNCTION`` that calls the kernel on inputs of its own; None for that of the settings, if the
            kernel has an entry there.

    Raises:
        InputError: The file is not a kernel that can be run, it cannot be read, or problems are named for a kernel
            that has inputs of its own.
        SettingsError, ProblemError, EntryError: A setting, the name of a problem or the exercise is invalid.
    """
    label = str(kernel)
    check_kernel_file(kernel, label=label, has_entry=True)
    path = kernel.resolve()
    root = find_root(path)
    settings = load(root)
    own = configured(settings, path, name=configuration, label=label)
    if exercise is None and own.exercise is None:
        if own.entry is not None:
            raise InputError(f"{label}: has an entry in its settings; {_ELSE_EXERCISE}")
        check_kernel_file(path, label=label, has_entry=False, way=_ELSE_EXERCISE)
        found = runnable(kernel, names, arch=arch, configuration=configuration, simulated=True)
        return Subject(
            found.label, found.spec, found.base, found.root, tuple(found.cases([_FAMILY])), own.verify or GPUMODE
        )
    if names:
        raise InputError(f"{label}: its exercise has {OWN_INPUTS}: leave out --problem")
    if exercise is not None:
        file, _, function = exercise.rpartition("::")
        entry = Entry.parse(f"{file or path}::{function}", root=Path.cwd(), source="--exercise")
    else:
        entry = Entry.parse(str(own.exercise), root=root, source=f"{settings.file}, exercise")
    spec, base = _spec(path, entry, own if arch is None else replace(own, arch=arch), label=label)
    return Subject(label, spec, base, settings.root, (_own_inputs(),))


def _spec(path: Path, entry: Entry, own: KernelSettings, *, label: str) -> tuple[KernelSpec, Path]:
    from pytest_nvfp4.device.job import KernelSpec

    try:
        return KernelSpec.from_files(path, entry=entry.function, entry_file=entry.file, **own.of_job)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{label}: cannot be read: {error}") from error


def _own_inputs() -> JobCase:
    from pytest_nvfp4.device.job import JobCase, ProblemSpec

    return JobCase(problem=ProblemSpec(name=OWN_INPUTS, sizes=(), seed=0), family=_FAMILY)
