"""Source of programs that run below a supervisor, as workers do."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def supervised(*, mode: str = "off", folder: str = ".", **options: object) -> str:
    """Return the first lines of a program: what follows runs behind a wall, by default of nothing but its limits.

    Without a PID namespace, numbers of processes are those that this process sees.
    """
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pytest_nvfp4.isolation.wall import Part, Wall, move_behind\n"
        f"move_behind(Wall(folder=os.path.abspath({folder!r}), mode={mode!r}{given}),"
        " keep=[int(os.environ['NVFP4_RESULT_FD'])])\n"
    )
