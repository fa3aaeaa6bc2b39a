"""The kept recording, ``sanitizer.json``, and what of it is a finding."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.silicon.sanitizer.program import Program

__all__ = ["KEPT", "TOOLS", "found", "load", "said"]

KEPT = Path(__file__).parent / "sanitizer.json"
TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")
_QUIET = ("info", "program hit", "warning: detected possible deadlock")
"""Nothing about the device's code: what is for information, calls of the CUDA API that return an error, and what is
said once more of a deadlock."""
_SHORT = (
    (re.compile(r"(Error|Warning|Info): Race reported .*"), r"race, \1"),
    (re.compile(r"Deadlock detected in (.+?) called by.*"), r"deadlock at \1"),
    (re.compile(r"Barrier error detected\. (.+?)\.?$"), r"barrier: \1"),
    (re.compile(r"(Potential invalid|Invalid|Uninitialized) (__\w+__) (?:memory )?(\w+) of size.*"), r"\1 \2 \3"),
)


def load(path: Path = KEPT) -> dict[str, Any]:
    """A recording. Raises OSError, ValueError."""
    recording: dict[str, Any] = json.loads(path.read_text())
    return recording


def found(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a tool reported of one program; nothing of one under which it could not work."""
    return [one for one in told.get("found", ()) if not one["kind"].lower().startswith(_QUIET)]


def said(entry: Mapping[str, Any], name: str, program: Program | None = None) -> str:
    """A tool's verdict in a few words, with the tags of the lines that it names."""
    told = entry.get(name)
    if not told:
        return "not recorded"
    if told["status"] in ("unavailable", "not run"):
        return f"{told['status']}: {told['because']}"
    words = []
    for one in found(told):
        text = _short(one["kind"])
        if program is not None and one["lines"]:
            text += f" ({', '.join(_tag(program, line) for line in one['lines'])})"
        words.append(text)
    if told["status"] == "hang":
        words.append("(did not end)")
    return "; ".join(dict.fromkeys(words)) or "-"


def _short(kind: str) -> str:
    for pattern, words in _SHORT:
        if pattern.match(kind):
            return pattern.sub(words, kind).lower()
    return kind.lower()


def _tag(program: Program, line: int) -> str:
    return next((tag for tag, lines in program.tags.items() if line in lines), f"line {line}")
