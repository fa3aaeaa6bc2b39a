"""``nvfp4 snapshot``: read snapshot files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import click

from pytest_nvfp4.cli.errors import InputError, missing_file
from pytest_nvfp4.cli.options import document_options, result_options
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.cli.sides import Side, of_snapshot
from pytest_nvfp4.report.document import Column, Document, Facts, Table

_KINDS = {"launch": "launch facts", "codegen": "code facts", "cost": "costs", "model": "modelled times"}
_FIELDS = ("name", "canonical", "raw", "space", "align", "dtype")
_COLUMNS = (
    Column("layout", code=True, share=3),
    Column("canonical", code=True, share=6),
    Column("space", code=True),
    Column("alignment"),
)


_FIRST_BYTES = 4096
_OF_SNAPSHOT = b"# nvfp4-"
"""What the first lines of a snapshot contain, also behind the marker of a merge conflict."""


def _files(path: Path) -> list[Path]:
    """Return the snapshots of a folder and of those below it, hidden ones left out; another path as it is."""
    if not path.is_dir():
        return [path]
    found = []
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        found += [Path(folder, name) for name in sorted(files) if name.endswith(".txt")]
    return [file for file in found if _is_snapshot(file)]


def _is_snapshot(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return _OF_SNAPSHOT in stream.read(_FIRST_BYTES)
    except OSError:
        return True  # `check_command` says why it cannot be read


def _read(file: Path) -> Side:
    if file.is_dir():
        raise InputError(f"{file}: is a folder; name a snapshot file in it")
    if not file.is_file():
        raise missing_file(str(file))
    return of_snapshot(file.read_bytes(), label=str(file))


def _kind(side: Side) -> str:
    return next((_KINDS[kind] for kind in side.facts), "layouts")


@click.group("snapshot")
def snapshot_command() -> None:
    """Read snapshot files of layouts, launch facts, code facts, costs or modelled times."""


@snapshot_command.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@document_options()
def show_command(file: Path) -> Document:
    """Show the snapshot FILE: its header, and one line for each layout or fact."""
    side = _read(file)
    facts = next(iter(side.facts.values()), None)
    layouts = None
    blocks: list[Facts | Table] = [Facts(list(side.header.items()))]
    if side.listing is not None:
        records = side.listing.records
        layouts = [{key: getattr(record, key) for key in _FIELDS} for record in records]
        blocks.append(
            Table(_COLUMNS, [(r.name, r.canonical, r.space, r.align and f"align {r.align}") for r in records])
        )
    if facts is not None:
        blocks.append(Facts(list(facts.items())))
    data = {"kind": _kind(side), "header": dict(side.header), "layouts": layouts, "facts": facts}
    return Document(f"{file}: {_kind(side)}", blocks, data)


@snapshot_command.command("check")
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="PATH...")
@result_options()
def check_command(paths: tuple[Path, ...], *, result: ResultWriter) -> None:
    """Check that each PATH is a complete and undamaged snapshot, or a folder of such files.

    A damaged file (a merge conflict, a missing end, an edited field) is reported with the line; exit code 2.
    """
    snapshots: list[dict[str, str | int]] = []
    damaged: list[InputError] = []
    files = {path: _files(path) for path in paths}
    damaged += [InputError(f"{path}: has no snapshots") for path, below in files.items() if not below]
    for file in itertools.chain.from_iterable(files.values()):
        try:
            side = _read(file)
            contents = side.listing.records if side.listing is not None else next(iter(side.facts.values()))
            snapshots.append({"file": str(file), "kind": _kind(side), "count": len(contents)})
        except InputError as error:
            damaged.append(error)
        except OSError as error:
            damaged.append(InputError(f"{file}: cannot be read: {error.strerror}"))
    lines = [(str(found["file"]), f"{found['count']} {found['kind']}, complete") for found in snapshots]
    data = {"snapshots": snapshots, "errors": [error.message for error in damaged]}
    result.write(Document("Snapshots", [Facts(lines)], data))
    for problem in damaged[:-1]:
        problem.show()
    if damaged:
        raise damaged[-1]
