"""``nvfp4 snapshot``: read a snapshot file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.sides import Side, of_snapshot
from pytest_nvfp4.text import visible


def _read(file: Path) -> Side:
    if file.is_dir():
        raise InputError(f"{file}: is a folder; name a snapshot file in it")
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    return of_snapshot(file.read_bytes(), label=str(file))


def _kind(side: Side) -> str:
    if side.listing is not None:
        return "layouts"
    return "launch facts" if side.launch is not None else "costs" if side.cost is not None else "code facts"


def _facts(side: Side) -> Mapping[str, str] | None:
    return next((facts for facts in (side.launch, side.codegen, side.cost) if facts is not None), None)


def _count(side: Side) -> int:
    return len(side.listing.records) if side.listing is not None else len(_facts(side) or {})


@click.group("snapshot")
def snapshot_command() -> None:
    """Read a snapshot file of layouts, launch facts, code facts or costs."""


@snapshot_command.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show_command(file: Path, as_json: bool) -> None:
    """What the snapshot FILE holds: its header, and a line for each layout or fact."""
    side = _read(file)
    facts = _facts(side)
    if as_json:
        layouts = None
        if side.listing is not None:
            layouts = [
                {
                    "name": record.name,
                    "canonical": record.canonical,
                    "raw": record.raw,
                    "space": record.space,
                    "align": record.align,
                    "dtype": record.dtype,
                }
                for record in side.listing.records
            ]
        output.write_json({"kind": _kind(side), "header": dict(side.header), "layouts": layouts, "facts": facts})
        return
    for key, value in side.header.items():
        output.write(f"{visible(key)}: {visible(value)}")
    if side.listing is not None:
        for record in side.listing.records:
            align = "" if record.align is None else f"  align {record.align}"
            space = f"  {record.space}" if record.space else ""
            output.write(visible(f"{record.name}  {record.canonical}{space}{align}"))
    for name, value in (facts or {}).items():
        output.write(visible(f"{name}  {value}"))


@snapshot_command.command("check")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
@json_option
def check_command(files: tuple[Path, ...], as_json: bool) -> None:
    """Whether each FILE is a whole snapshot that could have been written by this tool.

    A damaged one (a merge conflict, a cut, an edited field) is an error that names the line; exit code 2.
    """
    good: list[dict[str, object]] = []
    broken: list[InputError] = []
    for file in files:
        try:
            side = _read(file)
            good.append({"file": str(file), "kind": _kind(side), "count": _count(side)})
        except InputError as error:
            broken.append(error)
        except OSError as error:
            broken.append(InputError(f"{file}: cannot be read: {error.strerror}"))
    if as_json:
        output.write_json({"snapshots": good, "errors": [found.message for found in broken]})
    else:
        for one in good:
            output.write(visible(f"{one['file']}: {one['count']} {one['kind']}, whole"))
    for found in broken[:-1]:
        found.show()
    if broken:
        raise broken[-1]
