"""Command-line options and ini settings about kernels, snapshots and reports."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_nvfp4.plugin.places import Places
from pytest_nvfp4.sandbox_mode import MODE_VARIABLE, MODES, Mode, mode_from

SEVERITIES = ("cosmetic", "renested", "same-function", "permuted", "different")
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line and the ini file.

    Attributes:
        root: The folder that paths are relative to.
        here: The folder that pytest was started in, which paths of the command line are relative to.
        kernels: Globs of kernel files (ini ``nvfp4_kernels``).
        snapshots: The folders of the snapshots.
        fail_on: The mildest layout change that fails.
        protected: Patterns of protected layouts, which change only if they are named.
        unprotect: Protected layouts that may change in this run.
        entry: ``FILE::FUNCTION`` for the kernel files named on the command line.
        arch: Architecture for every kernel; None for that of the settings.
        problems: Problems for every kernel; empty for those of the settings.
        compile_options: Options in addition to those of the settings.
        timeout_s: Timeout of a compile in seconds.
        cache: Folder of the caches; None for the default.
        html: File of the HTML report; None for none.
        markdown: File of the Markdown report; None for none.
        json: File of the report as JSON; None for none.
        checks: Names of the only checks to run, in this order; empty for all.
        update: ``--snapshot-update``: write snapshots that differ, and remove unused ones.
        cleanup: Remove unused snapshots when updating; False with ``--snapshot-no-cleanup``.
        warn_unused: Unused snapshots do not fail the run (``--snapshot-warn-unused``).
        find_unused: Search for unused snapshots; False with ``--snapshot-disable-unused``.
        sandbox: Mode of the sandbox around processes that run a kernel's code.
        accepted: Whether findings that the settings accept fail no check.
    """

    root: Path
    here: Path
    kernels: tuple[str, ...]
    snapshots: Places
    fail_on: str
    protected: tuple[str, ...]
    unprotect: tuple[str, ...]
    entry: str | None
    arch: str | None
    problems: tuple[str, ...]
    compile_options: tuple[str, ...]
    timeout_s: float
    cache: Path | None
    html: Path | None
    markdown: Path | None
    json: Path | None
    checks: tuple[str, ...]
    update: bool
    cleanup: bool
    warn_unused: bool
    find_unused: bool
    sandbox: Mode
    accepted: bool

    @property
    def about_kernels(self) -> tuple[str, ...]:
        """Arguments of the command line that select kernels and configure their compiles."""
        given = [("entry", self.entry), ("arch", self.arch), *(("problem", problem) for problem in self.problems)]
        given += [("compile-option", option) for option in self.compile_options]
        return tuple(f"--nvfp4-{name}={value}" for name, value in given if value)


