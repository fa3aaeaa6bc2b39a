"""Write results to standard output or a file, and everything else to standard error."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from pytest_nvfp4.activity import ACTIVITIES
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.report.console import Terminal
from pytest_nvfp4.report.document import Document
from pytest_nvfp4.report.render import OutputFormat, render
from pytest_nvfp4.text import json_text, printed, shortened, without_commands
from pytest_nvfp4.writing import write_whole

_REDRAW_S = 0.5
_HEARTBEAT_S = 20.0
_MOST_JOBS = 2
_LEAST_JOB = 20


@dataclass(frozen=True, slots=True)
class ResultWriter:
    """The format and destination of a command's result.

    Attributes:
        format: Format of the result.
        file: File that receives it in place of standard output; None for standard output.
        page: File that receives the result as an HTML page besides; None for no file.
    """

    format: OutputFormat = OutputFormat.TEXT
    file: Path | None = None
    page: Path | None = None

    def write(self, document: Document, *, page: Document | None = None) -> None:
        """Write a result.

        Args:
            document: The result.
            page: A longer form of the result for the page; None for the same.

        Raises:
            InputError: A file cannot be written.
        """
        if self.page is not None:
            write_file(self.page, render(page or document, OutputFormat.HTML))
            note(f"wrote {self.page}")
        if self.file is None:
            write(render(document, self.format, Terminal(shutil.get_terminal_size().columns, coloured())))
        else:
            write_file(self.file, render(document, self.format))
            note(f"wrote {self.file}")


def write(text: str) -> None:
    """Write a part of the result to standard output."""
    click.echo(without_commands(text), nl=bool(text) and not text.endswith("\n"))


def write_json(value: object) -> None:
    """Write a result as indented JSON, with keys in the order they are given."""
    click.echo(json_text(value))


def note(text: str) -> None:
    """Write a message that is no part of the result to standard error."""
    click.echo(printed(f"nvfp4: {text}"), err=True)


def coloured() -> bool:
    """Return whether standard output is a terminal with colour (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


@contextlib.contextmanager
def working(message: str) -> Iterator[None]:
    """Show a message, the time since it began and what is waited for while the block runs.

    Where standard error is a terminal, that is one line with a spinner; else one line now, and one every 20 s.
    """
    started = time.monotonic()

    def line(width: int | None = None) -> str:
        jobs = [str(activity) for activity in ACTIVITIES.snapshot()][:_MOST_JOBS]
        start = f"{printed(message)} ... {time.monotonic() - started:.0f} s"
        text = "; ".join([start, *jobs])
        if width is None or len(text) <= width or not jobs:
            return text
        return f"{start}; {shortened(jobs[0], max(width - len(start) - 2, _LEAST_JOB))}"

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, markup=False, highlight=False, emoji=False)

        def drawn() -> Text:
            return Text(line(console.width - 2), overflow="ellipsis", no_wrap=True)  # the spinner takes two

        status = console.status(drawn())
        with status, _repeating(_REDRAW_S, lambda: status.update(drawn())):
            yield
        return
    note(f"{printed(message)} ...")
    with _repeating(_HEARTBEAT_S, lambda: note(line())):
        yield


@contextlib.contextmanager
def _repeating(every_s: float, act: Callable[[], None]) -> Iterator[None]:
    """Do something at intervals, on a thread, while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            with contextlib.suppress(OSError, ValueError):  # a closed standard error
                act()

    thread = threading.Thread(target=repeat, name="nvfp4-working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def create_folder(folder: Path) -> None:
    """Create a folder that does not exist, with those above it, and say so.

    Raises:
        OSError: It cannot be created.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        note(f"created the folder {folder}")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, and create its folder if there is none.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        create_folder(path.parent)
        write_whole(path, content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def size_text(count: int) -> str:
    """Return a number of bytes with a binary prefix, such as ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")
