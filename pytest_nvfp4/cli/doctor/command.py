"""``nvfp4 doctor``: what works on this machine, and how to get what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.doctor import gpu, packages
from pytest_nvfp4.cli.doctor.model import Item, State
from pytest_nvfp4.cli.options import arch_of, document_options
from pytest_nvfp4.report.document import Cell, Column, Document, Section, Style, Styled, Table
from pytest_nvfp4.settings import find_root, load

_STYLES: dict[State, Style] = {State.OK: "good", State.ABSENT: "", State.WARNING: "warning", State.FAILED: "bad"}
_COLUMNS = (Column("state"), Column("name"), Column("found"))


def examine(arch: str, *, ask_torch: bool) -> Iterator[Item]:
    """Yield everything but the compile, quick things first."""
    yield from packages.python()
    yield from packages.required()
    yield from packages.dsl_libraries()
    yield from packages.plugin()
    yield from _if_importable("tools", lambda: _tools("binary_tools", "cache"))
    yield from _if_importable("sandbox", lambda: _tools("sandbox"))
    yield from gpu.items(arch, ask_torch=ask_torch)
    yield from _if_importable("gpu", lambda: _simulator(arch))
    yield from packages.optional()
    yield from _if_importable("optional", lambda: _tools("programs"))


def _if_importable(section: str, look: Callable[[], Iterable[Item]]) -> Iterator[Item]:
    """Yield the items of a part, or the missing package it needs: each part imports what it needs when it runs."""
    try:
        yield from look()
    except ModuleNotFoundError as error:
        name = (error.name or "a package").partition(".")[0]
        yield Item(section, name, State.FAILED, f"cannot be imported: {error}", f"pip install {name}")


def _tools(*parts: str) -> Iterator[Item]:
    from pytest_nvfp4.cli.doctor import tools

    for part in parts:
        yield from getattr(tools, part)()


def _simulator(arch: str) -> Iterator[Item]:
    from pytest_nvfp4.device.sim import SimDevice

    device = SimDevice(arch=arch)
    unsupported = device.unsupported(arch)
    if unsupported is not None:
        yield Item("gpu", "simulator", State.ABSENT, unsupported, needed_for=f"verifying {arch} without a GPU")
        return
    found = f"runs {arch} on the CPU, as a model of {device.describe().name}: results and counts, no times"
    yield Item("gpu", "simulator", State.OK, found)


def _probe(arch: str) -> Iterator[Item]:
    from pytest_nvfp4.cli.doctor.probe import compile_here

    with output.working(f"compiling a small kernel for {arch}"):
        item = compile_here(arch)
    yield item


def _row(item: Item) -> tuple[Cell, ...]:
    lines = [item.found]
    if item.state is not State.OK:
        lines += [f"needed for {item.needed_for}"] if item.needed_for else []
        lines += [f"get it with: {item.fix}"] if item.fix else []
    return Styled(item.state.value, _STYLES[item.state]), item.name, "\n".join(lines)


@click.command("doctor")
@click.option(
    "--arch", metavar="ARCH", callback=arch_of, help="Architecture to compile for.  [default: that of the settings]"
)
@click.option("--no-probe", is_flag=True, help="Do not compile a small kernel.")
@click.option("--torch", "ask_torch", is_flag=True, help="Import torch, to list the devices it was built for.")
@document_options()
def doctor_command(*, arch: str | None, no_probe: bool, ask_torch: bool) -> Document:
    """Examine this machine, and name the command that installs what is missing.

    Lists versions of all packages, GPUs, the tools for SASS, the cache and optional tools, and compiles a small kernel.
    Exit code 1 if something required is missing or does not work.
    """
    arch = arch or load(find_root(Path.cwd())).default.arch
    items = list(examine(arch, ask_torch=ask_torch))
    if not no_probe:
        items += _if_importable("compile", lambda: _probe(arch))
    failed = [item for item in items if item.state is State.FAILED]
    sections = [
        Section(name, [Table(_COLUMNS, [_row(item) for item in part], heading=False)])
        for name, part in groupby(items, key=lambda item: item.section)
    ]
    summary = f"{len(failed)} required thing(s) missing or not working" if failed else "everything required is here"
    data = {"ok": not failed, "arch": arch, "items": [asdict(item) for item in items]}
    return Document(f"This machine, for {arch}", [*sections, Styled(summary, "strong")], data, not failed)
