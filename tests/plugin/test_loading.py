"""What the plugin loads, and that a run which has nothing to do with kernels pays for nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Project

HEAVY = ("torch", "cutlass", "modal", "numpy", "z3", "pydantic", "rich", "jinja2", "click")


def loaded(code: str, folder: Path) -> set[str]:
    """Which of the heavy packages a Python program loads."""
    report = f"\nimport sys\nprint('loaded:', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    done = subprocess.run(
        [sys.executable, "-c", code + report], cwd=folder, capture_output=True, text=True, check=True, timeout=900
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_importing_the_plugin_loads_nothing_heavy(tmp_path: Path) -> None:
    assert loaded("import pytest_nvfp4.plugin", tmp_path) == set()
    assert loaded("import numpy", tmp_path) == {"numpy"}, "the question itself works"


@pytest.mark.parametrize(
    "args", [["test_a.py"], [".", "--snapshot-update"], ["--collect-only", "-q"], ["--help"]], ids=" ".join
)
def test_a_run_without_kernels_loads_nothing_heavy(project: Project, args: list[str]) -> None:
    project.settings("[tool.pytest_nvfp4]\narch = 'sm_100a'\n", ini='nvfp4_kernels = ["kernels/*.py"]')
    project.file("test_a.py", "def test_a():\n    pass\n")
    arguments = [*args, "-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider"]
    assert loaded(f"import pytest\npytest.main({arguments!r})", project.path) == set()


def test_collecting_kernels_loads_nothing_heavy(project: Project) -> None:
    project.file("k.py", "def custom_kernel(data):\n    pass\n")
    arguments = ["k.py", "--collect-only", "-q", "-p", "no:hypothesispytest", "-p", "no:benchmark"]
    assert loaded(f"import pytest\npytest.main({arguments!r})", project.path) == set()


@pytest.mark.slow
def test_it_can_be_loaded_by_name(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project.kernel()
    result = project.pytester.runpytest_subprocess(
        "-p", "nvfp4", "-p", "syrupy", "k.py", "--snapshot-update", "--nvfp4-device=none"
    )
    result.assert_outcomes(passed=4)


def test_a_warning_of_it_can_be_filtered_by_its_name(project: Project) -> None:
    project.file("test_a.py", "def test_a():\n    pass\n")
    project.run("-W", "error::pytest_nvfp4.plugin.KernelWarning", "test_a.py").outcomes(passed=1)
