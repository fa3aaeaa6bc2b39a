"""Fixtures that run small workers, forked from a fork server or started as plain processes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import Outcome, Worker, run
from pytest_nvfp4.isolation.fork_server.pool import FORK_SERVERS, SWITCH_VARIABLE
from pytest_nvfp4.isolation.launcher import worker
from tests.waiting import LONGEST_S

PRELOAD = ("colorsys",)
"""A small module that nothing else here imports."""


class Workers:
    """Run modules of a folder as workers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def module(self, source: str, *arguments: str, preload: tuple[str, ...] = PRELOAD) -> Worker:
        (self.folder / "the_worker.py").write_text(textwrap.dedent(source))
        return worker("the_worker", *arguments, preload=preload)

    def run(
        self, source: str, *arguments: str, preload: tuple[str, ...] = PRELOAD, forked: bool = True, **options: object
    ) -> Outcome:
        """Run a worker, as a plain process unless ``forked``, and return its outcome."""
        module = self.module(source, *arguments, preload=preload)
        return self.run_module(module, forked=forked, **options)

    def run_module(self, module: Worker, *, forked: bool = True, **options: object) -> Outcome:
        self._monkeypatch.setenv(SWITCH_VARIABLE, str(int(forked)))
        environ = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", **options.pop("environ", {})}  # type: ignore[dict-item]
        options = {"cwd": self.folder, "deadline_s": LONGEST_S, "environ": environ, **options}
        return run(module, **options)  # type: ignore[arg-type]


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Runner of workers; the fork servers of this test end with it."""
    FORK_SERVERS.close()
    yield Workers(tmp_path, monkeypatch)
    FORK_SERVERS.close()


def is_plain(outcome: Outcome) -> bool:
    """Return whether a worker that printed its parent's number first was a plain process, not a forked one."""
    return int(outcome.stdout.text.split()[0]) == os.getpid()


PARENT = "import os\nprint(os.getppid(), flush=True)\n"
