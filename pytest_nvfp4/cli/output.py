"""Writing results to standard output and everything else to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.text import visible

TABLE_WIDTH = 100
"""Columns below which a table would fold every cell; plain lines are then easier to read."""


def write(text: str) -> None:
    """A result."""
    click.echo(text, nl=not text.endswith("\n"))


def write_json(value: object) -> None:
    """A result as JSON, indented, keys in the order they were given."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Something to know that is no result."""
    click.echo(f"nvfp4: {visible(text, multiline=True)}", err=True)


def width() -> int:
    """Columns of the terminal that standard output goes to."""
    return shutil.get_terminal_size().columns


def coloured() -> bool:
    """Whether standard output is a terminal that wants colour (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def wants_table() -> bool:
    """Whether a table with folded cells suits standard output better than plain lines."""
    return coloured() and width() >= TABLE_WIDTH


def write_table(columns: Sequence[tuple[str, int | None]], rows: Sequence[Sequence[str]]) -> None:
    """A table for a terminal; a column is its title and its share of the width (None for as wide as it needs)."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=True, show_edge=False, pad_edge=False)
    for title, ratio in columns:
        table.add_column(title, ratio=ratio, overflow="fold", no_wrap=ratio is None)
    for row in rows:
        table.add_row(*(Text(visible(cell, multiline=True)) for cell in row))
    Console(markup=False, highlight=False, emoji=False, width=width()).print(table)


@contextlib.contextmanager
def working(message: str) -> Iterator[None]:
    """Say what takes time: a spinner where standard error is a terminal, one line elsewhere."""
    text = visible(message)
    if not sys.stderr.isatty():
        note(f"{text} ...")
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, markup=False, highlight=False, emoji=False).status(Text(text)):
        yield


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: beside its place, then renamed.

    Raises:
        InputError: it cannot be written there.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent or Path(), prefix=f".{path.name[:60]}.")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        _as_new_file(Path(temporary))
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _as_new_file(path: Path) -> None:
    """The permissions a new file would have; a temporary file is readable by its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def size_text(count: int) -> str:
    """Bytes for people: ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def jsonable(value: Any) -> Any:
    """Pydantic models, paths and tuples as JSON-ready values."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value
