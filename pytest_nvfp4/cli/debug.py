"""``nvfp4 debug``: stop a simulated kernel at a line, a barrier or a fault, look around, and continue step by step."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import RunOptions, json_option, run_options, timeout_option
from pytest_nvfp4.cli.run_source import SUFFIXES
from pytest_nvfp4.cli.simulation import Runnable, runnable
from pytest_nvfp4.schedules import WORDS, is_schedule
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import json_text, printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.dialogue import Answer
    from pytest_nvfp4.device.simulate import SimulationResult

PROMPT = "(nvfp4) "
_CTA = re.compile(r"\d+(,\d+){0,2}")
_SPACES = ("smem", "tmem")
_ENDED = "debug"
"""Kind of the finding of a run that `quit` ended."""


@click.command("debug")
@click.argument("kernel", type=click.Path(path_type=Path))
@run_options
@click.option("--break", "breaks", multiple=True, metavar="PLACE", help="FILE:LINE, barrier or fault; may be repeated.")
@click.option("--cta", metavar="X,Y,Z", help="Stop for this CTA only.")
@click.option("--warp", type=click.IntRange(0, 31), metavar="N", help="Stop for this warp only.")
@click.option(
    "--commands",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Read commands from FILE, one a line; the kernel runs on when they end.",
)
@click.option("--schedule", default="eager", show_default=True, metavar="NAME", help="As of nvfp4 run.")
@timeout_option(3600.0, help_text="Timeout in seconds, the time at the prompt included.")
@json_option
def debug_command(
    kernel: Path,
    *,
    how: RunOptions,
    breaks: tuple[str, ...],
    cta: str | None,
    warp: int | None,
    commands: IO[str] | None,
    schedule: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Stop KERNEL in the simulator, and look at its registers, memory and barriers.

    It stops at each --break, where the source calls breakpoint(), and at a fault or deadlock, and reads commands there
    (help lists them). Without --break it stops where the kernel is launched. With --json each answer is one line. Exit
    code 1 if the kernel has an error.
    """
    if kernel.suffix in SUFFIXES:
        raise InputError(f"{kernel}: nvfp4 debug is for Python files; launch it from one (`nvfp4 guide debug`)")
    if cta is not None and not _CTA.fullmatch(cta):
        raise InputError(f"--cta {cta!r}: write X,Y,Z")
    if not is_schedule(schedule):
        raise InputError(f"--schedule {schedule!r} must be {WORDS}")
    subject = runnable(kernel, how, simulated=True)
    if len(subject.problems) > 1:
        raise InputError(f"--problem names {len(subject.problems)} problems; the debugger runs one")
    first = [f"layout {name} {type_text}" for name, type_text in _layouts(subject, timeout)]
    if cta is not None or warp is not None:
        first.append(f"focus {cta or '-'} {'' if warp is None else warp}")
    first += [f"break {place}" for place in breaks]
    if breaks or any("breakpoint()" in file.text for file in subject.spec.files):
        first.append("continue")
    session = _Session(subject, first, commands, as_json=as_json)
    result = _run(subject, session, schedule=schedule, timeout_s=timeout)
    click.get_current_context().exit(session.ended(result, breaks))


def _layouts(subject: Runnable, timeout_s: float) -> Iterator[tuple[str, str]]:
    """Yield the tensors in shared memory and TMEM that the kernel's functions name, each name's first type."""
    from pytest_nvfp4.toolchain.tracer import Limits, Tracer

    if subject.request is None:
        return
    with output.working(f"compiling {subject.label}"):
        trace = Tracer(root=subject.root, limits=Limits(deadline_s=timeout_s), notify=output.note).trace(
            subject.request
        )
    seen = set()
    for value in trace.values:
        name = value.name.rpartition(".")[2]
        if name not in seen and any(f"{space}," in value.type or f"{space}>" in value.type for space in _SPACES):
            seen.add(name)
            yield name, " ".join(value.type.split())


