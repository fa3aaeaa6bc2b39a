"""``nvfp4 profile diff``: compare two saved reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.profile.show import load
from pytest_nvfp4.report.document import Block, Column, Document, Items, Section, Table
from pytest_nvfp4.text import clip

if TYPE_CHECKING:
    from pytest_nvfp4.profile.compare import Comparison


@click.command("diff")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--kernel", metavar="TEXT", help="Compare only kernels whose name contains TEXT.")
@document_options()
def diff_command(old: Path, new: Path, *, kernel: str | None) -> Document:
    """Compare the reports OLD and NEW, kernel by kernel; each is what `nvfp4 profile show` reads.

    A metric that either report lacks is unknown and not compared. Two profiles are two measurements: whether a
    difference is more than noise, `benchmark` says.
    """
    from pytest_nvfp4.profile.compare import compare

    first, second = load(old, kernel), load(new, kernel)
    for path, profile in ((old, first), (new, second)):
        if not profile.launches:
            raise InputError(f"{path}: has no launches of kernels to compare")
    found = compare(first, second)
    return Document(f"{old} and {new}", list(_blocks(found)), _json(found))


def _blocks(found: Comparison) -> Iterator[Block]:
    if found.notes:
        yield Items(found.notes)
    columns = [
        Column("metric"),
        Column("old", right=True),
        Column("new", right=True),
        Column("change", right=True),
    ]
    for kernel in found.both:
        rows = []
        for change in kernel.changes:
            relative = "" if change.relative is None else f"{change.relative:+.1%}"
            rows.append((change.known.title, str(change.old), str(change.new), relative))
        counts = f" ({kernel.old_launches} and {kernel.new_launches} launches)"
        yield Section(
            clip(kernel.name, 100) + (counts if kernel.old_launches + kernel.new_launches > 2 else ""),
            [Table(columns, rows)],
        )
    if found.only_old:
        yield Section("Only in the old report", [Items([clip(name, 200) for name in found.only_old])])
    if found.only_new:
        yield Section("Only in the new report", [Items([clip(name, 200) for name in found.only_new])])


def _json(found: Comparison) -> dict[str, Any]:
    return {
        "kernels": [
            {
                "name": kernel.name,
                "launches": [kernel.old_launches, kernel.new_launches],
                "metrics": {
                    change.known.name: {
                        "old": change.old.value,
                        "new": change.new.value,
                        "unit": change.known.unit,
                        "relative": change.relative,
                    }
                    for change in kernel.changes
                },
            }
            for kernel in found.both
        ],
        "only_old": list(found.only_old),
        "only_new": list(found.only_new),
        "notes": list(found.notes),
    }
