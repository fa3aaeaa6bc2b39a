"""The user's settings for their kernels: ``[tool.pytest_nvfp4]`` in pyproject.toml.

::

    [tool.pytest_nvfp4]
    arch = "sm_100a"                                  # default for every kernel
    problems.small = { m = [40, 96], n = 128, k = 256 }

    [[tool.pytest_nvfp4.kernel]]
    path = "kernels/*/sm100.py"                       # glob, relative to the pyproject.toml
    problems = ["small", "gpumode-0"]                 # compiled for these
    verify-problems = ["gpumode", "small"]            # run on these (default: GPU MODE's ten tests)
    simulate-problems = ["small"]                     # coverage and cost are counted on these (default: `problems`)
    benchmark-problems = ["gpumode-bench-2"]          # timed on these (default: GPU MODE's four benchmarks)
    protected = ["*.sA", "*.tCtAcc"]
    cost-tolerance = { "instructions*" = "10%", "tma.load.requests" = "any" }    # growth that passes the cost check
    model-problems = ["gpumode-0"]                    # its time is modelled on these (default: none)
    model-tolerance = "10%"                           # growth of the modelled time that passes the model check

    [[tool.pytest_nvfp4.kernel]]
    path = "examples/dense_gemm.py"
    name = "2cta"                                     # several configurations of one file
    entry = "examples/build.py::two_cta"
    exercise = "examples/build.py::call_two_cta"      # calls it on small inputs of its own: the races check runs this
    compile-options = ["--opt-level 2"]
    side-stream = false                               # its callers use the default stream alone
    torch-operators = true                            # a reference: operators of torch may compute its outputs
    readable = ["data/tables"]                        # what it reads beside its own files, relative to this file
    network = true                                    # its host code uses the network, to build an extension
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from pytest_nvfp4.problem import Problem, ProblemError, parse_table, resolve

DEFAULT_ARCH = "sm_100a"
_MOST_BYTES = 16 << 20
_MOST_GLOB = 1000
_MOST_STARS = 10
"""Stars of a glob; the time of a match grows with the length of a path to this power."""
_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_NAME = re.compile(r"[A-Za-z0-9_.+-]*")


class SettingsError(ValueError):
    """A setting cannot be used. The message names the file, the key, the value and what is expected."""


class JobSettings(TypedDict):
    """Arguments of ``device.job.KernelSpec.from_files`` that settings determine (see ``KernelSettings``)."""

    arch: str
    compile_options: tuple[str, ...]
    side_stream: bool
    torch_operators: bool
    readable: tuple[str, ...]
    network: bool


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Settings of one configuration of a kernel file.

    Attributes:
        name: Name of the configuration, which is part of node ids; empty for the only one.
        entry: ``FILE::FUNCTION`` relative to the root; None for a kernel that follows GPU MODE's contract.
        exercise: ``FILE::FUNCTION`` relative to the root. It calls a kernel that has an entry on small inputs, and
            raises if a result is wrong. None if the kernel is not run.
        arch: Architecture to compile for.
        problems: The problems it is traced on. None for the default: ``gpumode-0`` for a kernel that follows the
            contract, and one trace without a problem's name for an entry.
        verify: The problems it is verified on, on a device; None for GPU MODE's ten tests.
        simulate: The problems on which the simulator counts what it does; None for those it is traced on.
        fitted: Whether the simulator also runs it on a problem fitted to it (``device.fitted_problem``); None if that
            depends on ``verify`` (see ``on_fitted_problem``).
        benchmark: The problems it is timed on; None for GPU MODE's four benchmarks.
        protected: Patterns (``fnmatch``) of layout names that change only with ``--nvfp4-unprotect``.
        compile_options: Options in addition to the kernel's own.
        cost_tolerance: Patterns of counters, each with the share by which they may grow before the cost check fails
            (infinity for any growth).
        model: The problems on which its time is modelled; none by default.
        model_tolerance: Share by which its modelled time may grow before the model check fails.
        side_stream: Whether its callers may call it while a stream of their own is torch's current one; None for the
            default of its contract (see ``on_side_stream``).
        torch_operators: Whether operators of torch may compute its outputs, as those of a reference or a baseline.
        readable: Files and folders that its host code may read besides its own (``toolchain.own_files``), absolute.
        network: Whether its host code may use the network.
    """

    name: str = ""
    entry: str | None = None
    exercise: str | None = None
    arch: str = DEFAULT_ARCH
    problems: tuple[Problem, ...] | None = None
    verify: tuple[Problem, ...] | None = None
    simulate: tuple[Problem, ...] | None = None
    fitted: bool | None = None
    benchmark: tuple[Problem, ...] | None = None
    protected: tuple[str, ...] = ()
    compile_options: tuple[str, ...] = ()
    cost_tolerance: tuple[tuple[str, float], ...] = ()
    model: tuple[Problem, ...] = ()
    model_tolerance: float = 0.1
    side_stream: bool | None = None
    torch_operators: bool = False
    readable: tuple[str, ...] = ()
    network: bool = False

    @property
    def on_fitted_problem(self) -> bool:
        """Whether the simulator also runs it on a problem fitted to it.

        By default a kernel that is verified on problems of the user's own is not: it may take no others.
        """
        return self.verify is None if self.fitted is None else self.fitted

    @property
    def on_side_stream(self) -> bool:
        """Whether checks call it while another stream than the default one is current.

        By default they do unless it follows GPU MODE's contract, whose own checks call on the default stream.
        """
        return self.entry is not None if self.side_stream is None else self.side_stream

    @property
    def of_job(self) -> JobSettings:
        """The settings that a job of the kernel carries to a device."""
        return {
            "arch": self.arch,
            "compile_options": self.compile_options,
            "side_stream": self.on_side_stream,
            "torch_operators": self.torch_operators,
            "readable": self.readable,
            "network": self.network,
        }


