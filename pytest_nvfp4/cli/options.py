"""Options that several subcommands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.device.remote.options import OPTIONS, RemoteOptions
from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.report.render import OutputFormat

Function = Callable[..., Any]
_FILE = click.Path(path_type=Path, dir_okay=False)


def add_options(function: Function, options: Sequence[Callable[[Function], Function]]) -> Function:
    """Add options to a function; ``--help`` lists them in this order."""
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Options of a compile; None leaves a value to the settings.

    Attributes:
        problem: Name of a problem.
        shape: ``MxNxK[,MxNxK...]``.
        entry: ``FILE::FUNCTION``.
        arch: Architecture.
        compile_options: Options of the DSL.
        configuration: Name of a ``[[tool.pytest_nvfp4.kernel]]`` table.
        timeout_s: Timeout of one compile in seconds.
    """

    problem: str | None = None
    shape: str | None = None
    entry: str | None = None
    arch: str | None = None
    compile_options: tuple[str, ...] = ()
    configuration: str | None = None
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a kernel that is called; what is unset is left to the settings.

    Attributes:
        names: Names or shapes of problems.
        arch: Architecture.
        compile_options: Options of the DSL, after those of the settings.
        configuration: Name of a ``[[tool.pytest_nvfp4.kernel]]`` table.
    """

    names: tuple[str, ...] = ()
    arch: str | None = None
    compile_options: tuple[str, ...] = ()
    configuration: str | None = None


_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def arch_of(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the value of ``--arch`` if it is an architecture."""
    if value is not None and not _ARCH.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not an architecture; write it as sm_100a", ctx=ctx, param=param)
    return value


def timeout_option(
    seconds: float, name: str = "timeout", *, help_text: str = "Timeout in seconds."
) -> Callable[[Function], Function]:
    """Return ``--timeout`` with a default."""
    at_least = click.FloatRange(min=1)
    return click.option("--timeout", name, type=at_least, default=seconds, show_default=True, help=help_text)


_PROBLEMS = click.option(
    "--problem", "names", multiple=True, metavar="NAME", help="Problem or shape MxNxK[,...]; may be repeated."
)
_ARCH_OPTION = click.option("--arch", metavar="ARCH", callback=arch_of, help="Architecture, such as sm_100a.")
_CONFIGURATION = click.option(
    "--config", "configuration", metavar="NAME", help="Configuration of the kernel, if it has several."
)
_COMPILE_OPTIONS = click.option(
    "--compile-option",
    "compile_options",
    multiple=True,
    metavar="OPTION",
    help="Option of the DSL's compiler, such as '--opt-level 2'; may be repeated.",
)
_KERNEL_OPTIONS = (
    click.option("--problem", metavar="NAME", help="Problem to compile for, such as gpumode-3."),
    click.option("--shape", metavar="MxNxK[,...]", help="Problem to compile for, one MxNxK for each group."),
    click.option(
        "--entry",
        metavar="[FILE::]FUNCTION",
        help="Function that compiles the kernel, in KERNEL unless FILE is given.  [default: custom_kernel]",
    ),
    _ARCH_OPTION,
    _COMPILE_OPTIONS,
    _CONFIGURATION,
    timeout_option(300.0, "timeout_s", help_text="Timeout of a compile in seconds."),
)


def kernel_options(function: Function) -> Function:
    """Add the options of a compile; the function receives them as ``how``."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in KernelOptions.__dataclass_fields__}
        return function(*args, how=KernelOptions(**values), **kwargs)

    return add_options(call, _KERNEL_OPTIONS)


def run_options(function: Function) -> Function:
    """Add the options of a kernel that is called; the function receives them as ``how``."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in RunOptions.__dataclass_fields__}
        return function(*args, how=RunOptions(**values), **kwargs)

    return add_options(call, (_PROBLEMS, _ARCH_OPTION, _COMPILE_OPTIONS, _CONFIGURATION))


