"""What is to be traced: a kernel, on a problem, for an architecture, with which toolchain."""

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
    """An entry that is not of the form FILE::FUNCTION or names no file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A function of the user's that compiles or launches a kernel: ``FILE::FUNCTION``."""

    file: Path
    function: str

    @classmethod
    def parse(cls, text: str, *, root: Path, source: str) -> Entry:
        """Read ``FILE::FUNCTION``; FILE is relative to ``root``; ``source`` says where the text comes from.

        Raises:
            EntryError: it is not of that form, or the file does not exist.
        """
        file, separator, function = text.rpartition("::")
        if not separator or not file or not function.isidentifier():
            raise EntryError(f"{source}: entry {text!r} is not FILE::FUNCTION, such as kernels/build.py::compile_it")
        path = (root / file).resolve()
        if not path.is_file():
            raise EntryError(f"{source}: entry {text!r} names {path}, which does not exist")
        return cls(path, function)

    def __str__(self) -> str:
        return f"{self.file.name}::{self.function}"


@lru_cache(maxsize=1)
def installed_dsl_version() -> str | None:
    """Version of the DSL in this environment, or None where it is not installed. It is not imported."""
    try:
        return importlib.metadata.version(DSL_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Python that has the DSL, and the versions of both."""

    python: Path
    python_version: str
    dsl_version: str

    @classmethod
    def current(cls) -> Toolchain:
        """The interpreter that runs this, with the DSL installed beside it (``none`` where there is none)."""
        return cls(Path(sys.executable), platform.python_version(), installed_dsl_version() or "none")


@dataclass(frozen=True)
class TraceRequest:
    """One kernel on one problem in one configuration.

    Attributes:
        kernel: The kernel file.
        problem: What it is asked to compute.
        entry: The function that compiles it; None for a kernel under GPU MODE's contract.
        arch: Architecture to compile for, such as ``sm_100a``.
        options: Compile options on top of the kernel's own, as the DSL spells them.
        roots: Folders whose Python files count as the user's; the kernel's folder always does.
        capture: Record layouts. Switched off only to show that the capture changes nothing.
        toolchain: Which Python and DSL compile it.
    """

    kernel: Path
    problem: Problem
    entry: Entry | None = None
    arch: str = DEFAULT_ARCH
    options: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    capture: bool = True
    toolchain: Toolchain = field(default_factory=Toolchain.current)

    @cached_property
    def all_roots(self) -> tuple[Path, ...]:
        """The folders whose files are the user's, without repeats."""
        folders = [*self.roots, self.kernel.parent, *([self.entry.file.parent] if self.entry else [])]
        return tuple(dict.fromkeys(folder.resolve() for folder in folders))
