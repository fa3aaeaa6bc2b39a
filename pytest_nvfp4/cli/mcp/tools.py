"""The tools: arguments as models, and the command that each of them runs.

An argument is a value and never an option: files are absolute paths, and other values are joined to their option with
``=``. No argument concerns the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.cli.mcp.roots import RefusedError, Roots
from pytest_nvfp4.schedules import WORDS, is_schedule

REPORT = "report.json"
"""File in the folder of a call that receives the JSON of a tool with ``report``."""
_PYTEST = (
    "pytest",
    "-ppytest_nvfp4.plugin.kernels_only",
    "--noconftest",
    "--assert=plain",
    "--no-header",
    "--color=no",
    "-pno:cacheprovider",
    # what settings of pytest could run or write, or let shadow a module
    *(f"-o{name}=" for name in ("addopts", "pythonpath", "filterwarnings", "log_file", "required_plugins")),
)
"""pytest without code of the repository, and without files that it writes there."""
_CLI = "pytest_nvfp4.cli"
_File = Annotated[str, Field(min_length=1, max_length=4096)]
_Word = Annotated[str, Field(min_length=1, max_length=1000)]
_Words = Annotated[list[_Word], Field(max_length=100)]
_Format = Annotated[Literal["text", "json"], Field(description="format of the result")]
_Arch = Annotated[str, Field(pattern=r"^sm_\d{2,3}[af]?$", description="architecture, such as sm_100a")]
_Kernel = Annotated[_File, Field(description="kernel file, relative to the server's first folder or absolute")]
_Config = Annotated[_Word, Field(description="configuration of the kernel, if its settings have several")]
_Problem = Annotated[_Word, Field(description="problem (gpumode-0, gpumode-bench-0, ...) or shape MxNxK[,MxNxK...]")]
_Problems = Annotated[_Words, Field(description="problems (gpumode-0, ...) or shapes MxNxK[,MxNxK...]")]
_Entry = Annotated[_Word, Field(description="[FILE::]FUNCTION that compiles a kernel without custom_kernel(data)")]
_Timeout = Annotated[float, Field(ge=1, le=86_400, description="seconds; the server's limit holds as well")]
Check = Literal["compile", "layouts", "launch", "codegen", "tmem", "coverage", "verify", "races", "cost", "model"]


class Tool(BaseModel):
    """Arguments of a tool. Its docstring is what agents read.

    Attributes:
        format: Format of the result.
        timeout_s: Time limit of the call.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: ClassVar[str]
    report: ClassVar[bool] = False
    """Whether the JSON is in the file `REPORT`, and not on standard output; and the command is pytest."""
    program: ClassVar[bool] = False
    """Whether an exit status is that of a user's program, so that none is an error of the tool."""
    format: _Format = "text"
    timeout_s: _Timeout | None = None

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the module and the arguments of the command. Raises RefusedError.

        Args:
            roots: The files that may be named.
            folder: Folder of this call, for files of its own.
        """
        raise NotImplementedError


def _options(**values: str | Sequence[str] | None) -> Iterator[str]:
    """Yield options with their values; a name of several words has underscores."""
    for name, value in values.items():
        for one in () if value is None else (value,) if isinstance(value, str) else value:
            yield f"--{name.replace('_', '-')}={one}"


class _Command(Tool):
    """A command of ``nvfp4`` with a kernel."""

    kernel: _Kernel
    problem: _Problem | None = None
    arch: _Arch | None = None
    config: _Config | None = None

    def _common(self) -> Iterator[str]:
        yield from _options(format=self.format, problem=self.problem, arch=self.arch, config=self.config)


class Layouts(_Command):
    """List every named layout of a kernel: canonical form, type, space, alignment, file and line."""

    name = "layouts"
    entry: _Entry | None = None
    filter: Annotated[_Words, Field(description="show only matching names (globs)")] = []

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        del folder
        yield from (_CLI, "layouts", *self._common(), *_options(filter=self.filter))
        yield from _options(entry=None if self.entry is None else roots.function(self.entry))
        yield from ("--", str(roots.file(self.kernel)))


class Diff(Tool):
    """Compare the layouts, launches and code of two kernels or snapshots by meaning.

    The exit code is 1 if a change gates. `REV:path` names a file of a git revision, if the server allows revisions.
    """

    name = "diff"
    old: Annotated[_File, Field(description="kernel, snapshot or REV:path before the change")]
    new: Annotated[_File, Field(description="kernel, snapshot or REV:path after the change")]
    problem: _Problem | None = None
    arch: _Arch | None = None
    config: _Config | None = None
    entry: _Entry | None = None
    fail_on: Literal["cosmetic", "renested", "same-function", "permuted", "different"] = "permuted"

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        del folder
        yield from (_CLI, "diff")
        yield from _options(format=self.format, problem=self.problem, arch=self.arch, config=self.config)
        yield from _options(fail_on=self.fail_on, entry=None if self.entry is None else roots.function(self.entry))
        yield from ("--", roots.side(self.old), roots.side(self.new))


class Cost(_Command):
    """Count the work of one call of a kernel in the simulator: bytes, sectors, conflicts, instructions; no time."""

    name = "cost"

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        del folder
        yield from (_CLI, "cost", *self._common(), "--", str(roots.file(self.kernel)))


class Model(_Command):
    """Model the time of one call of a kernel on a device that is not there, and say where it goes by line.

    The time is modelled, with a band; it is no measurement.
    """

    name = "model"
    what_if: Annotated[bool, Field(description="replay it also with single changes")] = False

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        del folder
        yield from (_CLI, "model", "time", *self._common(), "--what-if" if self.what_if else "--no-what-if")
        yield from ("--", str(roots.file(self.kernel)))


class _Checks(Tool):
    """A run of pytest on one kernel file, with the checks of this package only."""

    report = True
    kernel: _Kernel
    problems: _Problems = []
    arch: _Arch | None = None
    entry: _Entry | None = None

    def _pytest(self, roots: Roots, folder: Path, checks: Sequence[str]) -> Iterator[str]:
        kernel = roots.file(self.kernel)
        if kernel.suffix != ".py" or any(mark in str(kernel) for mark in ("::", "[")):
            raise RefusedError(f"{kernel}: pytest takes the path of a kernel that ends in .py and has no '::' or '['")
        # pytest-benchmark makes its folder in any case, and would make it in the repository.
        yield from (*_PYTEST, "--nvfp4-device=sim", f"--benchmark-storage=file://{folder / 'benchmarks'}")
        if self.format == "json":
            yield f"--nvfp4-json={folder / REPORT}"
        yield from _options(nvfp4_problem=self.problems, nvfp4_arch=self.arch)
        yield from _options(nvfp4_entry=None if self.entry is None else roots.function(self.entry))
        yield from _options(nvfp4_check=checks)
        yield str(kernel)


class CheckTool(_Checks):
    """Check a kernel without a GPU: compile, layouts, tensor memory, exact result, coverage, races, cost.

    The exit code is 1 if a check failed; the first finding names the line of your Python and what to change. Checks
    that compare with snapshots fail where there is none: name the other checks then. No snapshot is written.
    """

    name = "check"
    checks: Annotated[list[Check], Field(description="checks to run; all but benchmark by default")] = []

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        yield from self._pytest(roots, folder, self.checks)
        if "model" in self.checks:
            yield "--nvfp4-model"


class Races(_Checks):
    """Order all accesses of a kernel by happens-before in the simulator: races, deadlocks, missing fences and waits."""

    name = "races"
    schedules: Annotated[int, Field(ge=0, le=64, description="further random schedules")] = 0
    schedule: Annotated[_Word, Field(description=f"the schedule of a failure: {WORDS}")] | None = None
    warnings: Annotated[bool, Field(description="also warn of what official kernels leave out")] = False

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        if self.schedule is not None and not is_schedule(self.schedule):
            raise RefusedError(f"schedule must be {WORDS}")
        yield from self._pytest(roots, folder, ["races"])
        yield from _options(nvfp4_schedules=str(self.schedules) if self.schedules else None)
        yield from _options(nvfp4_schedule=self.schedule)
        if self.warnings:
            yield "--nvfp4-race-warnings"


class ProfileShow(Tool):
    """Read a saved profile (.ncu-rep, ncu --csv, nsys sqlite, sanitizer XML, archive): what limits each launch."""

    name = "profile_show"
    report_file: Annotated[_File, Field(description="report, or a folder or ZIP archive of reports")]
    launches_of: Annotated[_Word, Field(description="only kernels whose name contains this")] | None = None

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        del folder
        yield from (_CLI, "profile", "show", *_options(format=self.format, kernel=self.launches_of))
        yield from ("--", str(roots.file(self.report_file, folder=True)))


class Exec(Tool):
    """Run a Python program in the GPU simulator, behind the sandbox: device="cuda" and CuTe DSL launches work.

    It has a clean environment, a new working folder, no network and no files but its own. Its output is bounded; the
    middle of a long one is dropped. The exit code is the program's, and 124 after the time limit.
    """

    name = "exec"
    program = True
    file: Annotated[_File, Field(description="Python file to run")] | None = None
    code: Annotated[str, Field(min_length=1, max_length=1 << 20, description="code in place of a file")] | None = None
    arguments: Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=1000)] = []
    arch: _Arch | None = None
    races: Annotated[bool, Field(description="detect races too; an error makes the exit code 1")] = False

    def words(self, roots: Roots, folder: Path) -> Iterator[str]:
        """Yield the command."""
        if (self.file is None) == (self.code is None):
            raise RefusedError("give either file or code")
        if self.format != "text":
            raise RefusedError("a program has no JSON of this package; leave out format")
        if any("\0" in argument for argument in self.arguments):
            raise RefusedError("an argument holds a null character")
        if self.code is None:
            program = roots.file(self.file or "")
        else:
            program = folder / "program.py"
            program.write_text(self.code, encoding="utf-8", errors="surrogatepass")
        yield from (_CLI, "exec", "--device=sim", *_options(arch=self.arch))
        if self.races:
            yield "--races"
        yield from ("--", str(program), *self.arguments)


TOOLS: tuple[type[Tool], ...] = (CheckTool, Races, Layouts, Diff, Cost, Model, ProfileShow, Exec)
