"""Kernels whose time is modelled: those under GPU MODE's contract, and those with an ``exercise``."""

from __future__ import annotations

import ast
import difflib
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.simulation import runnable
from pytest_nvfp4.cli.subject import check_kernel_file, configured, relative
from pytest_nvfp4.problem import GPUMODE, Problem
from pytest_nvfp4.settings import KernelSettings, find_root, load
from pytest_nvfp4.toolchain.module_constants import bound_names, constants
from pytest_nvfp4.toolchain.request import Entry
from pytest_nvfp4.toolchain.trace_archive import SUFFIX

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
        InputError: The file is not a kernel that can be run, it cannot be read, its exercise is no function that can be
            called without arguments, or problems are named for a kernel that has inputs of its own.
        SettingsError, ProblemError, EntryError: A setting, the name of a problem or the exercise is invalid.
    """
    label = str(kernel)
    if kernel.suffix == SUFFIX:
        found = runnable(kernel, names, arch=arch, configuration=configuration, simulated=True)
        return Subject(found.label, found.spec, found.base, found.root, tuple(found.cases([_FAMILY])), found.problems)
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
        source, folder, text = "--exercise", Path.cwd(), f"{file or path}::{function}"
    else:
        source, folder, text = f"{settings.file}, exercise", root, str(own.exercise)
    entry = Entry.parse(text, root=folder, source=source)
    _require_function(entry, source)
    spec, base = _spec(path, entry, own if arch is None else replace(own, arch=arch), label=label)
    return Subject(label, spec, base, settings.root, (_own_inputs(),))


def _require_function(entry: Entry, source: str) -> None:
    """Check, from the file's text, that it binds the function and that no argument of it is missing.

    A name that is imported, or that a call makes, may be a function; that is seen only when it is called.

    Raises:
        InputError: The name is not bound, or is bound to what is no such function.
    """
    try:
        with tokenize.open(entry.file) as file:
            text = file.read()
        module, known = ast.parse(text), constants(text)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{source}: {entry.file} cannot be read: {error}") from error
    bound = {name for name, _ in bound_names(module)}
    if {"*", "__getattr__"} & bound:
        return
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    others = "it has no functions" if not functions else f"its functions are {', '.join(functions)}"
    if entry.function not in bound or entry.function in known:
        near = difflib.get_close_matches(entry.function, functions, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"{source}: {entry.file} has no function {entry.function}{hint}; {others}")
    own = functions.get(entry.function)
    if own is not None and not own.decorator_list and (missing := _required(own.args)):
        raise InputError(
            f"{source}: {entry.function} in {entry.file}:{own.lineno} needs {', '.join(missing)}, and is called "
            f"without arguments; {others}"
        )


def _required(arguments: ast.arguments) -> list[str]:
    """Return the names of the parameters without a default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    first = positional[: len(positional) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [each.arg for each in (*first, *(each for each, default in named if default is None))]


def _spec(path: Path, entry: Entry, own: KernelSettings, *, label: str) -> tuple[KernelSpec, Path]:
    from pytest_nvfp4.device.job import KernelSpec

    try:
        return KernelSpec.from_files(path, entry=entry.function, entry_file=entry.file, **own.of_job)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{label}: cannot be read: {error}") from error


def _own_inputs() -> JobCase:
    from pytest_nvfp4.device.job import JobCase, ProblemSpec

    return JobCase(problem=ProblemSpec(name=OWN_INPUTS, sizes=(), seed=0), family=_FAMILY)
