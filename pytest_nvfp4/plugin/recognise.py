"""Recognition of kernel files from the command line, the settings and their source, without importing them."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.settings import SettingsError, matches_any
from pytest_nvfp4.toolchain.source import KernelSource, read_source, syntax_problem

_LAUNCHES = re.compile(rb"\.launch\s*\(")


def recognise(path: Path, *, run: Run, config: pytest.Config, named: bool) -> bool | None:
    """Return whether a kernel file also contains tests, which pytest collects; None if it is not checked as a kernel.

    It is checked if the settings configure it with an entry or by its exact path. It also is if it is named on the
    command line or covered by a glob of the settings, and either defines ``custom_kernel`` or launches a kernel and so
    lacks an entry. Another file in a folder of kernels is a helper.

    ``named`` files are named on the command line; ``config`` has the patterns of test modules.
    """
    if path.suffix != ".py" or path.name in ("conftest.py", "__init__.py"):
        return None
    covered, configured = _covered(path, run, named=named)
    if not (named or covered or configured):
        return None
    source = read_source(path)
    tests = source is not None and any(name.startswith(("test", "Test")) for name in source.functions)
    test_module = _is_test_module(path, config)
    by_entry = named and run.options.entry is not None and not (test_module and (tests or source is None))
    if configured or by_entry:
        return tests
    if source is None:
        return None
    if source.defines_contract:
        if test_module and tests and not covered:
            return None
        return tests and (named or test_module)
    if tests or test_module:
        return None
    return False if named or _launches(path) else None


def _covered(path: Path, run: Run, *, named: bool) -> tuple[bool, bool]:
    """Return whether a glob of the settings matches a file, and whether they name its exact path or an entry.

    They are those of the run; for a file that the command line names, those of its project.
    """
    try:
        settings = run.settings_of(path) if named else run.settings
        if not run.options.kernels and not settings.tables:
            return False, False
        by_ini = matches_any(path, run.options.kernels, root=run.options.root)
        if not settings.names_kernel(path):
            return by_ini, False
        entries = any(table.entry for table in settings.for_kernel(path))
    except SettingsError:
        return True, True  # the kernel's items report the error
    relative = run.portable(path)
    return True, entries or any(table.path == relative for table in settings.tables)


def _is_test_module(path: Path, config: pytest.Config) -> bool:
    """Return whether pytest's rules make a file a test module."""
    patterns = config.getini("python_files")
    return any(fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(str(path), pattern) for pattern in patterns)


def _launches(path: Path) -> bool:
    try:
        return _LAUNCHES.search(path.read_bytes()) is not None
    except OSError:
        return False


def lacks_entry(path: Path, run: Run) -> str | None:
    """Return why a file without a configured entry cannot be checked: it does not define ``custom_kernel``.

    None if it can be checked, and also if it is no valid Python, because its compile reports that with the line.
    """
    source: KernelSource | None = read_source(path)
    if (source is not None and source.defines_contract) or syntax_problem(path) is not None:
        return None
    shown = run.relative(path)
    uses = "imports cutlass but " if source is not None and source.mentions_dsl else ""
    return (
        f"{shown} {uses}defines no custom_kernel(data), and no entry is configured for it.\n"
        "A kernel outside GPU MODE's contract is checked through a function that compiles or launches it:\n"
        f"    pytest {run.argument(path)} --nvfp4-entry FILE::FUNCTION\n"
        "or permanently in pyproject.toml:\n"
        "    [[tool.pytest_nvfp4.kernel]]\n"
        f'    path = "{shown}"\n'
        '    entry = "FILE::FUNCTION"\n'
        "If it only helps other kernels, keep it out of nvfp4_kernels, or out of collection with collect_ignore."
    )


def overlooked(paths: list[Path]) -> list[Path]:
    """Return those of the uncollected files that define ``custom_kernel``."""
    return [path for path in paths if (source := read_source(path)) is not None and source.defines_contract]


def named_without_kernel(config: pytest.Config) -> list[Path]:
    """Return the files named on the command line that contain no kernel and are no test modules."""
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
