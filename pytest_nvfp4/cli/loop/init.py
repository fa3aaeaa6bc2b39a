"""``nvfp4 loop init``: write the configuration of a loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.mounts import repository
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.output import note, write, write_file, write_json
from pytest_nvfp4.cli.subject import check_kernel_file, configured
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.config_file import config_text, toml_value
from pytest_nvfp4.loop.configuration.load import CONFIG_NAME, NEEDS_CONTRACT
from pytest_nvfp4.loop.work.agents import AGENTS, Agent, agent
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.settings import KernelSettings, Settings, find_root, load

_MOST_SHOWN = 10


@click.command("init")
@click.argument("kernel", required=False, type=click.Path(path_type=Path))
@click.option(
    "--worker",
    metavar="AGENT|COMMAND",
    help=f"Who proposes candidates: {', '.join(AGENTS)}, or a command line that reads the prompt from standard input.  "
    "[default: left open in the file]",
)
@click.option("--config", "configuration", metavar="NAME", help="Configuration of the kernel, if it has several.")
@click.option(
    "--out",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"File.  [default: {CONFIG_NAME}]",
)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--show", is_flag=True, help="Show the file, and write nothing.")
@json_option
def init_command(
    *,
    kernel: Path | None,
    worker: str | None,
    configuration: str | None,
    output: Path | None,
    force: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Write a commented configuration file for the loop that optimises KERNEL.

    The file is shown before it is written, and on a terminal only after a question. Without KERNEL, it is the only one
    that [tool.pytest_nvfp4] names. Target and problems follow from its settings.
    """
    root = repository(kernel.parent if kernel is not None and kernel.parent.is_dir() else Path.cwd())
    path = (_only_kernel(root) if kernel is None else kernel).resolve()
    config, notes = _proposal(path, root, configuration=configuration, worker=worker)
    text = config_text(config, notes=notes)
    target = root / CONFIG_NAME if output is None else output
    exists = target.exists() or target.is_symlink()
    if exists and not force and not show:
        raise InputError(f"{target}: exists; --force overwrites it, and --show only shows what would be written")
    if not as_json:
        write(text)
    written = not show and _confirmed(target, exists=exists, ask=not as_json)
    if written:
        write_file(target, text)
        left = "" if config.worker.command else "set worker.command in it, then "
        note(f"wrote {target}; {left}`nvfp4 loop run` starts the loop")
    if as_json:
        write_json({"file": str(target), "written": written, "text": text, "config": config.model_dump(mode="json")})


def _confirmed(target: Path, *, exists: bool, ask: bool) -> bool:
    """Return whether the user wants the file to be written; only a terminal is asked."""
    if not ask or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return click.confirm(f"{'Overwrite' if exists else 'Write'} {target}?", default=True, err=True)


def _only_kernel(root: Path) -> Path:
    """Return the only kernel that the settings name. Raises InputError."""
    settings = load(find_root(root))
    found = sorted({path for table in settings.tables for path in settings.root.glob(table.path) if path.is_file()})
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError("no kernel is named in [tool.pytest_nvfp4]; name its file: nvfp4 loop init KERNEL")
    names = ", ".join(str(path.relative_to(settings.root)) for path in found[:_MOST_SHOWN])
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    raise InputError(f"[tool.pytest_nvfp4] names several kernels, {names}{more}; name one: nvfp4 loop init KERNEL")


def _proposal(
    path: Path, root: Path, *, configuration: str | None, worker: str | None
) -> tuple[LoopConfig, dict[str, str]]:
    """Return a configuration for a kernel, and comments on its values. Raises InputError."""
    if not path.is_relative_to(root.resolve()):
        raise InputError(f"{path}: is not in the repository {root}; run the command in that of the kernel")
    settings = load(find_root(path))
    own = configured(settings, path, name=configuration, label=str(path))
    if own.entry is not None:
        raise InputError(f"{path}: {NEEDS_CONTRACT}")
    check_kernel_file(path, label=str(path), has_entry=False)
    kernel: dict[str, Any] = {"file": path.relative_to(root.resolve()).as_posix(), "config": own.name}
    notes: dict[str, str] = {}
    if problems := _problems(settings, own):
        kernel["problems"] = problems
        notes["kernel.problems"] = "From the settings of the kernel in pyproject.toml."
    values: dict[str, Any] = {"kernel": kernel}
    if worker is None:
        notes["worker.command"] = (
            f"The mode command needs one, for example {toml_value(AGENTS['claude'].command)}; `nvfp4 loop init "
            "--worker` knows further agents."
        )
        # The file lacks what only the user knows; until then `nvfp4 loop run` says what is missing.
        made = LoopConfig.model_validate({**values, "mode": "manual"})
        return made.model_copy(update={"mode": "command"}), notes
    known = _agent(worker)
    values["worker"] = {"command": known.command, "network": known.network, "environment": known.environment}
    notes["worker.command"] = known.note
    if known.environment:
        notes["worker.environment"] = "The key of its service. Its settings and logins in your home are not visible."
    return LoopConfig.model_validate(values), notes


def _problems(settings: Settings, own: KernelSettings) -> list[str]:
    """Return the problems on which the settings model or time a kernel, as a configuration names them."""
    return [_name(settings, problem) for problem in own.model or own.benchmark or ()]


def _name(settings: Settings, problem: Problem) -> str:
    try:
        found = settings.resolve_problems([problem.name])
    except ProblemError:
        found = ()
    return problem.name if found == (problem,) else ",".join(map(str, problem.groups))


def _agent(text: str) -> Agent:
    try:
        found = agent(text)
    except ValueError as error:
        raise InputError(f"--worker {text!r}: {error}") from None
    if not found.command:
        raise InputError(f"--worker is empty; known agents are {', '.join(AGENTS)}")
    return found
