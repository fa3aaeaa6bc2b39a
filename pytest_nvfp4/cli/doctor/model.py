"""Items of the doctor, and how it runs programs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of an item."""

    OK = "ok"
    ABSENT = "absent"
    """Missing, and needed for something optional only."""
    WARNING = "warning"
    """Present, with a problem that will show later."""
    FAILED = "failed"
    """Required, and missing or not working."""


@dataclass(frozen=True, slots=True)
class Item:
    """One examined thing.

    Attributes:
        section: Section of the report.
        name: Name of the package, tool or device.
        state: Its state.
        found: Version, path or reason.
        fix: Command that repairs it; empty if there is nothing to repair.
        needed_for: What does not work without it; empty if it is always needed.
    """

    section: str
    name: str
    state: State
    found: str
    fix: str = ""
    needed_for: str = ""

    @classmethod
    def judged(
        cls,
        section: str,
        name: str,
        ok: bool,
        found: str,
        fix: str = "",
        *,
        needed_for: str = "",
        otherwise: State = State.FAILED,
    ) -> Item:
        """Return an item that is OK, or in another state with the command that repairs it."""
        return cls(section, name, State.OK if ok else otherwise, found, "" if ok else fix, needed_for)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program; one that cannot run or does not end has no status, and the reason as ``stderr``."""

    status: int | None
    stdout: str
    stderr: str


def run_program(command: list[str], *, timeout_s: float) -> ProgramResult:
    """Run a program without input and return its result; never raise for a program that fails, hangs or is missing."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return ProgramResult(None, "", f"no answer within {timeout_s:g} s")
    except OSError as error:
        return ProgramResult(None, "", str(error))
    return ProgramResult(done.returncode, done.stdout, done.stderr)
