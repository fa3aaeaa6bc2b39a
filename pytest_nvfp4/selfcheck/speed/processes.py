"""How long whole runs of pytest take with this plugin: what a user waits for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.selfcheck.speed.figures import Figure
from pytest_nvfp4.toolchain.cache import CACHE_VARIABLE

FILES = 200
_DEADLINE_S = 900
_PLUGIN = "pytest_nvfp4.plugin"


@dataclass(frozen=True)
class Pytest:
    """Runs pytest in a project of its own, with the plugin or without it.

    Attributes:
        folder: The project.
        cache: The cache folder of its runs.
    """

    folder: Path
    cache: Path

    def run(self, *arguments: str, plugin: bool, cache: Path | None = None) -> tuple[float, str]:
        """Seconds of a whole process, and its standard output.

        Raises:
            InputError: it did not end with status 0.
        """
        switch = () if plugin and _registered() else ("-p", _PLUGIN if plugin else "no:nvfp4")
        ours = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_XDIST_WORKER")
        environ = {key: value for key, value in os.environ.items() if key not in ours}
        environ[CACHE_VARIABLE] = str(cache or self.cache)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *switch, *arguments]
        start = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            said = " | ".join((done.stdout + done.stderr).strip().splitlines()[-6:])
            raise InputError(f"pytest {' '.join(arguments)} ended with status {done.returncode}: {said}")
        return seconds, done.stdout


def _registered() -> bool:
    return any(entry.value == _PLUGIN for entry in entry_points(group="pytest11"))


def _project(root: Path, kernel: Path) -> Path:
    """A project with a copy of the kernel, its neighbours, and a test that does nothing."""
    folder = root / "project"
    folder.mkdir()
    for file in sorted(kernel.parent.glob("*.py")):
        if not file.name.startswith("test_") and file.name != "conftest.py":
            shutil.copyfile(file, folder / file.name)
    (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    return folder


def _many(root: Path, kernel: Path) -> Path:
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
    ours: Pytest, with_plugin: Sequence[str], bare: Pytest, without: Sequence[str], *, rounds: int
) -> tuple[list[float], list[float]]:
    """Alternating rounds of two commands in their projects, after one of each that does not count."""
    ours.run(*with_plugin, plugin=True)
    bare.run(*without, plugin=False)
    first, second = [], []
    for _ in range(rounds):
        first.append(ours.run(*with_plugin, plugin=True)[0])
        second.append(bare.run(*without, plugin=False)[0])
    return first, second


def figures(kernel: Path, rounds: int) -> Iterator[Figure]:
    """Start-up, warm gate, cold gate and collection.

    Raises:
        InputError: the kernel does not pass its own gate, or its copies are not collected.
    """
    with tempfile.TemporaryDirectory(prefix="nvfp4-bench-") as name:
        root = Path(name).resolve()
        pytest = Pytest(_project(root, kernel), root / "cache")
        with output.working("start-up of pytest with and without the plugin"):
            ours, bare = _paired(pytest, ["--version"], pytest, ["--version"], rounds=rounds)
        yield Figure("startup", "start-up that the plugin adds to pytest", "s", ours, bare, "pytest --version")
        with output.working(f"compiling {kernel.name} and recording its snapshots"):
            pytest.run("-q", kernel.name, "--snapshot-update", plugin=True)
        with output.working(f"the gate of {kernel.name}, warm"):
            ours, bare = _paired(pytest, ["-q", kernel.name], pytest, ["-q", "test_nothing.py"], rounds=rounds)
        yield Figure("warm-gate", f"gate of {kernel.name}, unchanged", "s", ours, bare, "pytest of an empty test")
        with output.working(f"the gate of {kernel.name}, cold"):
            cold = [
                pytest.run("-q", kernel.name, plugin=True, cache=root / f"cold-{at}")[0]
                for at in range(max(1, min(rounds, 3)))
            ]
        yield Figure("cold-gate", f"gate of {kernel.name}, nothing cached", "s", cold, bare, "pytest of an empty test")
        many = Pytest(_many(root, kernel), root / "cache")
        with output.working(f"collecting {FILES} kernel files"):
            _, text = many.run("--co", "-q", "kernels", plugin=True)
            found = len({line.partition("::")[0] for line in text.splitlines() if "::" in line})
            if found != FILES:
                raise InputError(f"pytest --co found {found} of {FILES} copies of {kernel.name}")
            nothing = ["--co", "-q", "test_nothing.py"]
            ours, bare = _paired(many, ["--co", "-q", "kernels"], pytest, nothing, rounds=rounds)
        yield Figure("collect", f"collecting {FILES} kernel files", "s", ours, bare, "pytest --co of an empty test")
