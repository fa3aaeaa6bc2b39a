"""Kernels that are compiled only at the same time, and a device without support for any architecture."""

from __future__ import annotations

from tests.waiting import LONGEST_S

from .conftest import Project
from .sources import ENTRY

MEETS = """
import pathlib, time
own, other = (pathlib.Path({folder!r}) / name for name in ({own!r}, {other!r}))
own.touch()
until = time.monotonic() + {seconds}
while not other.exists():
    if time.monotonic() > until:
        raise RuntimeError("nobody came")
    time.sleep(0.02)
"""
"""A kernel's first lines: it waits for another kernel to be imported too."""


def meeting(project: Project, *, seconds: float = LONGEST_S) -> None:
    """Two kernels, each of which is imported only while the other is."""
    tables = []
    for own, other in (("a", "b"), ("b", "a")):
        lines = MEETS.format(folder=str(project.path), own=f"met-{own}", other=f"met-{other}", seconds=seconds)
        project.file(f"{own}.py", lines + ENTRY)
        tables.append(f'[[tool.pytest_nvfp4.kernel]]\npath = "{own}.py"\nentry = "{own}.py::build"\n')
    project.settings("\n".join(tables))


class Elsewhere:
    name = "elsewhere"

    def __init__(self, **_options: object) -> None:
        pass

    def unsupported(self, arch: str) -> str:
        return f"no {arch} here"
