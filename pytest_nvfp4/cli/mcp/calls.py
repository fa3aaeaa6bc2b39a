"""One call of a tool: a process of its own with a deadline, bounded output and a clean environment."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_nvfp4.cli.mcp.roots import RefusedError, Roots
from pytest_nvfp4.cli.mcp.tools import REPORT, Tool
from pytest_nvfp4.isolation import Captured, Outcome, run, stopped_by
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.run_module import module_command
from pytest_nvfp4.sandbox_mode import MODE_VARIABLE
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import printed

GRACE_S = 30.0
"""Seconds between the time limit that a command keeps itself and the end of its process."""
_PASSED_ON = ("NVFP4_CACHE_DIR", "NVFP4_DATA_DIR", "NVFP4_FORK_SERVER")
_ERROR_CHARACTERS = 4000
_NOT_CHECKED = {
    4: "if the file was not found: it defines no custom_kernel(data) and has no entry (argument entry), or pytest "
    "takes it for a test module by its name",
    5: "no check was selected; name checks that the kernel has",
}
"""Exit code of pytest -> the way out, if nothing was checked."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What every call is limited to, whatever its arguments are.

    Attributes:
        timeout_s: Seconds.
        characters: Characters of a result.
        sandbox: ``auto`` or ``require``.
    """

    timeout_s: float = 600.0
    characters: int = 200_000
    sandbox: str = "auto"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call.

    Attributes:
        text: What agents read.
        exit_code: That of the command.
        failed: Whether the call itself failed: wrong arguments, a time limit, a crash. A check that failed is a result.
        seconds: Seconds that it took.
        dropped: Characters of output that are left out of the text.
        document: The result as JSON, if it was asked for.
    """

    text: str
    exit_code: int
    failed: bool = False
    seconds: float = 0.0
    dropped: int = 0
    document: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the structured content of the tool's result."""
        data: dict[str, Any] = {
            "ok": self.exit_code == 0 and not self.failed,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "dropped": self.dropped,
        }
        return {**data, "document": self.document} if self.document else data


def call(
    tool: Tool, roots: Roots, limits: Limits, *, stop: threading.Event, started: Callable[[], None] = lambda: None
) -> Answer:
    """Run a tool to its end.

    Args:
        tool: The tool with its arguments.
        roots: The files that may be named.
        limits: What it is limited to.
        stop: Ends the call, with everything below it, once it is set.
        started: Called when the process is about to start.

    Raises:
        RefusedError: An argument is refused, or the result is too large.
        StoppedError: The call was stopped.
        OSError: The process could not be started.
    """
    timeout_s = min(tool.timeout_s or limits.timeout_s, limits.timeout_s)
    with temporary_folder("mcp") as folder, stopped_by(stop):
        module, *arguments = tool.words(roots, folder)
        # Settings of pytest may turn the sandbox off; its option comes before them.
        own = [f"--nvfp4-sandbox={limits.sandbox}"] if tool.report else [f"--timeout={timeout_s:g}"]
        at = next((index for index, word in enumerate(arguments) if word == "--"), len(arguments))
        command = module_command(module, *arguments[:at], *own, *arguments[at:])
        environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        started()
        outcome = run(
            command,
            cwd=roots.folders[0],
            deadline_s=timeout_s + (0 if tool.report else GRACE_S),
            environ={**environ, MODE_VARIABLE: limits.sandbox, "NO_COLOR": "1", "PYTHONSAFEPATH": "1"},
            output_bytes=limits.characters,
        )
        return _answer(tool, outcome, folder, limits, timeout_s)


def _answer(tool: Tool, outcome: Outcome, folder: Path, limits: Limits, timeout_s: float) -> Answer:
    code = outcome.exit_status
    out, dropped = _bounded(outcome.stdout, limits.characters)
    err, lost = _bounded(outcome.stderr, limits.characters if tool.program else _ERROR_CHARACTERS)
    if outcome.timed_out and not tool.program:
        way = f"raise timeout_s, of which {limits.timeout_s:g} s is this server's limit, or name a smaller problem"
        return Answer(f"{tool.name} was stopped after {timeout_s:g} s; {way}\n{err}", code, True, outcome.wall_s)
    if tool.program:
        text = f"exit code {code}\n{out}" + (f"\n--- standard error\n{err}" if err else "")
        return Answer(text, code, False, outcome.wall_s, dropped + lost)
    if code not in (0, 1):
        what = _NOT_CHECKED.get(code, "") if tool.report else ""
        text = "\n".join(filter(None, (f"{tool.name}: exit code {code}", err or out, what)))
        return Answer(text, code, True, outcome.wall_s, dropped)
    if tool.format == "text":
        return Answer(out or err, code, False, outcome.wall_s, dropped)
    document = _document(tool, outcome.stdout, folder, limits)
    return Answer(json.dumps(document, ensure_ascii=False), code, False, outcome.wall_s, 0, document)


def _bounded(output: Captured, most: int) -> tuple[str, int]:
    """Return the start and the end of an output without what controls a terminal, and how much is left out."""
    text = printed(output.text).strip()
    if len(text) <= most:
        return text, output.dropped
    left = len(text) - most
    return f"{text[: most // 2]}\n[... {left} characters dropped ...]\n{text[-(most // 2) :]}", output.dropped + left


def _document(tool: Tool, out: Captured, folder: Path, limits: Limits) -> dict[str, Any]:
    """Return the JSON of a command. Raises RefusedError."""
    way = "ask for the text, for one problem, or for fewer names"
    try:
        data = read_file(folder / REPORT, source="the report", most=limits.characters) if tool.report else b""
    except (DoorError, OSError) as error:
        raise RefusedError(f"{error}; {way}") from error
    if out.dropped and not tool.report:
        raise RefusedError(
            f"the result is {out.dropped} characters longer than the {limits.characters} that fit; {way}"
        )
    try:
        document = json.loads(data if tool.report else out.text)
    except ValueError as error:
        raise RefusedError(f"{tool.name} wrote no JSON: {error}") from error
    if not isinstance(document, dict):
        raise RefusedError(f"{tool.name} wrote JSON that is no object")
    return document
