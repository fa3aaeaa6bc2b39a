"""A project of a user's in a temporary folder, and traces that are compiled once for all tests."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import syrupy

import pytest_nvfp4.contracts.call  # numpy, which a process can load once only
import pytest_nvfp4.layout.diff
import pytest_nvfp4.numerics.judge
import pytest_nvfp4.plugin.compare_facts
import pytest_nvfp4.plugin.compare_layouts
import pytest_nvfp4.report.github
import pytest_nvfp4.report.html  # noqa: F401 - what a run inside this process would otherwise load anew each time
from pytest_nvfp4.problem import GPUMODE, Problem, resolve
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE
from pytest_nvfp4.toolchain.request import Entry, TraceRequest
from pytest_nvfp4.toolchain.trace import Trace
from pytest_nvfp4.toolchain.tracer import Limits, Tracer, cache_key

from .sources import KERNEL

_LEAN = ("-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider", "--nvfp4-device=none")
"""Without plugins and checks that these tests are not about; test_devices.py has the checks that need a device."""
_OUTER = (
    *("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "CI"),
    *("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"),
)
"""What the run around the tests may have set, and runs inside them must not see."""


class Bank:
    """Compiles each source once, and puts its trace into the cache for every file that has the same content."""

    def __init__(self, folder: Path) -> None:
        self.cache = TraceCache(folder / "cache")
        self._folder = folder
        self._made: dict[tuple[str, str | None], tuple[Path, Trace]] = {}

    def seed(self, path: Path, *, problem: Problem = GPUMODE[0], entry: str | None = None, **more: object) -> None:
        """Make sure that the cache holds the trace of ``path`` on ``problem``; ``entry`` is a function in it."""
        source = path.read_text(encoding="utf-8")
        if (source, entry) not in self._made:
            self._made[source, entry] = self._compile(source, entry)
        origin, trace = self._made[source, entry]
        resolved = path.resolve()
        request = TraceRequest(resolved, problem, Entry(resolved, entry) if entry else None, **more)  # type: ignore[arg-type]
        moved = json.loads(
            trace.model_dump_json().replace(json.dumps(str(origin))[1:-1], json.dumps(str(resolved))[1:-1])
        )
        changes = {"problem": problem.name, "problem_sizes": problem.sizes, "options": request.options, "folder": None}
        changes |= {"launches": [launch | {"problem": problem.name} for launch in moved["launches"]]}
        changes |= {"entry": str(request.entry) if request.entry else None, "arch": request.arch}
        with self.cache.building() as build:
            shutil.copytree(trace.folder or "", build / "artifacts")
            self.cache.store(cache_key(request), Trace.model_validate(moved | changes), build / "artifacts")

    def _compile(self, source: str, entry: str | None) -> tuple[Path, Trace]:
        home = self._folder / hashlib.sha256(f"{entry}\0{source}".encode()).hexdigest()[:12]
        home.mkdir()
        path = home / "kernel.py"
        path.write_text(source, encoding="utf-8")
        tracer = Tracer(root=home, cache=self.cache, limits=Limits(deadline_s=900))
        trace = tracer.trace(TraceRequest(path, GPUMODE[0], Entry(path, entry) if entry else None))
        assert trace.ok, trace.findings
        # The cache evicts its oldest entries, and a long session seeds hundreds.
        kept = shutil.copytree(trace.folder or "", home / "artifacts")
        return path, trace.model_copy(update={"folder": str(kept)})


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    return Bank(tmp_path_factory.mktemp("bank"))


class Ran:
    """What a run of pytest said and did."""

    def __init__(self, result: pytest.RunResult) -> None:
        self.code = int(result.ret)
        self.text = result.stdout.str()
        self.errors = result.stderr.str()
        self._result = result

    def outcomes(self, **expected: int) -> None:
        """Assert the counts of the last line, and that pytest itself did not break."""
        assert "INTERNALERROR" not in self.text + self.errors, self.text + self.errors
        counted = self._result.parseoutcomes()
        counted = {name: count for name, count in counted.items() if name not in ("warnings", "warning")}
        assert counted == expected, self.text + self.errors

    def failures(self) -> dict[str, str]:
        """The text below each headline of the section of failures, by the headline."""
        section = re.search(r"^=+ FAILURES =+\n(.*?)^(?:=+|-+) ", self.text, re.MULTILINE | re.DOTALL)
        parts = re.split(r"^_+ (.+?) _+\n", section[1] if section else "", flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))

    def section(self, title: str) -> str:
        """The text below a line of dashes with a title; empty where there is none."""
        found = re.search(rf"^-+ {title}[^\n]* -+\n(.*?)(?=^(?:=|-){{3,}} ?|\Z)", self.text, re.MULTILINE | re.DOTALL)
        return found[1] if found else ""


class Project:
    """A user's project: files, settings and runs of pytest in it."""

    def __init__(self, pytester: pytest.Pytester, bank: Bank) -> None:
        self.pytester = pytester
        self.bank = bank
        self.path = pytester.path
        self.settings("")

    def settings(self, text: str, *, ini: str = "") -> None:
        """Write pyproject.toml: pytest's ini settings, and the text after it."""
        self.file("pyproject.toml", f"[tool.pytest.ini_options]\n{ini}\n{text}\n")

    def file(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def kernel(
        self,
        name: str = "k.py",
        source: str = KERNEL,
        *,
        problems: tuple[str, ...] = ("gpumode-0",),
        entry: str | None = None,
    ) -> Path:
        """Write a kernel whose trace is already at hand."""
        path = self.file(name, source)
        for problem in resolve(problems):
            self.bank.seed(path, problem=problem, entry=entry)
        return path

    def run(self, *args: str | Path) -> Ran:
        """Run pytest in this process; xdist's test processes are real all the same."""
        return Ran(self.pytester.runpytest_inprocess(*_LEAN, *args))

    def run_apart(self, *args: str | Path) -> Ran:
        """Run pytest in a process of its own."""
        return Ran(self.pytester.runpytest_subprocess(*_LEAN, *args))

    def record(self, *args: str | Path) -> None:
        """Record the snapshots of what the arguments name."""
        assert self.run(*args, "--snapshot-update").code == 0

    def snapshots(self) -> dict[str, str]:
        """Every file below ``snapshots`` with its content."""
        folder = self.path / "snapshots"
        return {
            path.relative_to(folder).as_posix(): path.read_bytes().decode("utf-8", "replace")
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def junit(self, *args: str | Path) -> list[tuple[str, str, str]]:
        """Run with ``--junitxml``: name, outcome and message of each case."""
        file = self.path / "junit.xml"
        self.run(*args, f"--junitxml={file}")
        cases = []
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            outcome = next(iter(case), None)
            kind, message = ("passed", "") if outcome is None else (outcome.tag, outcome.get("message", ""))
            cases.append((case.get("name", ""), kind, message))
        return cases


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of the home and the temporary folder of all projects, whose workers are forked from one server."""
    return tmp_path_factory.mktemp("environment")


@pytest.fixture
def project(
    pytester: pytest.Pytester,
    bank: Bank,
    monkeypatch: pytest.MonkeyPatch,
    environment: Path,
) -> Iterator[Project]:
    """An empty project. Runs inside this process must not change what the run around them knows of syrupy."""
    for name in _OUTER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(bank.cache.root))
    home, temporary = environment / "home", environment / "temporary"
    for folder in (home, temporary):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(syrupy, "_syrupy", syrupy._syrupy)
    monkeypatch.setattr("syrupy.extensions.base.SnapshotCollectionStorage.snapshot_dirname", "__snapshots__")
    yield Project(pytester, bank)
    assert not list(pytester.path.rglob("*.tmp")), "a temporary file was left behind"


@pytest.fixture(params=[(), pytest.param(("-n2",), marks=pytest.mark.slow)], ids=["alone", "xdist"])
def workers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Arguments that run the items in this process, or in two of xdist's, for 4 to 10 times the CPU time."""
    return request.param


def left_behind() -> list[str]:
    """Return the temporary folders of runs in the folder that the project's runs have for them."""
    return [path.name for path in Path(tempfile.gettempdir()).glob("nvfp4-*")]


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended before it was opened, or before it was read
        return False
