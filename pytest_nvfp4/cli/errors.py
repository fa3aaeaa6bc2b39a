"""Exit codes, and errors that a user's input causes."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import click

from pytest_nvfp4.device.remote.options import with_own_flags


class Exit(IntEnum):
    """Exit codes of every subcommand."""

    FINE = 0
    """Success."""
    FAILED = 1
    """A check failed: a layout change gates, a kernel does not compile, something required is missing."""
    USAGE = 2
    """Wrong usage, or an input that cannot be read."""
    INTERRUPTED = 130
    """Ctrl-C."""


class InputError(click.ClickException):
    """Invalid input. The message names the file or value, what is wrong with it and what to do."""

    exit_code = int(Exit.USAGE)

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the message to standard error, on one line and without control characters."""
        from pytest_nvfp4.text import visible, without_commands

        message = with_own_flags(without_commands(visible(" ".join(self.message.split("\n")).strip())))
        click.echo(f"nvfp4: error: {message}", file=file, err=file is None)


def missing_file(label: str, way: str = "") -> InputError:
    """Return the error of a file that does not exist; a pattern stands for none only if no file matches it."""
    if any(sign in label for sign in "*?["):
        return InputError(f"{label}: no such file, and as a pattern it matches none in {Path.cwd()}")
    return InputError(f"{label}: no such file{'; ' if way else ''}{way}")


def as_input_error(error: Exception) -> InputError | None:
    """Return the error as an input error, or None if it is a defect of this program."""
    from pytest_nvfp4.isolation.door import DoorError
    from pytest_nvfp4.layout.errors import LayoutError
    from pytest_nvfp4.loop.configuration.errors import ConfigError
    from pytest_nvfp4.problem import ProblemError
    from pytest_nvfp4.settings import SettingsError
    from pytest_nvfp4.toolchain.binaries import ToolUnavailableError
    from pytest_nvfp4.toolchain.request import EntryError

    known = ConfigError | DoorError | LayoutError | ProblemError | SettingsError | EntryError | ToolUnavailableError
    if isinstance(error, known):
        return InputError(str(error))
    if isinstance(error, ModuleNotFoundError) and not (error.name or "pytest_nvfp4").startswith("pytest_nvfp4"):
        name = str(error.name).partition(".")[0]
        return InputError(f"{name} is not installed; `nvfp4 doctor` lists what is missing and how to get it")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return InputError(f"{where}{error.strerror or error}")
    return None
