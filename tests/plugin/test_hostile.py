"""Kernels that break, crash, hang or misbehave: one clear failure each, and a run that goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import locked

from .conftest import Project, Ran
from .hostile import CONTRACT, KERNELS, cases
from .sources import ENTRY


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All of them in one run of two test processes: the root, and what pytest said."""
    root = tmp_path_factory.mktemp("hostile")
    settings = '[tool.pytest.ini_options]\nnvfp4_kernels = ["kernels/*.py"]\n'
    for name, kernel in KERNELS.items():
        if kernel.entry is not None:
            path = f"kernels/{name}"
            settings += f'[[tool.pytest_nvfp4.kernel]]\npath = "{path}"\nentry = "{path}::{kernel.entry}"\n'
    (root / "pyproject.toml").write_text(settings)
    (root / "kernels").mkdir()
    for name, kernel in KERNELS.items():
        (root / "kernels" / name).write_text(kernel.source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "kernels",
        "-n2",
        "-v",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:benchmark",
    ]
    command += ["--nvfp4-device=none", "--nvfp4-cache-dir", str(root / "cache"), "--junitxml=junit.xml"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return root, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_one_clear_failure_that_names_the_line(ran: tuple[Path, str], name: str) -> None:
    root, output = ran
    kernel = KERNELS[name]
    assert "INTERNALERROR" not in output
    outcomes = cases(root, name)
    assert [kind for kind, _ in outcomes.values()].count("failure") == 1
    assert [kind for kind, _ in outcomes.values()].count("skipped") == 3
    (label, (kind, text)), *others = sorted(outcomes.items(), key=lambda case: "compile" not in case[0])
    assert kind == "failure"
    assert re.search(kernel.said, text), text
    assert all(f"it did not compile: see kernels/{name}::{label}" in message for _, (_, message) in others)
    if kernel.line is not None:
        assert f"kernels/{name}:{kernel.line}: " in text
        assert kernel.source.splitlines()[kernel.line - 1].strip() in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.bundle])
def test_its_debug_bundle_is_complete(ran: tuple[Path, str], name: str) -> None:
    root, _ = ran
    text = next(text for kind, text in cases(root, name).values() if kind == "failure")
    bundle = root / Path(re.search(r"^debug bundle: (.+)$", text, re.MULTILINE)[1])  # type: ignore[index]
    assert bundle.parent == root / ".nvfp4/bundles"
    summary = json.loads((bundle / "summary.json").read_text())
    assert summary["kernel"] == str(root / "kernels" / name)
    assert any(re.search(KERNELS[name].said, finding["message"]) for finding in summary["findings"])
    assert (bundle / name).read_text() == KERNELS[name].source
    assert {"environment.json", "stdout.txt", "stderr.txt"} <= {path.name for path in bundle.iterdir()}
    if name == "raises_after.py":
        assert {".ptx", ".cubin", ".mlir"} <= {path.suffix for path in bundle.iterdir()}


def test_the_bundles_stay_out_of_version_control(ran: tuple[Path, str]) -> None:
    assert (ran[0] / ".nvfp4/.gitignore").read_text() == "*\n"


def test_a_check_that_is_alone_fails_by_itself(project: Project) -> None:
    project.file("k.py", KERNELS["syntax.py"].source)
    ran = project.run("k.py::layouts[gpumode-0]", "k.py::codegen[gpumode-0]")
    ran.outcomes(failed=2)
    assert all("never closed" in text for text in ran.failures().values())


def test_what_fails_alike_on_every_problem_fails_once(project: Project, workers: tuple[str, ...]) -> None:
    project.file("k.py", KERNELS["syntax.py"].source)
    ran = project.run("k.py", "--nvfp4-problem=gpumode", "-rs", *workers)
    ran.outcomes(failed=1, skipped=39)
    assert "it fails in the same way: see k.py::compile[gpumode-0]" in ran.text


@pytest.mark.slow
def test_what_fails_in_its_own_way_is_said_for_each_problem(project: Project) -> None:
    """Both fail, at other lines; neither may hide the other."""
    lines = (
        "def custom_kernel(data):\n    if data[3][0][0] == 96:\n        raise ValueError(1)\n    raise ValueError(2)\n"
    )
    project.file("k.py", "import cutlass\n" + lines)
    ran = project.run("k.py", "--nvfp4-problem=gpumode-0", "--nvfp4-problem=gpumode-1", "-k", "compile or launch")
    ran.outcomes(failed=2, skipped=2, deselected=4)


def test_a_hang_is_ended_at_the_deadline(project: Project) -> None:
    project.file("k.py", "import time\ntime.sleep(600)\n" + CONTRACT)
    ran = project.run("k.py", "--nvfp4-timeout=3")
    ran.outcomes(failed=1, skipped=3)
    text = ran.failures()["compile[gpumode-0]"]
    assert "did not finish within its deadline" in text
    assert "raise --nvfp4-timeout if it needs more" in text


def behave(project: Project, before: str, *args: str) -> Ran:
    """Run the checks of a kernel that does something before it compiles as it should."""
    project.file("k.py", before + ENTRY)
    return project.run("k.py", "--nvfp4-entry=k.py::build", "--snapshot-update", *args)


def flood(_folder: Path) -> str:
    return "import sys\nfor _ in range(800):\n    print('x' * 65536)\nsys.stdout.flush()\n"


def litter(_folder: Path) -> str:
    return "open('litter.txt', 'w').write('here')\n"


@pytest.mark.slow
@pytest.mark.parametrize("misdeed", [flood, litter])
def test_a_kernel_that_only_misbehaves_is_checked(project: Project, misdeed: Callable[[Path], str]) -> None:
    before = sorted(project.path.iterdir())
    ran = behave(project, misdeed(project.path))
    ran.outcomes(passed=4)
    assert len(ran.text) < 10_000
    assert {path.name for path in project.path.iterdir() if path not in before} == {"k.py", "snapshots"}


@pytest.mark.slow
def test_nothing_that_a_kernel_starts_outlives_its_check(project: Project) -> None:
    start = (
        "import fcntl, subprocess, sys\n"
        "file = open(__file__)\nfcntl.flock(file, fcntl.LOCK_SH)\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True, pass_fds=[file.fileno()])\n"
    )
    behave(project, start).outcomes(passed=4)
    assert not any(locked(path) for path in project.path.glob("*.py"))
