"""Workers of the tests' own, and whether a nursery has them."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import Outcome, Worker, run
from pytest_nvfp4.isolation.nursery import NURSERIES, SWITCH
from pytest_nvfp4.toolchain.launcher import worker
from tests.waiting import LONGEST_S

PRELOAD = ("colorsys",)
"""A small module that nothing else here imports."""


class Workers:
    """Runs modules of a folder as workers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def module(self, source: str, *arguments: str, preload: tuple[str, ...] = PRELOAD) -> Worker:
        (self.folder / "the_worker.py").write_text(textwrap.dedent(source))
        return worker("the_worker", *arguments, preload=preload)

    def run(
        self, source: str, *arguments: str, preload: tuple[str, ...] = PRELOAD, nursery: bool = True, **options: object
    ) -> Outcome:
        """How a worker ended; one without a nursery is started from nothing."""
        module = self.module(source, *arguments, preload=preload)
        return self.run_module(module, nursery=nursery, **options)

    def run_module(self, module: Worker, *, nursery: bool = True, **options: object) -> Outcome:
        self._monkeypatch.setenv(SWITCH, str(int(nursery)))
        environ = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", **options.pop("environ", {})}  # type: ignore[dict-item]
        options = {"cwd": self.folder, "deadline_s": LONGEST_S, "environ": environ, **options}
        return run(module, **options)  # type: ignore[arg-type]


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Workers; the nurseries of this test end with it."""
    NURSERIES.close()
    yield Workers(tmp_path, monkeypatch)
    NURSERIES.close()


def parents(outcome: Outcome) -> bool:
    """Whether a worker that printed its parent's number first was started from nothing."""
    return int(outcome.stdout.text.split()[0]) == os.getpid()


PARENT = "import os\nprint(os.getppid(), flush=True)\n"
