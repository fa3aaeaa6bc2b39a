"""``nvfp4 exec``: run a Python program where kernels run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from pytest_nvfp4.cli import mounts, output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import arch_of, json_option
from pytest_nvfp4.schedules import WORDS, is_schedule

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import Simulating
    from pytest_nvfp4.device.remote.base import Execution, RemoteOptions
    from pytest_nvfp4.isolation import OnOutput

_HERE = ("auto", "local", "sim")
_GRACE_S = 20.0
_SLACK_S = 60.0
"""A remote ends a container so much later than the program, which has its own deadline."""


@dataclass(frozen=True)
class Where:
    """What the command line says of a remote."""

    gpu: str
    timeout_s: float
    wait_s: float
    max_cost: float | None
    deployed_app: str | None

    def options(self) -> RemoteOptions:
        """The same for the remote."""
        from pytest_nvfp4.device.remote.base import RemoteOptions

        return RemoteOptions(
            gpu=self.gpu,
            timeout_s=self.wait_s,
            longest_s=self.timeout_s + _SLACK_S,
            max_cost=self.max_cost,
            deployed_app=self.deployed_app,
        )


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="local, sim, auto (local where there is a GPU, else sim), or a remote: modal, ssh:HOST, ...",
)
@click.option("--mount", "mounted", is_flag=True, help="Put this repository's files into its working folder.")
@click.option(
    "--mount-dir", "folders", multiple=True, metavar="LOCAL:REMOTE", help="Put a folder there too; may be repeated."
)
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable; may be repeated.")
@click.option("--stdin", "with_stdin", is_flag=True, help="Give it what comes on standard input.")
@click.option("--arch", callback=arch_of, metavar="ARCH", help="What the simulator models (default: sm_100a).")
@click.option("--races", is_flag=True, help="Simulate, look for races too, and fail where an error is found.")
@click.option("--race-warnings", is_flag=True, help="The same, and warn of what official kernels leave out.")
@click.option("--schedule", metavar="SCHEDULE", help="Simulate under this schedule: eager, lazy, late-WARP or a seed.")
@click.option("--gpu", default="B200", show_default=True, metavar="GPU", help="The remote's GPU.")
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds it may take.")
@click.option(
    "--remote-timeout",
    type=click.FloatRange(min=1),
    default=900.0,
    show_default=True,
    help="Seconds to wait for a machine before that.",
)
@click.option("--max-cost", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="Most it may cost.")
@click.option("--deployed-app", metavar="NAME", help="Use this deployed app (modal).")
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
    variables: tuple[str, ...],
    with_stdin: bool,
    arch: str | None,
    races: bool,
    race_warnings: bool,
    schedule: str | None,
    gpu: str,
    timeout: float,
    remote_timeout: float,
    max_cost: float | None,
    deployed_app: str | None,
    as_json: bool,
) -> None:
    """Run PROGRAM, which is a Python file, code, or - for code on standard input, with ARGUMENTS.

    Its output comes as it is written, its exit status is this command's, and Ctrl-C ends it there too. It gets a
    scrubbed environment and a new working folder. On sim, device="cuda" and the launches of CuTe DSL kernels are
    simulated on the CPU; 124 is the status of a program that was stopped after --timeout. What the simulator finds is
    told on standard error once it has ended; with --races, an error among it makes the status 1. With --json its output
    and status come as JSON once it has ended; this command's status is the same.
    """
    simulating = _simulating(device, races=races or race_warnings, race_warnings=race_warnings, schedule=schedule)
    source = _source(program, with_stdin=with_stdin)
    files: dict[str, bytes] = {}
    if mounted:
        files |= mounts.repository_files(mounts.repository(Path.cwd()))
    for folder in folders:
        files |= mounts.mount(folder)
    mounts.check_size(files)
    environ = dict(_variable(text) for text in variables)
    if arch is not None:
        environ.setdefault("CUTE_DSL_ARCH", arch)
    from pytest_nvfp4.device.remote.base import Execution, RemoteError

    execution = Execution(
        source=source,
        arguments=arguments,
        files=files,
        environ=environ,
        stdin=sys.stdin.buffer.read() if with_stdin else b"",
        deadline_s=timeout,
    )
    where = Where(gpu, timeout, remote_timeout, max_cost, deployed_app)
    said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def keep(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
        said[stream].append(piece)

    pass_on, start = keep if as_json else _pass_on, time.monotonic()
    try:
        here = device in _HERE
        with _ending_when_interrupted():
            if here:
                status = _here(execution, device, pass_on, simulating)
            else:
                status = _there(execution, device, where, pass_on)
    except RemoteError as error:
        raise InputError(f"{device}: {error}") from error
    if as_json:
        texts = {stream: b"".join(pieces).decode("utf-8", "replace") for stream, pieces in said.items()}
        seconds = round(time.monotonic() - start, 3)
        output.write_json({"device": device, "status": status, **texts, "seconds": seconds})
    raise click.exceptions.Exit(status)


@contextlib.contextmanager
def _ending_when_interrupted() -> Iterator[None]:
    """Ctrl-C ends this process within ``_GRACE_S``, also where the far side holds it or the exception is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(_GRACE_S, os._exit, (int(Exit.INTERRUPTED),))
        timer.daemon = True
        timer.start()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _source(program: str, *, with_stdin: bool) -> str:
    if program == "-":
        if with_stdin:
            raise InputError("- reads the program from standard input, and --stdin wants it too: put one into a file")
        return sys.stdin.read()
    path = Path(program)
    looks_like_file = "\n" not in program and len(program) < 4096 and (path.suffix == ".py" or path.is_file())
    if not looks_like_file:
        return program
    if not path.is_file():
        raise InputError(f"{program} is not there; give a file, code, or - for standard input")
    import io
    import tokenize

    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{program} is no Python source: {error}") from error


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--env {text!r}: write it as NAME=VALUE (nothing of this environment is passed on by itself)")
    return name, value


def _pass_on(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
    to = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    to.write(piece)
    to.flush()


def _simulating(device: str, *, races: bool, race_warnings: bool, schedule: str | None) -> Simulating | None:
    """How the simulator runs; None where nothing is said of it. Raises InputError."""
    if not races and schedule is None:
        return None
    if device not in ("auto", "sim"):
        given = "--races" if races else "--schedule"
        raise InputError(f"{given} is for the simulator, and --device is {device}: give --device sim")
    if schedule is not None and not is_schedule(schedule):
        raise InputError(f"--schedule {schedule!r} must be {WORDS}")
    from pytest_nvfp4.device.job import Simulating

    return Simulating(races=races, race_warnings=race_warnings, schedule=schedule or "eager")


def _here(program: Execution, device: str, pass_on: OnOutput, simulating: Simulating | None) -> int:
    """Run it on this machine. Raises InputError."""
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.gpus import visible_gpus
    from pytest_nvfp4.device.select import select

    try:
        with tempfile.TemporaryDirectory(prefix="nvfp4-exec-") as folder:
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


def _there(program: Execution, device: str, where: Where, pass_on: OnOutput) -> int:
    """Run it on a remote. Raises RemoteError and InputError."""
    from pytest_nvfp4.device.remote.base import Executes
    from pytest_nvfp4.device.remote.registry import remote

    chosen = remote(device, where.options())
    if not isinstance(chosen, Executes):
        raise InputError(f"{device} runs kernels, but no programs; ssh:HOST, modal, sim and local do")
    try:
        return chosen.execute(program, on_output=pass_on)
    finally:
        chosen.stop()
        cost = chosen.cost()
        if cost.seconds >= 1:
            output.note(f"{device}: {cost}")