def add(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("nvfp4", "NVFP4 kernels (pytest-nvfp4)")
    group.addoption(
        "--nvfp4-entry",
        metavar="FILE::FUNCTION",
        help="function that compiles or launches the kernel files named on the command line, for kernels that do not "
        "define custom_kernel(data)",
    )
    group.addoption(
        "--nvfp4-arch", metavar="ARCH", help="architecture to compile for (default: settings, else sm_100a)"
    )
    group.addoption(
        "--nvfp4-problem",
        action="append",
        default=[],
        metavar="NAME",
        help="problem to check on: a name such as gpumode-0 or gpumode, one of [tool.pytest_nvfp4.problems], or a "
        "shape MxNxK[,MxNxK...]; may be repeated",
    )
    group.addoption(
        "--nvfp4-compile-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="compile option in addition to the kernel's own, in the DSL's spelling and in one word with this option: "
        "'--nvfp4-compile-option=--opt-level 2'; may be repeated",
    )
    group.addoption(
        "--nvfp4-fail-on",
        choices=SEVERITIES,
        help="mildest layout change that fails a check (default: ini nvfp4_fail_on, else permuted)",
    )
    group.addoption(
        "--nvfp4-unprotect",
        action="append",
        default=[],
        metavar="NAME",
        help="let --snapshot-update change this protected layout (a name or pattern); may be repeated",
    )
    group.addoption("--nvfp4-timeout", type=float, metavar="SECONDS", help="timeout of a compile (default: 300)")
    group.addoption("--nvfp4-cache-dir", metavar="DIR", help="folder of the caches (default: the user's cache folder)")
    group.addoption(
        "--nvfp4-sandbox",
        choices=MODES,
        help="sandbox around every process that runs a kernel's code: auto (all parts that this machine has), require "
        "(fail if one is missing), off (default: ini nvfp4_sandbox, else auto)",
    )
    group.addoption(
        "--nvfp4-accepted",
        choices=("on", "off"),
        default="on",
        help="whether findings that [[tool.pytest_nvfp4.accepted]] lists fail no check (default: on)",
    )
    group.addoption("--nvfp4-html", metavar="FILE", help="write a self-contained HTML report")
    group.addoption("--nvfp4-md", metavar="FILE", help="write a Markdown report, for a pull request comment")
    group.addoption("--nvfp4-json", metavar="FILE", help="write the report as JSON, for programs")
    group.addoption(
        "--nvfp4-check",
        action="append",
        default=[],
        metavar="NAME",
        help="run only this check of the kernels, and no other test; may be repeated, and the checks run in this order",
    )
    parser.addini("nvfp4_kernels", "globs of kernel files, relative to the root", type="args", default=[])
    parser.addini("nvfp4_snapshots", "folder of the snapshots, relative to the kernel's project", default="snapshots")
    parser.addini("nvfp4_fail_on", f"mildest layout change that fails: {', '.join(SEVERITIES)}", default="permuted")
    parser.addini(
        "nvfp4_protected", "patterns of layouts that --snapshot-update does not change", type="args", default=[]
    )
    parser.addini("nvfp4_sandbox", f"sandbox around kernels: {', '.join(MODES)}", default="")
    parser.addini("nvfp4_timeout", "timeout of a compile in seconds", type="float", default=300.0)


def read(config: pytest.Config) -> Options:
    """Read the options. Raises pytest.UsageError if a value cannot be used."""
    here = config.invocation_params.dir
    arch = config.getoption("--nvfp4-arch")
    if arch is not None and not _ARCH.fullmatch(arch):
        raise pytest.UsageError(f"--nvfp4-arch {arch!r} is not an architecture such as sm_100a")
    return Options(
        root=config.rootpath,
        here=here,
        kernels=tuple(config.getini("nvfp4_kernels")),
        snapshots=_snapshots(config),
        fail_on=_fail_on(config),
        protected=tuple(config.getini("nvfp4_protected")),
        unprotect=tuple(config.getoption("--nvfp4-unprotect")),
        entry=_entry(config),
        arch=arch,
        sandbox=_sandbox(config),
        problems=tuple(config.getoption("--nvfp4-problem")),
        compile_options=tuple(config.getoption("--nvfp4-compile-option")),
        timeout_s=_timeout(config),
        cache=_path(config, "--nvfp4-cache-dir"),
        html=_output(config, "--nvfp4-html"),
        markdown=_output(config, "--nvfp4-md"),
        json=_output(config, "--nvfp4-json"),
        checks=tuple(dict.fromkeys(config.getoption("--nvfp4-check"))),
        update=bool(config.getoption("update_snapshots", default=False)),
        cleanup=not config.getoption("no_cleanup", default=False),
        warn_unused=bool(config.getoption("warn_unused_snapshots", default=False)),
        accepted=config.getoption("--nvfp4-accepted") == "on",
        find_unused=not config.getoption("disable_unused_snapshots", default=False),
    )


def _fail_on(config: pytest.Config) -> str:
    fail_on = str(config.getoption("--nvfp4-fail-on") or config.getini("nvfp4_fail_on"))
    if fail_on not in SEVERITIES:
        raise pytest.UsageError(f"ini nvfp4_fail_on = {fail_on!r} must be one of {', '.join(SEVERITIES)}")
    return fail_on


def _timeout(config: pytest.Config) -> float:
    given = config.getoption("--nvfp4-timeout")
    try:
        seconds = float(config.getini("nvfp4_timeout") if given is None else given)
    except (TypeError, ValueError, pytest.UsageError) as error:  # pytest 9.2 raises the last one instead of the others
        raise pytest.UsageError(f"ini nvfp4_timeout is not a number of seconds: {error}") from error
    if not seconds > 0:
        name = "ini nvfp4_timeout =" if given is None else "--nvfp4-timeout"
        raise pytest.UsageError(f"{name} {seconds:g} must be more than zero seconds")
    return seconds


def _snapshots(config: pytest.Config) -> Places:
    given = str(config.getini("nvfp4_snapshots"))
    folder = Path(given)
    if not given or folder.is_absolute() or ".." in folder.parts or not folder.parts:
        raise pytest.UsageError(f"ini nvfp4_snapshots = {given!r} must be a folder below the root, such as snapshots")
    taken = str(config.getoption("snapshot_dirname", default=""))
    if taken in folder.parts or taken == str(config.rootpath / folder):
        # syrupy removes unknown files below its folder
        raise pytest.UsageError(
            f"ini nvfp4_snapshots = {given!r} is inside syrupy's own folder of snapshots (--snapshot-dirname {taken}): "
            "choose another folder for one of them"
        )
    configured = config.inipath is not None or config.getoption("rootdir", default=None) is not None
    return Places(config.rootpath if configured else None, folder)


def _sandbox(config: pytest.Config) -> Mode:
    given = config.getoption("--nvfp4-sandbox") or config.getini("nvfp4_sandbox")
    if given and given not in MODES:
        raise pytest.UsageError(f"ini nvfp4_sandbox = {given!r} must be one of {', '.join(MODES)}")
    try:
        return mode_from({MODE_VARIABLE: given} if given else os.environ)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _entry(config: pytest.Config) -> str | None:
    from pytest_nvfp4.toolchain.request import Entry, EntryError

    entry: str | None = config.getoption("--nvfp4-entry")
    if entry is None:
        return None
    try:
        Entry.parse(entry, root=config.invocation_params.dir, source="--nvfp4-entry")
    except EntryError as error:
        raise pytest.UsageError(str(error)) from error
    if not any(str(argument).split("::")[0].endswith(".py") for argument in config.args):
        raise pytest.UsageError(
            f"--nvfp4-entry {entry} is for a kernel file named on the command line, and none is; for the kernels of a "
            "folder, write an entry into [[tool.pytest_nvfp4.kernel]] of pyproject.toml"
        )
    return entry


def _path(config: pytest.Config, name: str) -> Path | None:
    given = config.getoption(name)
    return (config.invocation_params.dir / given).resolve() if given else None


def _output(config: pytest.Config, name: str) -> Path | None:
    """Return the path of an output file. Raises pytest.UsageError if it cannot be written."""
    path = _path(config, name)
    if path is None:
        return None
    if path.is_dir():
        raise pytest.UsageError(f"{name} {path} is a folder: name the file to write")
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise pytest.UsageError(f"{name} {path} cannot be written: {above} is a file")
    return path
