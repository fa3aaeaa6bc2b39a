"""The kernel of a command: from a path and options to a request for its trace."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.cli.errors import InputError, missing_file
from pytest_nvfp4.cli.options import KernelOptions
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.problem import Problem, parse_shape
from pytest_nvfp4.settings import KernelSettings, Settings, find_root, load
from pytest_nvfp4.toolchain.request import Entry, Toolchain, TraceRequest
from pytest_nvfp4.toolchain.source import read_source, syntax_problem

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace


@dataclass(frozen=True)
class Subject:
    """A kernel in one configuration, ready to be traced.

    Attributes:
        label: The file as the user named it.
        root: Folder of its settings; paths are shown relative to it.
        settings: Its configuration.
        request: Request for the trace.
        timeout_s: Timeout of the compile in seconds.
    """

    label: str
    root: Path
    settings: KernelSettings
    request: TraceRequest
    timeout_s: float

    @property
    def problem(self) -> Problem:
        """Problem that it is compiled for."""
        return self.request.problem

    @property
    def description(self) -> str:
        """File, configuration and problem, for messages."""
        named = f" [{self.settings.name}]" if self.settings.name else ""
        return f"{self.label}{named} on {self.problem.name}"

    def relative(self, file: str) -> str:
        """Return a file relative to the root, or unchanged if it is not below it."""
        return relative(file, self.root)


def relative(file: str, root: Path) -> str:
    """Return a file relative to a folder, or unchanged if it is not below it."""
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def root_of(path: Path, within: Path | None = None) -> Path:
    """Return the folder of a kernel's settings; at most the folder that bounds the search for it."""
    root = find_root(path)
    return root if within is None or root.is_relative_to(within.resolve()) else within.resolve()


def matching(names: Sequence[str], patterns: Sequence[str]) -> frozenset[str]:
    """Return the names that match a pattern; a pattern with brackets also matches itself literally (``tTR[0]``)."""
    return frozenset(
        name for name in names if any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    )


def unmatched(names: Sequence[str], patterns: Sequence[str], *, label: str) -> InputError:
    """Return the error of patterns that match none of a kernel's layouts."""
    near = difflib.get_close_matches(patterns[0].strip("*"), names, n=3, cutoff=0.3) or sorted(names)[:3]
    such = f", such as {', '.join(near)}" if near else ""
    return InputError(
        f"{label}: none of its {len(names)} layouts matches {', '.join(patterns)}; a pattern is compared with the "
        f"whole name{such}; *sA matches kernel.sA"
    )


NAME_AN_ENTRY = (
    "name the function that compiles its kernel with --entry FUNCTION or --entry FILE::FUNCTION, or as `entry` in "
    "[tool.pytest_nvfp4] of pyproject.toml"
)


def check_kernel_file(path: Path, *, label: str, has_entry: bool, way: str = NAME_AN_ENTRY) -> None:
    """Raise InputError unless ``path`` is a Python file that parses and has something to compile.

    Args:
        path: The file.
        label: The file as the user named it.
        has_entry: Whether a function that compiles the kernel is known.
        way: Advice if no such function is known.
    """
    if not path.exists():
        raise missing_file(label)
    if path.is_dir():
        raise InputError(f"{label}: is a folder; name the kernel's Python file in it")
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{label}: is not a Python file (.py)")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror}") from error
    if b"\0" in data:
        raise InputError(f"{label}: is not Python source: it contains NUL bytes")
    problem = syntax_problem(path)
    if problem is not None:
        place = f"{label}:{problem.line}" if problem.line else label
        raise InputError(f"{place}: is not valid Python: {problem.message}")
    source = read_source(path)
    if not has_entry and (source is None or not source.defines_contract):
        what = "defines no custom_kernel(data)" + (" and imports no cutlass" if source is None else "")
        raise InputError(f"{label}: {what}; {way}")


def configured(settings: Settings, path: Path, *, name: str | None, label: str, entry: bool = False) -> KernelSettings:
    """Return the configuration of a kernel that ``--config`` names, or its only one.

    ``entry``: whether the command line names an entry.

    Raises:
        InputError: No configuration has this name, or there are several and none is named.
        SettingsError: The settings of the kernel contradict each other.
    """
    found = settings.for_kernel(path, entry=entry)
    if name is None and len(found) == 1:
        return found[0]
    for settings_of in found:
        if settings_of.name == name:
            return settings_of
    names = ", ".join(repr(each.name) for each in found)
    if name is None:
        raise InputError(f"{label}: has {len(found)} configurations in {settings.file}: {names}; choose with --config")
    known = (
        f"there are {names}" if any(each.name for each in found) else "it has one, without a name: leave out --config"
    )
    raise InputError(f"{label}: no configuration is called {name!r}; {known}")


