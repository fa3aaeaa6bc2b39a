"""``nvfp4 doctor``: what works on this machine, and how to get what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.doctor import gpu, packages
from pytest_nvfp4.cli.doctor.model import Item, State
from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.options import arch_of, json_option
from pytest_nvfp4.settings import find_root, load
from pytest_nvfp4.text import visible

_COLOURS = {State.OK: "green", State.ABSENT: None, State.WARNING: "yellow", State.FAILED: "red"}


def examine(arch: str, *, ask_torch: bool, probe: bool) -> Iterator[Item]:
    """Look at everything, quick things first. Modules that need packages are imported one by one: a missing package
    is what the doctor is there to report."""
    yield from packages.python()
    yield from packages.required()
    yield from packages.dsl_libraries()
    yield from packages.plugin()
    yield from _if_importable("tools", _tools)
    yield from gpu.items(arch, ask_torch=ask_torch)
    yield from _if_importable("gpu", lambda: _simulator(arch))
    yield from packages.optional()
    yield from _if_importable("optional", _programs)
    if probe:
        yield from _if_importable("compile", lambda: _probe(arch))


def _if_importable(section: str, look: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    try:
        yield from look()
    except ModuleNotFoundError as error:
        name = (error.name or "a package").partition(".")[0]
        yield Item(section, name, State.FAILED, f"cannot be imported: {error}", f"pip install {name}")


def _tools() -> Iterator[Item]:
    from pytest_nvfp4.cli.doctor import tools

    yield from tools.binary_tools()
    yield from tools.cache()


def _simulator(arch: str) -> Iterator[Item]:
    from pytest_nvfp4.device.sim import SimDevice

    device = SimDevice(arch=arch)
    unsupported = device.unsupported(arch)
    if unsupported is None:
        found = f"runs {arch} on the CPU, as a model of {device.describe().name}: results and counts, no times"
        yield Item("gpu", "simulator", State.OK, found)
    else:
        yield Item("gpu", "simulator", State.ABSENT, unsupported, needed_for=f"verifying {arch} without a GPU")


def _programs() -> Iterator[Item]:
    from pytest_nvfp4.cli.doctor import tools

    yield from tools.programs()


def _probe(arch: str) -> Iterator[Item]:
    from pytest_nvfp4.cli.doctor.probe import compile_here

    with output.working(f"compiling a small kernel for {arch}"):
        found = compile_here(arch)
    yield found


def _show(item: Item) -> None:
    state = click.style(f"{item.state.value:<8}", fg=_COLOURS[item.state], bold=item.state is State.FAILED)
    text = f"{state} {item.name:<28} {visible(item.found)}"
    output.write(text if output.coloured() else click.unstyle(text))
    if item.state is not State.OK:
        if item.needed_for:
            output.write(f"{'':<8}   needed for {item.needed_for}")
        if item.fix:
            output.write(f"{'':<8}   get it with: {item.fix}")


@click.command("doctor")
@click.option(
    "--arch", metavar="ARCH", callback=arch_of, help="Architecture to compile for; that of the settings by default."
)
@click.option("--no-probe", is_flag=True, help="Do not compile a small kernel.")
@click.option("--torch", "ask_torch", is_flag=True, help="Import torch too, to see which devices it was built for.")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, *, arch: str | None, no_probe: bool, ask_torch: bool, as_json: bool) -> None:
    """What works on this machine, and the command that gets what does not.

    Versions of everything that has a say, the GPU if there is one, the tools for SASS, the cache, optional tools, and
    whether a kernel compiles here. Exit code 1 if something required is missing or does not work.
    """
    arch = arch or load(find_root(Path.cwd())).default.arch
    found: list[Item] = []
    section = ""
    for item in examine(arch, ask_torch=ask_torch, probe=not no_probe):
        found.append(item)
        if as_json:
            continue
        if item.section != section:
            section = item.section
            output.write(section)
        _show(item)
    failed = [item for item in found if item.state is State.FAILED]
    if as_json:
        output.write_json({"ok": not failed, "arch": arch, "items": [item.to_json() for item in found]})
    else:
        output.write(
            f"{len(failed)} required thing(s) missing or not working" if failed else "everything required is here"
        )
    ctx.exit(Exit.FAILED if failed else Exit.FINE)