def _run(subject: Runnable, session: _Session, *, schedule: str, timeout_s: float) -> SimulationResult:
    from pytest_nvfp4.device.dialogue import dialogue
    from pytest_nvfp4.device.simulate import simulate

    output.note(f"debugging {subject.label} on {subject.problems[0].name} in the simulator")
    with temporary_folder("debug") as name, dialogue(session.answer) as talk:
        device = subject.simulator(timeout_s=timeout_s, dialogue=talk)
        if unsupported := device.unsupported(subject.spec.arch):
            raise InputError(f"{subject.label}: {unsupported}")
        (result,) = simulate(
            device,
            subject.spec,
            subject.cases(),
            folder=Path(name) / "jobs",
            base=subject.base,
            deadline_s=timeout_s,
            outputs=True,
            schedule=schedule,
            debugging=True,
        )
    return result


class _Session:
    """A session at the terminal or with a script.

    Args:
        first: Commands before those of the user, whose answers are not shown.
        commands: A script; None for standard input.
    """

    def __init__(self, subject: Runnable, first: Sequence[str], commands: IO[str] | None, *, as_json: bool) -> None:
        self._subject = subject
        self._first = list(first)
        self._continues = "continue" in first
        self._commands = commands
        self._as_json = as_json
        self._files = {file.path: str(subject.base / file.path) for file in subject.spec.files}
        self._command: str | None = None
        self._stops = 0
        self._quiet = bool(first)

    def answer(self, answer: Answer) -> str | None:
        """Show an answer, and return the next command."""
        stop = "stop" in answer.data and self._command not in ("where", "show", "w")
        self._stops += stop
        if self._quiet and answer.data.keys() & {"error", "note"}:
            output.note(answer.text)
        elif not self._quiet or (self._stops > 1 and stop):
            self._show(answer)
        if self._first:
            self._command = self._first.pop(0)
            return self._command
        self._quiet = False
        self._command = self._read()
        return self._command

    def _show(self, answer: Answer) -> None:
        if self._as_json:
            data = answer.data
            if isinstance(stop := data.get("stop"), dict) and isinstance(file := stop.get("file"), str):
                named = next((own for path, own in self._files.items() if file.endswith(f"/source/{path}")), file)
                data = {**data, "stop": {**stop, "file": named}}
            self._line({"command": self._command, "text": answer.text, **data})
        elif answer.text:
            output.write(printed(answer.text))
        sys.stdout.flush()

    @staticmethod
    def _line(value: dict[str, Any]) -> None:
        click.echo(json.dumps(json.loads(json_text(value))))

    def _read(self) -> str | None:
        """Return the next command of the script or of the user; None at the end."""
        if self._commands is None and sys.stdin.isatty() and not self._as_json:
            import readline  # noqa: F401 - gives `input` a history

            try:
                line = input(PROMPT)
            except EOFError:
                return None
            return line.strip() or self._command
        source = self._commands or sys.stdin
        for line in source:
            if text := line.partition("#")[0].strip():
                if not self._as_json:
                    output.write(printed(f"{PROMPT}{text}"))
                return text
        return None

    def ended(self, result: SimulationResult, breaks: Sequence[str]) -> Exit:
        """Show how the run ended, and return the exit code."""
        findings = [finding for finding in result.findings if finding.kind != _ENDED]
        quit_ = len(findings) < len(result.findings)
        if self._continues and self._stops < 2:
            output.note(f"no warp reached {', '.join(breaks) or 'a call of breakpoint()'}")
        status = "ended by quit" if quit_ else result.status
        if self._as_json:
            found = [finding.to_dict() for finding in findings]
            printed_text = result.call.printed if result.call is not None else ""
            self._line({"end": {"status": status, "findings": found, "printed": printed_text, "stdout": result.stdout}})
        else:
            output.write(printed(f"the run: {status}"))
            for finding in [] if quit_ else findings[:20]:
                output.write(printed(self._subject.finding_text(finding).partition("\n")[0]))
            for title, text in (
                ("the kernel printed", result.call.printed if result.call is not None else ""),
                ("its host code printed", result.stdout),
            ):
                if text.strip():
                    output.write(printed("\n".join([f"{title}:", *(f"  | {line}" for line in text.splitlines())])))
        return Exit.FINE if quit_ or result.status == "passed" else Exit.FAILED
