"""``nvfp4 exec``: run a Python program on the device that kernels run on."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pytest_nvfp4.cli import mounts, output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import arch_of, json_option, remote_options, timeout_option
from pytest_nvfp4.cli.used_remote import GRACE_S, used_remote
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.end_signals import clean_ends
from pytest_nvfp4.schedules import WORDS, is_schedule
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import Simulating
    from pytest_nvfp4.device.remote.base import PythonProgram
    from pytest_nvfp4.isolation import OnOutput

_LOCAL = ("auto", "local", "sim")
_LAST_PIECES = 16
"""Pieces of the output that are kept for an advice."""
_SLACK_S = 60.0
"""Seconds between the program's own deadline and the moment when a remote ends its container."""


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="local, sim, auto (local if there is a GPU, else sim), or a remote: modal, ssh:HOST, ...",
)
@click.option("--mount", "mounted", is_flag=True, help="Copy this repository's files to its working folder.")
@click.option(
    "--mount-dir", "folders", multiple=True, metavar="LOCAL:REMOTE", help="Copy a folder too; may be repeated."
)
@click.option(
    "--mount-secret",
    "secrets",
    multiple=True,
    metavar="PATH",
    help="Mount this file although it looks like a credential; may be repeated.",
)
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable; may be repeated.")
@click.option("--stdin", "with_stdin", is_flag=True, help="Pass standard input to it.")
@click.option("--arch", callback=arch_of, metavar="ARCH", help="Architecture of the simulator.  [default: sm_100a]")
@click.option("--races", is_flag=True, help="Simulate, detect races too, and fail on an error.")
@click.option("--race-warnings", is_flag=True, help="As --races, and report what official kernels omit.")
@click.option("--schedule", metavar="SCHEDULE", help="Schedule of the simulator: eager, lazy, late-WARP or a seed.")
@timeout_option(600.0, help_text="Run-time limit of the program in seconds.")
@remote_options(without=("containers",))
@json_option
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def exec_command(
    program: str,
    arguments: tuple[str, ...],
    *,
    device: str,
    mounted: bool,
    folders: tuple[str, ...],
    secrets: tuple[str, ...],
    variables: tuple[str, ...],
    with_stdin: bool,
    arch: str | None,
    races: bool,
    race_warnings: bool,
    schedule: str | None,
    timeout: float,
    remote: RemoteOptions,
    as_json: bool,
) -> None:
    """Run PROGRAM with ARGUMENTS: a Python file, code, or - for code on standard input.

    The program's output is passed on as it is written, its exit status becomes the status of this command, and Ctrl-C
    ends it, also on a remote. It has a clean environment and a new working folder. On sim, device="cuda" and launches
    of CuTe DSL kernels are simulated on the CPU, also in Python processes that the program starts. The status is 124 if
    the program was stopped after --timeout. Findings of the simulator are written to standard error; with --races, an
    error among them makes the status 1. --json writes output and status as JSON at the end.
    """
    simulating = _simulating(device, races=races or race_warnings, race_warnings=race_warnings, schedule=schedule)
    source = _source(program, with_stdin=with_stdin)
    files: dict[str, bytes] = {}
    named = mounts.Named.of(secrets)
    if mounted:
        files |= mounts.repository_files(mounts.repository(Path.cwd()), named)
    for folder in folders:
        files |= mounts.mount(folder, named)
    named.check_used()
    mounts.check_size(files)
    environ = dict(_variable(text) for text in variables)
    if arch is not None:
        environ.setdefault("CUTE_DSL_ARCH", arch)
    from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError

    execution = PythonProgram(
        source=source,
        arguments=arguments,
        files=files,
        environ=environ,
        stdin=sys.stdin.buffer.read() if with_stdin else b"",
        deadline_s=timeout,
        name=Path(program).name if _is_file(program) and program.endswith(".py") else "program.py",
    )
    written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def pass_on(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
        written[stream].append(piece)
        if not as_json:
            _pass_on(stream, piece)
            del written[stream][:-_LAST_PIECES]

    start = time.monotonic()
    try:
        local = device in _LOCAL
        if local:
            with clean_ends(lambda: "", within_s=GRACE_S):
                status = _locally(execution, device, pass_on, simulating)
        else:
            options = replace(remote, longest_s=timeout + _SLACK_S)
            status = _remotely(execution, device, options, pass_on)
    except RemoteError as error:
        raise InputError(f"{device}: {error}") from error
    texts = {stream: b"".join(pieces).decode("utf-8", "replace") for stream, pieces in written.items()}
    if status and _is_file(program) and (advice := mounts.not_found(Path(program), texts["stderr"])):
        output.note(advice)
    if as_json:
        seconds = round(time.monotonic() - start, 3)
        output.write_json({"device": device, "status": status, **texts, "seconds": seconds})
    raise click.exceptions.Exit(status)


def _is_file(program: str) -> bool:
    """Return whether the program is the path of a file, and not code."""
    path = Path(program)
    return "\n" not in program and len(program) < 4096 and (path.suffix == ".py" or path.is_file())


def _source(program: str, *, with_stdin: bool) -> str:
    if program == "-":
        if with_stdin:
            raise InputError("- and --stdin both read standard input: put the program or its input into a file")
        return sys.stdin.read()
    if not _is_file(program):
        return program
    path = Path(program)
    if not path.is_file():
        raise InputError(f"{program}: no such file; give a file, code, or - for standard input")
    import io
    import tokenize

    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{program}: is not Python source: {error}") from error


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--env {text!r}: write it as NAME=VALUE (this environment is not passed on)")
    return name, value


def _pass_on(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
    to = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    to.write(piece)
    to.flush()


def _simulating(device: str, *, races: bool, race_warnings: bool, schedule: str | None) -> Simulating | None:
    """Return how the simulator runs, or None if no option sets it. Raises InputError."""
    if not races and schedule is None:
        return None
    if device not in ("auto", "sim"):
        given = "--races" if races else "--schedule"
        raise InputError(f"{given} is for the simulator, but --device is {device}: give --device sim")
    if schedule is not None and not is_schedule(schedule):
        raise InputError(f"--schedule {schedule!r} must be {WORDS}")
    from pytest_nvfp4.device.job import Simulating

    return Simulating(races=races, race_warnings=race_warnings, schedule=schedule or "eager")


def _locally(program: PythonProgram, device: str, pass_on: OnOutput, simulating: Simulating | None) -> int:
    """Run a program on this machine, and return its status. Raises InputError."""
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.gpus import visible_gpus
    from pytest_nvfp4.device.select import select

    try:
        with temporary_folder("exec") as folder:
            chosen = select("sim" if simulating is not None else device, folder=Path(folder))
    except DeviceUnavailableError as error:
        raise InputError(str(error)) from error
    if chosen.name == "sim":
        done = execute(program, backend="sim", on_output=pass_on, simulating=simulating)
    else:
        done = execute(program, backend="cuda", visible=visible_gpus()[0], on_output=pass_on)
    if done.timed_out:
        output.note(f"the program was stopped after {program.deadline_s:g} s; raise --timeout if it needs more")
    return done.exit_status


def _remotely(program: PythonProgram, device: str, options: RemoteOptions, pass_on: OnOutput) -> int:
    """Run a program on a remote, and return its status. Raises RemoteError and InputError."""
    from pytest_nvfp4.device.remote.base import ProgramRemote
    from pytest_nvfp4.device.remote.registry import affordable_s

    with used_remote(device, options) as chosen:
        if not isinstance(chosen, ProgramRemote):
            raise InputError(f"{device} runs kernels, but no programs; use ssh:HOST, modal, sim or local")
        if (seconds := affordable_s(chosen, options)) < program.deadline_s:
            output.note(f"--remote-max-cost stops the program after {seconds:.0f} s, before --timeout")
            program = replace(program, deadline_s=seconds)
        return chosen.execute(program, on_output=pass_on)