@dataclass(frozen=True, slots=True)
class _Table:
    """One ``[[tool.pytest_nvfp4.kernel]]`` table."""

    path: str
    settings: KernelSettings


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``[tool.pytest_nvfp4]``.

    Attributes:
        root: The folder that paths are relative to.
        file: The file of the settings; None if there is none.
        problems: The user's problems by name.
        default: Settings of a kernel without a table.
        tables: The tables in their order.
    """

    root: Path
    file: Path | None = None
    problems: Mapping[str, Problem] = field(default_factory=dict)
    default: KernelSettings = field(default_factory=KernelSettings)
    tables: tuple[_Table, ...] = ()

    def for_kernel(self, path: Path) -> tuple[KernelSettings, ...]:
        """Return the configurations of a kernel file: one for each table whose path matches it, or the default.

        Raises:
            SettingsError: Two of them have the same name.
        """
        relative = _relative(path, self.root)
        matching = tuple(table.settings for table in self.tables if _matches(relative, table.path))
        names = [settings.name for settings in matching]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SettingsError(
                f"{self.file}: several [[tool.pytest_nvfp4.kernel]] tables match {relative} and are named "
                f"{twice!r}; give each its own `name`"
            )
        return matching or (self.default,)

    def names_kernel(self, path: Path) -> bool:
        """Return whether a table matches a file."""
        relative = _relative(path, self.root)
        return any(_matches(relative, table.path) for table in self.tables)

    def resolve_problems(self, names: Sequence[str]) -> tuple[Problem, ...]:
        """Return problems by name; the user's take precedence. Raises ProblemError."""
        return resolve(names, own=self.problems)


def _relative(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.as_posix()


@lru_cache(maxsize=512)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """Return a glob as a regular expression: ``**`` spans folders, ``*`` and ``?`` do not."""
    parts: list[str] = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob):
        match part:
            case "**/":
                parts.append(r"(?:[^/]+/)*")
            case "**":
                parts.append(r".*")
            case "*":
                parts.append(r"[^/]*")
            case "?":
                parts.append(r"[^/]")
            case _ if part.startswith("[") and part.endswith("]"):
                parts.append(part.replace("[!", "[^"))
            case _:
                parts.append(re.escape(part))
    return re.compile("".join(parts))


def _is_glob(text: str) -> bool:
    try:
        glob_pattern(str(PurePosixPath(text)))
    except (re.error, RecursionError, OverflowError):
        return False
    return len(text) <= _MOST_GLOB and text.count("*") <= _MOST_STARS


def _matches(relative: str, glob: str) -> bool:
    return glob_pattern(str(PurePosixPath(glob))).fullmatch(relative) is not None


def matches_any(path: Path, globs: Sequence[str], *, root: Path) -> bool:
    """Return whether a file below ``root`` matches one of the globs."""
    relative = _relative(path, root)
    return any(_matches(relative, glob) for glob in globs)


