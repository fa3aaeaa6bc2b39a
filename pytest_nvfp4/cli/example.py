"""``nvfp4 example``: write a shipped kernel to a file."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.output import note, write_file
from pytest_nvfp4.report.document import Document

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "examples", _PACKAGE.parent / "kernels")
"""Place of the shipped kernels in a wheel, and in a clone."""
NAMES = ("nvfp4_group_gemm", "nvfp4_gemm", "nvfp4_dual_gemm", "nvfp4_gemv")


@click.command("example")
@click.argument("name", type=click.Choice(NAMES), default=NAMES[0])
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="[default: NAME.py]")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@document_options()
def example_command(*, name: str, out: Path | None, force: bool) -> Document:
    """Write the shipped kernel NAME, one self-contained file for B200 (sm_100a), to the working folder."""
    found = [folder / name / "sm100.py" for folder in _FOLDERS if (folder / name / "sm100.py").is_file()]
    if not found:
        raise InputError(f"{_FOLDERS[0] / name}: no such folder; install pytest-nvfp4 again")
    place = out or Path(f"{name}.py")
    if place.exists() and not force:
        raise InputError(f"{place} exists; name another file with --out, or overwrite it with --force")
    write_file(place, found[0].read_bytes())
    note(f"wrote {place}")
    following = f"nvfp4 check {place}"
    return Document("Example", [f"check it: {following}"], {"ok": True, "file": str(place), "next": following})
