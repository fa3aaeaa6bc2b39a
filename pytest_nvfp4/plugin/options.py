"""Command-line options and ini settings of the plugin, read once into one typed value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

SEVERITIES = ("cosmetic", "renested", "same-function", "permuted", "different")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for on the command line and in the ini file.

    Attributes:
        root: The folder that paths are relative to.
        kernels: Globs of kernel files (ini ``nvfp4_kernels``).
        snapshots: The folder of the snapshots.
        fail_on: The mildest layout change that fails.
        protected: Patterns of layouts that may not change without being named.
        unprotect: Protected layouts that may change in this run.
        entry: ``FILE::FUNCTION`` for the kernel files named on the command line.
        arch: Architecture for every kernel; None for what the settings say.
        problems: Problems for every kernel; empty for what the settings say.
        compile_options: Options on top of what the settings say.
        timeout_s: Seconds a kernel may take to compile.
        cache: Folder for traces; None for the default.
        html: Where to write the HTML report.
        markdown: Where to write the Markdown report.
    """

    root: Path
    kernels: tuple[str, ...]
    snapshots: Path
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
        help='compile option on top of the kernel\'s own, as the DSL spells it ("--opt-level 2"); may be repeated',
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
    group.addoption("--nvfp4-timeout", type=float, metavar="SECONDS", help="seconds a compile may take (default: 300)")
    group.addoption("--nvfp4-cache-dir", metavar="DIR", help="where traces are kept (default: the user's cache folder)")
    group.addoption("--nvfp4-html", metavar="FILE", help="write a self-contained HTML report")
    group.addoption("--nvfp4-md", metavar="FILE", help="write a Markdown report, for a pull request comment")
    parser.addini("nvfp4_kernels", "globs of kernel files, relative to the root", type="args", default=[])
    parser.addini("nvfp4_snapshots", "folder of the snapshots, relative to the root", default="snapshots")
    parser.addini("nvfp4_fail_on", f"mildest layout change that fails: {', '.join(SEVERITIES)}", default="permuted")
    parser.addini("nvfp4_protected", "patterns of layouts that may not change unnoticed", type="args", default=[])
    parser.addini("nvfp4_timeout", "seconds a compile may take", default="300")


def read(config: pytest.Config) -> Options:
    """The options of a run.

    Raises:
        pytest.UsageError: a value cannot be used.
    """
    fail_on = config.getoption("--nvfp4-fail-on") or config.getini("nvfp4_fail_on")
    if fail_on not in SEVERITIES:
        raise pytest.UsageError(f"ini nvfp4_fail_on = {fail_on!r} must be one of {', '.join(SEVERITIES)}")
    timeout = config.getoption("--nvfp4-timeout")
    if timeout is None:
        try:
            timeout = float(config.getini("nvfp4_timeout"))
        except ValueError as error:
            raise pytest.UsageError(f"ini nvfp4_timeout = {config.getini('nvfp4_timeout')!r} is no number") from error
    if not timeout > 0:
        raise pytest.UsageError(f"--nvfp4-timeout {timeout} must be more than zero seconds")
    snapshots = config.getini("nvfp4_snapshots")
    if not snapshots or Path(snapshots).is_absolute() or ".." in Path(snapshots).parts or Path(snapshots) == Path():
        raise pytest.UsageError(
            f"ini nvfp4_snapshots = {snapshots!r} must be a folder below the root, such as snapshots"
        )
    if str(config.getoption("snapshot_dirname", "")) == snapshots:
        raise pytest.UsageError(
            f"--snapshot-dirname {snapshots} is where pytest-nvfp4 keeps its snapshots; choose another name there, or "
            "set ini nvfp4_snapshots"
        )
    here = config.invocation_params.dir

    def output(name: str) -> Path | None:
        given = config.getoption(name)
        return (here / given).resolve() if given else None

    return Options(
        root=config.rootpath,
        kernels=tuple(config.getini("nvfp4_kernels")),
        snapshots=config.rootpath / snapshots,
        fail_on=fail_on,
        protected=tuple(config.getini("nvfp4_protected")),
        unprotect=tuple(config.getoption("--nvfp4-unprotect")),
        entry=config.getoption("--nvfp4-entry"),
        arch=config.getoption("--nvfp4-arch"),
        problems=tuple(config.getoption("--nvfp4-problem")),
        compile_options=tuple(config.getoption("--nvfp4-compile-option")),
        timeout_s=timeout,
        cache=output("--nvfp4-cache-dir"),
        html=output("--nvfp4-html"),
        markdown=output("--nvfp4-md"),
    )
