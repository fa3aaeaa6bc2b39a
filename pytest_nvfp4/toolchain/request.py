"""Trace requests: kernel, problem, architecture, options and toolchain."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from pytest_nvfp4.problem import Problem

DSL_DISTRIBUTION = "nvidia-cutlass-dsl"
DEFAULT_ARCH = "sm_100a"


class EntryError(ValueError):
    """Entry that is not FILE::FUNCTION or whose file does not exist."""


@dataclass(frozen=True, slots=True)
class Entry:
    """User function that compiles or launches a kernel: ``FILE::FUNCTION``."""

    file: Path
    function: str

    @classmethod
    def parse(cls, text: str, *, root: Path, source: str) -> Entry:
        """Parse ``FILE::FUNCTION`` with FILE relative to ``root``; ``source`` is the origin of the text for messages.

        Raises:
            EntryError: another form, or the file does not exist.
        """
        file, separator, function = text.rpartition("::")
        if not separator or not file or not function.isidentifier():
            raise EntryError(f"{source}: entry {text!r} is not FILE::FUNCTION, such as kernels/build.py::compile_it")
        path = (root / file).resolve()
        if not path.is_file():
            raise EntryError(f"{source}: entry {text!r} names {path}, which does not exist")
        return cls(path, function)

    @classmethod
    def of_call(cls, text: str | None, *, kernel: Path, function: str, root: Path, source: str) -> Entry:
        """Return the function that a contract of the user's own calls: the one named, else one of the kernel's file.

        Raises:
            EntryError: See `parse`.
        """
        return cls(kernel.resolve(), function) if text is None else cls.parse(text, root=root, source=source)

    def __str__(self) -> str:
        return f"{self.file.name}::{self.function}"


@lru_cache(maxsize=1)
def installed_dsl_version() -> str | None:
    """Return the version of the DSL in this environment without importing it, or None."""
    try:
        return importlib.metadata.version(DSL_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Python interpreter with the DSL, and the versions of both."""

    python: Path
    python_version: str
    dsl_version: str

    @classmethod
    def current(cls) -> Toolchain:
        """Return the running interpreter with its installed DSL (version ``none`` without one)."""
        return cls(Path(sys.executable), platform.python_version(), installed_dsl_version() or "none")


@dataclass(frozen=True)
class TraceRequest:
    """One kernel on one problem in one configuration.

    Attributes:
        kernel: The kernel file.
        problem: Problem that it computes.
        entry: Function that compiles it; None for a kernel under GPU MODE's contract.
        calls: Whether the entry takes the arguments of the problem's contract.
        arch: Architecture to compile for, such as ``sm_100a``.
        options: Compile options that override the kernel's own, in the DSL's spelling.
        roots: Folders whose Python files belong to the user, in addition to the kernel's folder.
        capture: Whether to record layouts; False only in tests that capturing changes nothing.
        toolchain: Python and DSL that compile it.
        readable: Files and folders that it may read besides its own (see ``own_files``).
        network: Whether it may use the network.
    """

    kernel: Path
    problem: Problem
    entry: Entry | None = None
    calls: bool = False
    arch: str = DEFAULT_ARCH
    options: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    capture: bool = True
    toolchain: Toolchain = field(default_factory=Toolchain.current)
    readable: tuple[str, ...] = ()
    network: bool = False

    @cached_property
    def all_roots(self) -> tuple[Path, ...]:
        """All folders of the user's files, without repeats."""
        folders = [*self.roots, self.kernel.parent, *([self.entry.file.parent] if self.entry else [])]
        return tuple(dict.fromkeys(folder.resolve() for folder in folders))
