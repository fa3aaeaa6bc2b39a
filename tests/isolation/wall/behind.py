"""Run programs behind walls, as root or as another user."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

from pytest_nvfp4.isolation import Outcome, run
from pytest_nvfp4.isolation.wall import Wall
from tests.isolation.supervised import ROOT
from tests.waiting import LONGEST_S

from .attacks import PREAMBLE

ENTERS = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pytest_nvfp4.isolation.wall import enter_from_environment
if user := int(os.environ.pop("TEST_USER", 0)):
    os.setgroups([]); os.setgid(user); os.setuid(user)
keep = int(os.environ.pop("NVFP4_RESULT_FD"))
enter_from_environment(keep=[keep])
"""
OTHER_USER = 12345


@cache
def interpreter(user: int) -> str | None:
    """Return an interpreter that a user may run; the one of the tests may lie in a folder of root."""
    for program in (sys.executable, "/usr/bin/python3"):
        check = "import encodings.latin_1, sys; sys.exit(sys.version_info < (3, 11))"
        try:
            if subprocess.run([program, "-S", "-c", check], user=user, cwd="/", check=False, stderr=-3).returncode == 0:
                return program
        except OSError:
            continue
    return None


def other_user() -> int:
    """Return a user other than root that can run programs here; 0 for this one if this is not root."""
    return OTHER_USER if is_root() and interpreter(OTHER_USER) else 0


def behind(wall: Wall, source: str, *arguments: object, user: int = 0, deadline_s: float = LONGEST_S) -> Outcome:
    """Run a program behind a wall, in its folder."""
    folder = Path(wall.folder)
    script = folder / "program.py"
    script.write_text(ENTERS + PREAMBLE + textwrap.dedent(source))
    if user:
        subprocess.run(["chown", "-R", str(user), str(folder)], check=True)
    return run(
        [interpreter(user) or sys.executable, "-B", str(script), *map(str, arguments)],
        cwd=folder,
        deadline_s=deadline_s,
        environ={"TEST_USER": str(user)},
        wall=wall,
    )


def as_function(body: str) -> str:
    """Return the source of ``attack()`` with a body."""
    return "def attack():\n" + textwrap.indent(body, "    ") + "\n"


def is_root() -> bool:
    """Whether the tests run as root."""
    return os.geteuid() == 0
