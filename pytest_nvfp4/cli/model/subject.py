"""Kernels whose time is modelled, and that are profiled: those under a contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.cli.simulation import runnable
from pytest_nvfp4.cli.subject import relative
from pytest_nvfp4.problem import Problem

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.finding import Finding

_FAMILY = "gpumode"


@dataclass(frozen=True)
class Subject:
    """A kernel to be modelled.

    Attributes:
        label: The file as the user named it.
        spec: The kernel as part of a job.
        base: The folder its files are relative to.
        root: The folder that paths are shown relative to.
        cases: The calls to model.
        verified: Problems that it is verified on.
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


def subject_of(kernel: Path, names: Sequence[str], *, arch: str | None, configuration: str | None) -> Subject:
    """Return the kernel at a path, with its settings and the calls to model.

    Args:
        kernel: Its file.
        names: Problems of the command line; if empty, the first of the kernel's own.
        arch: Architecture of the command line.
        configuration: Name of one of several configurations.

    Raises:
        InputError: The file is not a kernel that can be run, or it cannot be read.
        SettingsError, ProblemError, EntryError: A setting or the name of a problem is invalid.
    """
    found = runnable(kernel, names, arch=arch, configuration=configuration, simulated=True)
    return Subject(found.label, found.spec, found.base, found.root, tuple(found.cases([_FAMILY])), found.verified)