class _Reader:
    """Reader of one table, whose errors name the file, the table and the key."""

    def __init__(self, file: Path, where: str, table: Mapping[str, Any]) -> None:
        self._file, self._where, self._table = file, where, table

    def fail(self, key: str, value: object, expected: str) -> SettingsError:
        return SettingsError(f"{self._file}: {self._where}: {key} = {value!r} is not usable: {expected}")

    def check_keys(self, known: Sequence[str]) -> None:
        for key in self._table:
            if key not in known:
                raise SettingsError(
                    f"{self._file}: {self._where}: unknown key {key!r}; known are {', '.join(sorted(known))}"
                )

    def text(self, key: str, pattern: re.Pattern[str], expected: str, default: str | None) -> str | None:
        value = self._table.get(key, default)
        if value is not None and (not isinstance(value, str) or not pattern.fullmatch(value)):
            raise self.fail(key, value, expected)
        return value

    def flag(self, key: str, default: bool | None) -> bool | None:
        value = self._table.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, value, "true or false is expected")
        return value

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._table.get(key)
        if value is None:
            return default
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise self.fail(key, value, "a list of strings is expected")
        return tuple(items)

    def paths(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return paths relative to this file as absolute ones, each of which must exist."""
        if key not in self._table:
            return default
        paths = [(self._file.parent / Path(text).expanduser()).resolve() for text in self.texts(key, ())]
        for path in paths:
            if not path.exists():
                raise self.fail(key, str(path), "there is no such file or folder")
        return tuple(map(str, paths))

    def share(self, key: str, default: float) -> float:
        value = self._table.get(key)
        share = default if value is None else _share(value)
        if share is None:
            raise self.fail(key, value, 'a share such as "10%", or "any", is expected')
        return share

    def tolerances(self, key: str, default: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        table = self._table.get(key)
        if table is None:
            return default
        if not isinstance(table, dict):
            raise self.fail(key, table, 'a table of counters is expected, such as { "instructions*" = "5%" }')
        tolerances = dict(default)
        for name, value in table.items():
            share = _share(value)
            if share is None:
                raise self.fail(f"{key}.{name}", value, 'a share such as "5%", or "any", is expected')
            tolerances[name] = share
        return tuple(tolerances.items())


def _share(value: object) -> float | None:
    """Return ``"5%"`` as 0.05 and ``"any"`` as infinity; None for another value."""
    if value == "any":
        return math.inf
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*%", value) if isinstance(value, str) else None
    return float(match[1]) / 100 if match else None


_COMMON_KEYS = (
    *("arch", "problems", "verify-problems", "simulate-problems", "fitted-problem", "benchmark-problems"),
    *("protected", "compile-options", "cost-tolerance", "model-problems", "model-tolerance", "side-stream"),
    *("torch-operators", "readable", "network"),
)
_KERNEL_KEYS = (*_COMMON_KEYS, "path", "name", "entry", "exercise")
_TOP_KEYS = (*_COMMON_KEYS, "default-problems", "kernel")
_ANY = re.compile(r".+", re.DOTALL)
_FUNCTION = re.compile(r".+::\w+")


def _kernel(reader: _Reader, base: KernelSettings, own: Mapping[str, Problem], problems_key: str) -> KernelSettings:
    arch = reader.text("arch", _ARCH, "an architecture such as sm_100a", base.arch)

    def problems(key: str, default: tuple[Problem, ...] | None) -> tuple[Problem, ...] | None:
        names = reader.texts(key, ())
        try:
            return resolve(names, own=own) if names else default
        except ProblemError as error:
            raise reader.fail(key, list(names), str(error)) from error

    return replace(
        base,
        arch=arch or base.arch,
        problems=problems(problems_key, base.problems),
        verify=problems("verify-problems", base.verify),
        simulate=problems("simulate-problems", base.simulate),
        fitted=reader.flag("fitted-problem", base.fitted),
        benchmark=problems("benchmark-problems", base.benchmark),
        protected=reader.texts("protected", base.protected),
        compile_options=reader.texts("compile-options", base.compile_options),
        cost_tolerance=reader.tolerances("cost-tolerance", base.cost_tolerance),
        model=problems("model-problems", base.model) or (),
        model_tolerance=reader.share("model-tolerance", base.model_tolerance),
        side_stream=reader.flag("side-stream", base.side_stream),
        torch_operators=reader.flag("torch-operators", base.torch_operators) or False,
        readable=reader.paths("readable", base.readable),
        network=bool(reader.flag("network", base.network)),
    )


def parse(data: Mapping[str, Any], *, file: Path) -> Settings:
    """Return the settings in the content of a pyproject.toml. Raises SettingsError."""
    tool = data.get("tool", {})
    section = tool.get("pytest_nvfp4", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise SettingsError(f"{file}: tool.pytest_nvfp4 must be a table")
    top = _Reader(file, "[tool.pytest_nvfp4]", section)
    top.check_keys(_TOP_KEYS)
    own: dict[str, Problem] = {}
    tables = section.get("problems", {})
    if not isinstance(tables, dict):
        raise top.fail(
            "problems", tables, "a table of named problems, such as problems.small = { m = 96, n = 128, k = 256 }"
        )
    for name, table in tables.items():
        if not _NAME.fullmatch(name) or not name:
            raise top.fail(f"problems.{name}", table, "a name of letters, digits, and . _ + - is expected")
        if not isinstance(table, dict):
            raise top.fail(f"problems.{name}", table, "a table with m, n and k is expected")
        try:
            own[name] = parse_table(name, table)
        except ProblemError as error:
            raise SettingsError(f"{file}: [tool.pytest_nvfp4] problems: {error}") from error
    default = _kernel(top, KernelSettings(), own, "default-problems")
    kernels = section.get("kernel", [])
    if not isinstance(kernels, list) or not all(isinstance(kernel, dict) for kernel in kernels):
        raise top.fail("kernel", kernels, "write each kernel as a [[tool.pytest_nvfp4.kernel]] table")
    read: list[_Table] = []
    for index, kernel in enumerate(kernels):
        reader = _Reader(file, f"[[tool.pytest_nvfp4.kernel]] number {index + 1}", kernel)
        reader.check_keys(_KERNEL_KEYS)
        path = reader.text("path", _ANY, "a path or glob relative to this file is expected", None)
        if path is None or not _is_glob(path):
            raise reader.fail("path", path, "a path or glob relative to this file is expected")
        settings = replace(
            _kernel(reader, default, own, "problems"),
            name=reader.text("name", _NAME, "letters, digits, and . _ + - are expected", "") or "",
            entry=reader.text("entry", _FUNCTION, "FILE::FUNCTION is expected", None),
            exercise=reader.text("exercise", _FUNCTION, "FILE::FUNCTION is expected", None),
        )
        if settings.exercise is not None and settings.entry is None:
            raise reader.fail(
                "exercise", settings.exercise, "it requires an entry; custom_kernel(data) is called on problems"
            )
        read.append(_Table(path, settings))
    return Settings(file.parent, file, own, default, tuple(read))


def load(root: Path, *, file: Path | None = None) -> Settings:
    """Return the settings of ``file``, or of the pyproject.toml in ``root``; the defaults if there is none.

    Raises:
        SettingsError: The file is not TOML, or a setting cannot be used.
    """
    path = file or root / "pyproject.toml"
    if not path.is_file():
        return Settings(root)
    try:
        data = tomllib.loads(_content(path).decode())
    except (OSError, ValueError, RecursionError) as error:  # tomllib raises both for numbers and nesting without end
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"{path}: cannot be read as TOML: {reason}") from error
    return parse(data, file=path)


def _names_this_package(pyproject: Path) -> bool:
    try:
        return b"pytest_nvfp4" in _content(pyproject)
    except (ValueError, OSError):
        return False  # `load` reports it, if it is the file of this run


def _content(file: Path) -> bytes:
    """Return the content of a regular file. Raises OSError, and ValueError for one that is too large.

    Every run of pytest reads the settings, also without kernels, so this needs nothing of ``isolation``.
    """
    if (size := file.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes, and at most {_MOST_BYTES} are read")
    return file.read_bytes()


def find_root(start: Path) -> Path:
    """Return the root of the project that contains a path.

    It is the nearest folder at or above ``start`` whose pyproject.toml has ``[tool.pytest_nvfp4]``, else the nearest
    one with a pyproject.toml or a .git folder, else ``start``.
    """
    folder = start.resolve()
    folder = folder if folder.is_dir() else folder.parent
    nearest: Path | None = None
    for candidate in (folder, *folder.parents):
        pyproject = candidate / "pyproject.toml"
        if pyproject.is_file():
            if _names_this_package(pyproject):
                return candidate
            nearest = nearest or candidate
        elif (candidate / ".git").exists():
            nearest = nearest or candidate
    return nearest or folder