def json_option(function: Function) -> Function:
    """Add ``--json`` to a command whose text is that of a program or protocol, so that no other format fits."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON.")(function)


_HTML = click.option("--html", "page", type=_FILE, metavar="FILE", help="Also write an HTML page to FILE.")
_OUTPUT = click.option("--output", type=_FILE, metavar="FILE", help="Write the result to FILE, not to standard output.")


_FLAGS = {"--json": OutputFormat.JSON, "--md": OutputFormat.MARKDOWN, "--csv": OutputFormat.CSV}
_CHOSEN = f"{__name__}.format"


def _choose_format(ctx: click.Context, param: click.Parameter, value: str | bool | None) -> None:
    """Store the format that an option names, before anything runs; raise UsageError if two options disagree."""
    if not value:
        return
    flag = param.opts[0]
    text, chosen = (f"{flag} {value}", OutputFormat(value)) if isinstance(value, str) else (flag, _FLAGS[flag])
    before, known = ctx.meta.setdefault(_CHOSEN, (text, chosen))
    if known is not chosen:
        raise click.UsageError(f"{before} and {text} name different formats; choose one")


def result_options(*, csv: bool = False) -> Callable[[Function], Function]:
    """Add the options that choose a result's format and file; the function receives them as ``result``.

    Args:
        csv: Whether to add ``--csv``, for a result that is a table.
    """
    formats = [item.value for item in OutputFormat if csv or item is not OutputFormat.CSV]
    stored: dict[str, Any] = {"callback": _choose_format, "expose_value": False}
    options = [
        click.option("--format", type=click.Choice(formats), help="Format of the result.  [default: text]", **stored),
        *(
            click.option(flag, is_flag=True, help=f"Same as --format {item.value}.", **stored)
            for flag, item in _FLAGS.items()
            if item.value in formats
        ),
        _OUTPUT,
        _HTML,
    ]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, output: Path | None, page: Path | None, **kwargs: Any) -> Any:
            _, chosen = click.get_current_context().meta.get(_CHOSEN, ("", OutputFormat.TEXT))
            return function(*args, result=ResultWriter(chosen, output, page), **kwargs)

        return add_options(call, options)

    return decorate


def document_options(*, csv: bool = False) -> Callable[[Function], Function]:
    """Add `result_options` to a command that returns its result; exit with code 1 if the result is not ok."""

    def decorate(function: Function) -> Function:
        @result_options(csv=csv)
        @wraps(function)
        def call(*args: Any, result: ResultWriter, **kwargs: Any) -> None:
            document = function(*args, **kwargs)
            result.write(document)
            click.get_current_context().exit(Exit.FINE if document.ok else Exit.FAILED)

        return call

    return decorate


def remote_options(*fields: str, without: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Add the options of a remote, which the function receives as ``remote``.

    Args:
        fields: The fields of `RemoteOptions`; by default all that have an option.
        without: Fields that the command does not use.
    """
    options = [option for option in OPTIONS if (not fields or option.field in fields) and option.field not in without]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            values = {option.field: kwargs.pop(option.field) for option in options}
            for option in options:
                if (error := option.error(option.flag, values[option.field])) is not None:
                    raise click.UsageError(error)
            return function(*args, remote=RemoteOptions(**values), **kwargs)

        for option in reversed(options):
            text = option.help[0].upper() + option.help[1:] + "."
            call = click.option(
                option.flag,
                option.field,
                type=option.type,
                default=option.default,
                show_default=option.default is not None,
                metavar=option.metavar,
                help=text,
            )(call)
        return call

    return decorate


_SEVERITIES = ", ".join(item.name.lower().replace("_", "-") for item in Severity if item)


def _severity(ctx: click.Context, param: click.Parameter, value: str) -> Severity:
    try:
        return Severity.parse(value)
    except ValueError as error:
        message = f"{value!r} is not a severity; use one of {_SEVERITIES}"
        raise click.BadParameter(message, ctx=ctx, param=param) from error


def gate_options(function: Function) -> Function:
    """Add ``--fail-on`` and ``--protected``."""
    function = click.option(
        "--protected",
        multiple=True,
        metavar="PATTERN",
        help="Name or pattern of a layout that must not change; may be repeated.",
    )(function)
    return click.option(
        "--fail-on",
        callback=_severity,
        default="permuted",
        show_default=True,
        metavar="SEVERITY",
        help=f"Mildest layout change that fails: {_SEVERITIES}.",
    )(function)
