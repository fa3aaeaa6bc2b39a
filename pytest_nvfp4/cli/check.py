"""``nvfp4 check`` and ``nvfp4 watch``: the checks of a kernel, as pytest runs them, once or whenever a file changes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError, missing_file
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import clip, printed

STAGES = (("compile", "layouts", "launch", "codegen", "tmem"), ("coverage", "verify", "races", "cost"))
"""Checks in order of cost: those that only compile, then those that simulate."""
_EXPECTED = ("layouts", "launch", "codegen", "cost")
"""Checks against snapshots, which a change at work may fail without being wrong."""
_WATCHED = {".py", ".cu", ".cuh", ".h", ".hpp", ".ptx", ".toml"}
_POLL_S = 0.25
_END_S = 30.0
"""Seconds in which pytest ends after an interrupt."""
_MOST_TEXT = 300

_KERNEL = click.argument("kernel", type=click.Path(path_type=Path))
_OPTIONS = click.argument("pytest_options", metavar="[PYTEST OPTION]...", nargs=-1, type=click.UNPROCESSED)
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": True}
_SHORT = {
    "entry": "FILE::FUNCTION",
    "problem": "NAME",
    "compile-option": "OPTION",
    "arch": "ARCH",
    "races": "WHEN",
    "device": "NAME",
    "html": "FILE",
}
"""Options of other commands, and what they take: `--NAME` is pytest's `--nvfp4-NAME`."""

Outcomes = dict[str, tuple[str, str]]
"""Outcome and message of each check, by name."""


def _short_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of other commands, and call the function with them as pytest's, before ``pytest_options``."""

    @functools.wraps(function)
    def called(*, pytest_options: tuple[str, ...], **given: Any) -> None:
        short = [f"--nvfp4-{name}={value}" for name in _SHORT for value in given.pop(name.replace("-", "_"))]
        function(pytest_options=(*short, *pytest_options), **given)

    for name, takes in reversed(_SHORT.items()):
        help_text = f"The same as --nvfp4-{name}."
        called = click.option(f"--{name}", multiple=True, type=click.UNPROCESSED, metavar=takes, help=help_text)(called)
    return called


@click.command("check", context_settings=_PASSED_ON)
@_KERNEL
@click.option("--check", "checks", multiple=True, metavar="NAME", help="The same as --nvfp4-check; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON, and what pytest shows to stderr.")
@click.option("--md", "as_markdown", is_flag=True, help="The same as Markdown.")
@_OPTIONS
@_short_options
def check_command(
    kernel: Path, pytest_options: tuple[str, ...], *, checks: tuple[str, ...], as_json: bool, as_markdown: bool
) -> None:
    """Run all checks of KERNEL: `pytest KERNEL` by another name.

    Every other option is passed to pytest, such as --snapshot-update or -k verify; `pytest --help` lists them. The exit
    code is pytest's: 0 all passed, 1 a check failed, 2 interrupted, 4 wrong usage, 5 no checks.
    """
    _require(kernel)
    pytest_options = (*(f"--nvfp4-check={name}" for name in checks), *pytest_options)
    sys.stdout.flush()
    sys.stderr.flush()
    if as_json and as_markdown:
        raise click.UsageError("--json and --md name different formats; choose one")
    if as_json or as_markdown:
        raise click.exceptions.Exit(_reported(kernel, pytest_options, "json" if as_json else "md"))
    command = _pytest(kernel, pytest_options)
    os.execv(command[0], command)


def _reported(kernel: Path, options: Sequence[str], form: str) -> int:
    """Run pytest with its output on standard error, write its report to standard output, and return its exit code."""
    with temporary_folder("check") as folder:
        file = Path(folder) / f"report.{form}"
        # A session of its own, so that one Ctrl-C reaches pytest once, and SIGTERM does.
        process = subprocess.Popen(
            _pytest(kernel, [f"--nvfp4-{form}={file}", *options]), stdout=2, start_new_session=True
        )
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
        if file.is_file():
            output.write(file.read_text("utf-8"))
        return code


