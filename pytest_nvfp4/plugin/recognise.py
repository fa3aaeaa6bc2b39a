"""Which files are kernels: named on the command line or covered by the settings, told from their source alone."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.toolchain.source import read_source, syntax_problem

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.source import KernelSource

_LAUNCHES = re.compile(rb"\.launch\s*\(")


@dataclass(frozen=True, slots=True)
class Claim:
    """What is known of a file that is to be checked as a kernel.

    Attributes:
        named: It was named on the command line.
        tests: It also holds tests, which stay pytest's own.
    """

    named: bool
    tests: bool


def claim(path: Path, *, run: Run, config: pytest.Config, named: bool) -> Claim | None:
    """Decide whether a file is to be checked as a kernel.

    It is when the settings configure it with an entry or by its very path, or when it is named on the command line or
    covered by a glob of the settings and is a kernel: it defines ``custom_kernel``, or it launches a kernel and so
    lacks an entry. A file of a folder of kernels that does neither is a helper of theirs.

    Args:
        path: A file that pytest came across.
        run: The settings.
        config: pytest's own, which says what a test module is called.
        named: It was named on the command line.
    """
    if path.suffix != ".py" or path.name in ("conftest.py", "__init__.py"):
        return None
    covered, configured = _covered(path, run)
    if not (named or covered or configured):
        return None
    source = read_source(path)
    tests = source is not None and any(name.startswith(("test", "Test")) for name in source.functions)
    test_module = _is_test_module(path, config)
    by_entry = named and run.options.entry is not None and not (test_module and (tests or source is None))
    if configured or by_entry:
        return Claim(named, tests)
    if source is None:
        return None
    if source.defines_contract:
        theirs = test_module and tests and not covered
        return None if theirs else Claim(named, tests and (named or test_module))
    if tests or test_module:
        return None
    return Claim(named, tests=False) if named or _launches(path) else None


def _covered(path: Path, run: Run) -> tuple[bool, bool]:
    """Whether a glob of the settings fits a file, and whether they speak of this very file or have an entry for it."""
    from pytest_nvfp4.settings import SettingsError, fits_any

    if not run.options.kernels and not run.settings.tables:
        return False, False
    by_ini = fits_any(path, run.options.kernels, root=run.options.root)
    if not run.settings.names_kernel(path):
        return by_ini, False
    try:
        entries = any(table.entry for table in run.settings.for_kernel(path))
    except SettingsError:
        return True, True  # said by the kernel's own items
    relative = run.portable(path)
    return True, entries or any(table.path == relative for table in run.settings.tables)


def _is_test_module(path: Path, config: pytest.Config) -> bool:
    """Whether pytest's own rules make a file a test module."""
    patterns = config.getini("python_files")
    return any(fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(str(path), pattern) for pattern in patterns)


def _launches(path: Path) -> bool:
    try:
        return _LAUNCHES.search(path.read_bytes()) is not None
    except OSError:
        return False


def lacks_entry(path: Path, run: Run) -> str | None:
    """Why a file without a configured entry cannot be checked: it does not define ``custom_kernel``.

    None when it can, and when it is not even Python, which its compile then says with the line.
    """
    source: KernelSource | None = read_source(path)
    if (source is not None and source.defines_contract) or syntax_problem(path) is not None:
        return None
    shown = run.relative(path)
    uses = "imports cutlass but " if source is not None and source.mentions_dsl else ""
    return (
        f"{shown} {uses}defines no custom_kernel(data), and no entry is configured for it.\n"
        "A kernel outside GPU MODE's contract is checked through a function of yours that compiles or launches it:\n"
        f"    pytest {run.typed(path)} --nvfp4-entry FILE::FUNCTION\n"
        "or, for good, in pyproject.toml:\n"
        "    [[tool.pytest_nvfp4.kernel]]\n"
        f'    path = "{shown}"\n'
        '    entry = "FILE::FUNCTION"\n'
        "If it only helps other kernels, keep it out of nvfp4_kernels, or out of collection with collect_ignore."
    )


def overlooked(paths: list[Path]) -> list[Path]:
    """The files among those that nobody collected that are kernels under the contract."""
    found = []
    for path in paths:
        source = read_source(path)
        if source is not None and source.defines_contract:
            found.append(path)
    return found


def named_without_kernel(config: pytest.Config) -> list[Path]:
    """The files named on the command line in which there is nothing of a kernel, and which are no test modules."""
    paths = [config.invocation_params.dir / str(argument).partition("::")[0] for argument in config.args]
    return [
        path
        for path in dict.fromkeys(paths)
        if path.suffix == ".py"
        and path.is_file()
        and path.name not in ("conftest.py", "__init__.py")
        and not _is_test_module(path, config)
        and read_source(path) is None
    ]
