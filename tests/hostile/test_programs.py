"""Every program of the corpus: hostile ones are red for their own reason or contained, honest ones are green."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .open_holes import OPEN
from .running import Bait, Program, Ran, left_files, left_processes, listening, programs, run

pytest.importorskip("cutlass")

CLASSES = ("forging", "elsewhere", "judge", "wall", "orphans", "parent")
FAST = {"judge/forges_events", "wall/reads_ssh_key", "orphans/cleared_environment", "honest/plain"}
"""Programs that run by default, one for each of the defences."""


def cases(*classes: str) -> list[object]:
    """Return the programs as parameters; most are slow, and what is not yet repelled is expected to fail."""
    found = []
    for program in (program for kind in classes for program in programs(kind)):
        marks = [] if program.name in FAST else [pytest.mark.slow]
        if program.name in OPEN:
            marks.append(pytest.mark.xfail(reason=OPEN[program.name], strict=True))
        found.append(pytest.param(program, id=program.name, marks=marks))
    return found


@pytest.fixture
def bait(user: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bait]:
    """A user's folder and a port that no kernel may reach: neither is changed or used when the test ends."""
    monkeypatch.delenv("NVFP4_CACHE_DIR", raising=False)
    with listening() as (port, received):
        bait = Bait(user, port, f"nvfp4-mark-{uuid.uuid4().hex}")
        files = bait.lay()
        yield bait
        assert not received, "the port was reached"
        assert {path: path.read_bytes() if path.is_file() else None for path in files} == files


def run_with(bait: Bait, program: Program, folder: Path) -> Ran:
    """Run a program that knows its bait."""
    folder = folder / "run"
    folder.mkdir()
    return run(program, folder, bait=bait.source(os.getpid()))


@pytest.mark.slow
@pytest.mark.parametrize("program", cases(*CLASSES))
def test_a_hostile_program_is_repelled(program: Program, bait: Bait, tmp_path: Path) -> None:
    ran = run_with(bait, program, tmp_path)
    left = left_processes(bait.mark), left_files(bait.mark)
    for process in left[0]:
        os.kill(process, 9)
    for path in left[1]:
        path.unlink()
    assert not ran.breaches, ran.said
    assert left == ([], []), "it left something behind"
    allowed = {*program.expected} | ({"passed", "cheated"} if "contained" in program.expected else set())
    assert ran.status in allowed, ran.said + ran.output
    said = ran.said.replace(program.path.name, "")  # the name of a program is no reason
    assert re.search(program.says, said), ran.said


@pytest.mark.slow
@pytest.mark.parametrize("program", cases("honest"))
def test_an_honest_program_is_green(program: Program, bait: Bait, tmp_path: Path) -> None:
    ran = run_with(bait, program, tmp_path)
    assert ran.status == "passed", ran.said + ran.output


def test_every_program_says_what_is_expected_of_it() -> None:
    for program in (program for kind in CLASSES for program in programs(kind)):
        assert program.fields.keys() <= {"expected", "says", "shape", "backend", "deadline"}, program.name
        assert program.expected, program.name
        assert "contained" in program.expected or program.says, program.name
        assert "passed" not in program.expected, program.name
    assert all(not program.fields for program in programs("honest"))
    assert {*OPEN, *FAST} <= {program.name for kind in (*CLASSES, "honest") for program in programs(kind)}