@click.command("watch", context_settings=_PASSED_ON)
@_KERNEL
@click.option("--runs", type=click.IntRange(min=1), help="End after this many runs.  [default: until Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="Write each run as one line of JSON: ok, and checks by name.")
@_OPTIONS
@_short_options
def watch_command(kernel: Path, runs: int | None, pytest_options: tuple[str, ...], *, as_json: bool) -> None:
    """Check KERNEL whenever it changes, the cheap checks first, and show what is new.

    Watched are the sources and TOML files beside KERNEL. The checks that only compile run first; those that simulate
    run if it compiles and fits; a difference from a snapshot does not keep them from running. A change ends the run in
    progress and starts the next one. Options are those of pytest.

    The exit code is that of the last run: 0 all passed, 1 a check failed; 130 after Ctrl-C.
    """
    _require(kernel)
    before: Outcomes = {}
    number = 0
    with temporary_folder("watch") as folder:
        while True:
            seen = _state(kernel)
            found = _checked(kernel, pytest_options, folder, functools.partial(_changed, kernel, seen))
            if found is None:
                output.note("a file has changed; starting again")
                continue
            number += 1
            if as_json:
                checks = {name: {"outcome": outcome, "message": text} for name, (outcome, text) in found.items()}
                output.write(json.dumps({"ok": not _bad(found), "checks": checks}))
            else:
                for line in report(before, found, first=number == 1):
                    output.write(line)
            before = {**before, **found}
            if number == runs:
                raise click.exceptions.Exit(Exit.FAILED if _bad(found) else Exit.FINE)
            output.note(f"waiting for a change beside {kernel.name} (Ctrl-C ends)")
            while not _changed(kernel, seen):
                time.sleep(_POLL_S)


def report(before: Mapping[str, tuple[str, str]], found: Mapping[str, tuple[str, str]], *, first: bool) -> list[str]:
    """Return lines that show what a run found, against the runs before: what changed, then what is still bad."""
    lines = []
    for name, (outcome, message) in found.items():
        old, said = before.get(name, ("", ""))
        text = clip(printed(message.strip().partition("\n")[0]), _MOST_TEXT)
        if outcome != old and (not first or outcome != "passed"):
            lines.append(f"{name}: {f'{old} -> ' if old else ''}{outcome}{f': {text}' if text else ''}")
        elif outcome in ("failed", "error") and message != said:
            lines.append(f"{name}: {outcome} differently: {text}")
        elif outcome in ("failed", "error"):
            lines.append(f"{name}: still {outcome}: {text}")
    counts = {kind: sum(outcome == kind for outcome, _ in found.values()) for kind in ("failed", "error", "passed")}
    left = [name for name in before if name not in found]
    total = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing checked"
    waits = f"; {len(left)} not run again until these pass" if left and _bad(found) else ""
    return [*lines, f"{time.strftime('%H:%M:%S')} {total}{waits}"]


def _require(kernel: Path) -> None:
    if kernel.is_dir():
        raise InputError(f"{kernel}: is a folder; name the kernel's file in it, or start pytest on the folder")
    if not kernel.is_file():
        raise missing_file(str(kernel), "give the file of a kernel")


def _pytest(kernel: Path, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", str(kernel), *options]


def _bad(found: Mapping[str, tuple[str, str]]) -> bool:
    return any(outcome in ("failed", "error") for outcome, _ in found.values())


def _changed(kernel: Path, seen: Mapping[str, tuple[int, int]]) -> bool:
    return _state(kernel) != seen


def _state(kernel: Path) -> dict[str, tuple[int, int]]:
    """Return time of change and size of the watched files."""
    state = {}
    with contextlib.suppress(OSError), os.scandir(kernel.parent) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if Path(entry.name).suffix in _WATCHED and entry.is_file():
                    status = entry.stat()
                    state[entry.name] = status.st_mtime_ns, status.st_size
    return state


def _checked(kernel: Path, options: Sequence[str], folder: Path, changed: Callable[[], bool]) -> Outcomes | None:
    """Return the outcomes of the checks, stage by stage until one is bad; None if a file changed meanwhile."""
    from pytest_nvfp4.loop.judge.answers import ReportAnswer, read_answer

    found: Outcomes = {}
    for stage in STAGES:
        file = folder / "report.json"
        file.unlink(missing_ok=True)
        command = _pytest(
            kernel, [*(f"--nvfp4-check={name}" for name in stage), f"--nvfp4-json={file}", "-q", *options]
        )
        with output.working(f"{kernel.name}: {', '.join(stage)}"):
            ended = _run(command, changed)
        if ended is None:
            return None
        code, text = ended
        answer = read_answer(file, ReportAnswer)
        if answer is None:
            raise InputError(f"pytest ended with {code} and has no report: {text.strip()[-2000:]}")
        found.update({check.check: (check.outcome, check.message) for check in answer.checks})
        if code not in (0, 1, 5) or _bad(
            {name: each for name, each in found.items() if not name.startswith(_EXPECTED)}
        ):
            break
    return found


def _run(command: Sequence[str], changed: Callable[[], bool]) -> tuple[int, str] | None:
    """Return the exit code and the output of a command; None if a file changed first, which ends it."""
    with temporary_folder("watch-output") as folder, (Path(folder) / "output").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while (code := process.poll()) is None:
                if changed():
                    return None
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # pytest ends the kernels' processes
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                process.kill()
        log.seek(0)
        return code, log.read()