def choose_problem(settings: Settings, own: KernelSettings, how: KernelOptions) -> Problem:
    """Return the problem that the options name, else the first of the kernel's own.

    Raises:
        InputError: The options name several problems, or one by name and one by shape.
        ProblemError: No problem has this name, or the shape is malformed.
    """
    if how.problem is not None and how.shape is not None:
        raise InputError("--problem and --shape both name a problem; give one of them")
    if how.shape is not None:
        return replace(parse_shape(how.shape), contract=own.kernel_contract.name)
    if how.problem is None:
        return (own.problems or own.verify or own.kernel_contract.tests)[0]
    found = settings.resolve_problems([how.problem], contract=own.contract)
    if len(found) != 1:
        raise InputError(
            f"--problem {how.problem} names {len(found)} problems, but a compile needs one; choose one, such as "
            f"{found[0].name}"
        )
    return found[0]


def _entry(text: str, *, kernel: Path, bases: Sequence[Path], source: str) -> Entry:
    """Parse an entry: ``FILE::FUNCTION``, or ``FUNCTION`` of the kernel's own file."""
    file, _, function = text.rpartition("::")
    if not file and function.isidentifier():
        return Entry(kernel, function)
    base = next((base for base in bases if file and (base / file).is_file()), bases[-1])
    return Entry.parse(text, root=base, source=source)


def resolve(
    path: Path,
    how: KernelOptions,
    *,
    label: str | None = None,
    within: Path | None = None,
    bases: Sequence[Path] = (),
    problem: Problem | None = None,
    toolchain: Toolchain | None = None,
) -> Subject:
    """Return the kernel at ``path``, configured by its pyproject.toml and the command line.

    Args:
        path: The kernel file.
        how: Options of the command line.
        label: Name for messages; the path by default.
        within: Folder that bounds the search for settings (an extracted git revision).
        bases: Folders that ``--entry`` is relative to; the working directory by default.
        problem: Problem if the options name none.
        toolchain: DSL that compiles it; the one of this interpreter by default.

    Raises:
        InputError: The file is not a kernel, or the options contradict each other.
        SettingsError, ProblemError, EntryError: A setting or option is invalid.
    """
    label = label or str(path)
    if path.is_dir() or not path.exists():
        check_kernel_file(path, label=label, has_entry=False)
    path = path.resolve()
    root = root_of(path, within)
    settings = load(root)
    own = configured(settings, path, name=how.configuration, label=label, entry=how.entry is not None)
    own = own.with_own_problems()
    calls = how.entry is None and own.entry is None and own.own_contract is not None
    known = how.entry is not None or own.entry is not None or (calls and (own.call is not None or own.called == "run"))
    check_kernel_file(path, label=label, has_entry=known)
    entry = None
    if how.entry is not None:
        entry = _entry(how.entry, kernel=path, bases=[*(bases or (Path.cwd(),)), root], source="--entry")
    elif own.entry is not None:
        entry = _entry(own.entry, kernel=path, bases=[root], source=str(settings.file))
    elif calls:
        entry = Entry.of_call(own.call, kernel=path, function=own.called, root=root, source=f"{settings.file}, call")
    chosen = problem if problem is not None and how.problem is None and how.shape is None else None
    chosen = chosen or choose_problem(settings, own, how)
    if entry is None:
        contract_of(chosen).require(chosen)
    request = TraceRequest(
        kernel=path,
        problem=chosen,
        entry=entry,
        calls=calls,
        arch=how.arch or own.arch,
        options=(*own.compile_options, *how.compile_options),
        toolchain=toolchain or Toolchain.current(),
        readable=own.readable,
        network=own.network,
    )
    return Subject(label=label, root=root, settings=own, request=request, timeout_s=how.timeout_s)


def _plain_message(message: str) -> str:
    """Return a message without colours and with this command's names in place of the pytest plugin's options."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message.strip())
    return re.sub(r"--nvfp4-(timeout|entry|arch|compile-option|problem)\b", r"--\1", plain)


def findings_text(trace: Trace, subject: Subject) -> str:
    """Return the findings of a trace as text, each with its source line."""
    lines = []
    for finding in trace.findings:
        place = ""
        if finding.file is not None:
            place = subject.relative(finding.file) + (f":{finding.line}" if finding.line is not None else "") + ": "
        lines.append(f"{place}{finding.severity}: {_plain_message(finding.message)}")
        if finding.text:
            lines.append(f"    {finding.text.strip()}")
    if trace.bundle:
        lines.append(f"a debug bundle is in {trace.bundle}")
    return "\n".join(lines)
