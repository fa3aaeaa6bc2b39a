"""Duration of whole runs of pytest with this plugin."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.selfcheck.speed.figures import Figure, Kernel, timed
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE

FILES = 200
_PLUGIN = "pytest_nvfp4.plugin"
_OUTER_PYTEST = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_XDIST_WORKER")
"""Environment variables of a surrounding pytest that would change the runs."""


@dataclass(frozen=True)
class Pytest:
    """Runs of pytest in a project, with or without the plugin.

    Attributes:
        folder: The project.
        cache: Cache folder of the runs.
    """

    folder: Path
    cache: Path

    def run(self, *arguments: str, plugin: bool, cache: Path | None = None) -> tuple[float, str]:
        """Return the seconds and the standard output of a run.

        Raises:
            InputError: The exit code is not 0.
        """
        registered = any(entry.value == _PLUGIN for entry in entry_points(group="pytest11"))
        switch = () if plugin and registered else ("-p", _PLUGIN if plugin else "no:nvfp4")
        environ = {key: value for key, value in os.environ.items() if key not in _OUTER_PYTEST}
        environ[CACHE_VARIABLE] = str(cache or self.cache)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *switch, *arguments]
        return timed(command, folder=self.folder, environ=environ)


def _project(root: Path, kernel: Path) -> Path:
    """Create a project with a copy of the kernel, its neighbours, and an empty test."""
    folder = root / "project"
    folder.mkdir()
    for file in sorted(kernel.parent.glob("*.py")):
        if not file.name.startswith("test_") and file.name != "conftest.py":
            shutil.copyfile(file, folder / file.name)
    (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    return folder


def _many(root: Path, kernel: Path) -> Path:
    """Create a project with different copies of the kernel."""
    folder = root / "many"
    (folder / "kernels").mkdir(parents=True)
    text = kernel.read_text(encoding="utf-8", errors="replace")
    for at in range(FILES):
        (folder / "kernels" / f"kernel_{at:03d}.py").write_text(f"{text}\n# {at}\n", encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nnvfp4_kernels = ["kernels/*.py"]\n', encoding="utf-8"
    )
    return folder


def _paired(
    first: Pytest, with_plugin: Sequence[str], second: Pytest, without: Sequence[str], *, rounds: int
) -> tuple[list[float], list[float]]:
    """Return seconds of alternating rounds of two commands in their projects, after an uncounted one of each."""
    pairs = [
        (first.run(*with_plugin, plugin=True)[0], second.run(*without, plugin=False)[0]) for _ in range(rounds + 1)
    ]
    return [pair[0] for pair in pairs[1:]], [pair[1] for pair in pairs[1:]]


def figures(kernel: Kernel, rounds: int) -> Iterator[Figure]:
    """Measure start-up, the checks of a kernel with and without a cache, and collection.

    Raises:
        InputError: The kernel does not pass its own checks, or its copies are not collected.
    """
    empty = "pytest of an empty test"
    gate = ("-q", kernel.file.name, "--nvfp4-arch", kernel.arch)
    with temporary_folder("bench") as name:
        root = Path(name).resolve()
        pytest = Pytest(_project(root, kernel.file), root / "cache")
        with output.working("start-up of pytest with and without the plugin"):
            seconds, bare = _paired(pytest, ["--version"], pytest, ["--version"], rounds=rounds)
        yield Figure("startup", "start-up that the plugin adds to pytest", "s", seconds, bare, "pytest --version")
        with output.working(f"compiling {kernel.file.name} and recording its snapshots"):
            pytest.run(*gate, "--snapshot-update", plugin=True)
        with output.working(f"checks of {kernel.file.name}, cached"):
            seconds, bare = _paired(pytest, gate, pytest, ["-q", "test_nothing.py"], rounds=rounds)
        yield Figure("warm-gate", f"checks of {kernel.file.name}, unchanged", "s", seconds, bare, empty)
        with output.working(f"checks of {kernel.file.name}, nothing cached"):
            cold = [
                pytest.run(*gate, plugin=True, cache=root / f"cold-{at}")[0] for at in range(max(1, min(rounds, 3)))
            ]
        yield Figure("cold-gate", f"checks of {kernel.file.name}, nothing cached", "s", cold, bare, empty)
        many = Pytest(_many(root, kernel.file), root / "cache")
        with output.working(f"collecting {FILES} kernel files"):
            _, text = many.run("--co", "-q", "kernels", plugin=True)
            collected = len({line.partition("::")[0] for line in text.splitlines() if "::" in line})
            if collected != FILES:
                raise InputError(f"pytest --co collected {collected} of {FILES} copies of {kernel.file.name}")
            nothing = ["--co", "-q", "test_nothing.py"]
            seconds, bare = _paired(many, ["--co", "-q", "kernels"], pytest, nothing, rounds=rounds)
        yield Figure("collect", f"collecting {FILES} kernel files", "s", seconds, bare, "pytest --co of an empty test")
