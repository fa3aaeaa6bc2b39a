"""Options and settings that cannot be used are usage errors, said once and before anything is compiled."""

from __future__ import annotations

import pytest

from .conftest import Project
from .sources import ENTRY, KERNEL

USAGE = int(pytest.ExitCode.USAGE_ERROR)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--nvfp4-arch=banana",), "--nvfp4-arch 'banana' is not an architecture such as sm_100a"),
        (("--nvfp4-problem=nonsense",), "--nvfp4-problem: no problem is called 'nonsense'"),
        (("--nvfp4-problem=96x128x256,2x",), "is not MxNxK"),
        (("--nvfp4-entry=build",), "--nvfp4-entry: entry 'build' is not FILE::FUNCTION"),
        (("--nvfp4-entry=gone.py::build",), "gone.py, which does not exist"),
        (("--nvfp4-fail-on=bad",), "invalid choice: 'bad'"),
        (("--nvfp4-timeout=0",), "--nvfp4-timeout 0 must be more than zero seconds"),
        (("--nvfp4-timeout=nan",), "--nvfp4-timeout nan must be more than zero seconds"),
        (("--nvfp4-html=.",), "is a folder: name the file to write"),
        (("--nvfp4-md=k.py/report.md",), "k.py is a file"),
        (("-o", "nvfp4_sandbox=soon"), "ini nvfp4_sandbox = 'soon' must be one of auto, require, off"),
        (("-o", "nvfp4_timeout=soon"), "ini nvfp4_timeout is not a number of seconds"),
        (("-o", "nvfp4_timeout=-1"), "ini nvfp4_timeout = -1 must be more than zero seconds"),
        (("-o", "nvfp4_fail_on=bad"), "ini nvfp4_fail_on = 'bad' must be one of cosmetic, renested"),
        (("-o", "nvfp4_snapshots=/abs"), "must be a folder below the root"),
        (("-o", "nvfp4_snapshots=../up"), "must be a folder below the root"),
        (("-o", "nvfp4_snapshots=."), "must be a folder below the root"),
        (("-o", "nvfp4_snapshots=a/__snapshots__"), "is inside syrupy's own folder of snapshots"),
        (("--snapshot-dirname=snapshots",), "is inside syrupy's own folder of snapshots"),
    ],
)
def test_a_value_that_cannot_be(project: Project, args: tuple[str, ...], said: str) -> None:
    project.file("k.py", KERNEL)
    ran = project.run("k.py", *args)
    assert ran.code == USAGE
    assert said in ran.errors
    assert "Traceback" not in ran.errors + ran.text


@pytest.mark.parametrize(
    ("settings", "args", "source"),
    [
        ("", ("--nvfp4-problem=128x128x264",), "--nvfp4-problem"),
        ("[[tool.pytest_nvfp4.kernel]]\npath = 'k.py'\nproblems = ['128x128x264']\n", (), "pyproject.toml"),
        ("[[tool.pytest_nvfp4.kernel]]\npath = 'k.py'\nverify-problems = ['128x128x264']\n", (), "pyproject.toml"),
    ],
)
def test_a_problem_outside_the_contract_is_no_fault_of_the_kernel(
    project: Project, settings: str, args: tuple[str, ...], source: str
) -> None:
    project.settings(settings)
    project.file("k.py", KERNEL)
    ran = project.run("k.py", *args)
    ran.outcomes(errors=1)
    assert ran.code == int(pytest.ExitCode.INTERRUPTED) == 2
    assert f"{source}: problem '128x128x264' violates the contract nvfp4_group_gemm" in ran.text
    assert "group 0 (128x128x264): k must be a multiple of 256" in ran.text
    assert "Traceback" not in ran.text


def test_a_problem_is_that_of_the_kernels_project(project: Project) -> None:
    (project.path / "pyproject.toml").unlink()
    for name, problem in (("one", "problems.small = { m = 8, n = 128, k = 256 }\n"), ("two", "")):
        project.file(f"{name}/k.py", KERNEL)
        project.file(f"{name}/pyproject.toml", f"[tool.pytest_nvfp4]\n{problem}")
    ran = project.run("one/k.py", "two/k.py", "--nvfp4-problem=small", "--co", "-q")
    assert "\nk.py::layouts[small]\n" in ran.text
    assert "\n../two/k.py::layouts\n" in ran.text, "pytest has no node id of a file outside of its root"
    ran = project.run("one/k.py", "two/k.py", "--nvfp4-problem=small", "-k", "compile and not small")
    assert "no problem is called 'small'" in ran.text
    assert ran.code == int(pytest.ExitCode.TESTS_FAILED)


def test_settings_that_the_run_does_not_read_are_named(project: Project, workers: tuple[str, ...]) -> None:
    (project.path / "pyproject.toml").unlink()
    project.file("pytest.ini", "[pytest]\n")
    project.file("sub/k.py", KERNEL)
    for text, warned in (("", False), ("problems.small = { m = 8, n = 128, k = 256 }\n", True)):
        project.file("sub/pyproject.toml", f"[tool.pytest_nvfp4]\n{text}")
        ran = project.run("sub/k.py", "--nvfp4-arch=sm_100a", "-k", "nothing", *workers)
        assert ("sub/pyproject.toml: its [tool.pytest_nvfp4] is not read in this run" in ran.text) is warned, ran.text


def test_a_kernel_with_an_entry_may_have_any_problem(project: Project) -> None:
    project.file("k.py", ENTRY)
    ran = project.run("k.py", "--nvfp4-entry=k.py::build", "--nvfp4-problem=128x128x264", "--co", "-q")
    assert "k.py::compile[128x128x264]" in ran.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("[tool.pytest_nvfp4]\nproblem = 1\n", "unknown key 'problem'"),
        ("[[tool.pytest_nvfp4.kernel]]\nentry = 'k.py::build'\n", "path = None is not usable"),
        ("[tool.pytest_nvfp4]\nproblems.a = { m = 0 }\n", "problem 'a'"),
    ],
)
def test_settings_that_cannot_be(project: Project, settings: str, said: str, workers: tuple[str, ...]) -> None:
    project.settings(settings)
    project.file("k.py", KERNEL)
    ran = project.run("k.py", *workers)
    assert ran.code == USAGE
    assert said in ran.errors
    assert "pyproject.toml" in ran.errors


@pytest.mark.parametrize("where", ["ini", "table"])
def test_a_glob_that_cannot_be(project: Project, where: str) -> None:
    if where == "ini":
        project.settings("", ini='nvfp4_kernels = ["[z-a].py"]')
    else:
        project.settings('[[tool.pytest_nvfp4.kernel]]\npath = "[z-a].py"\n')
    ran = project.run()
    assert ran.code == USAGE
    said = {"ini": "a glob of kernel files cannot be used", "table": "path = '[z-a].py' is not usable: a path or glob"}
    assert said[where] in ran.errors


def test_an_entry_needs_a_kernel_that_is_named(project: Project) -> None:
    project.file("k.py", ENTRY)
    ran = project.run(".", "--nvfp4-entry=k.py::build")
    assert ran.code == USAGE
    assert "is for a kernel file named on the command line, and none is" in ran.errors


@pytest.mark.slow
def test_an_entry_is_relative_to_where_it_was_typed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.kernel("deep/k.py", ENTRY, entry="build")
    monkeypatch.chdir(project.path / "deep")
    project.run("k.py::compile", "--nvfp4-entry=k.py::build").outcomes(passed=1)


def test_an_entry_is_for_kernels_and_not_for_tests_that_are_named_beside_them(project: Project) -> None:
    project.kernel(source=ENTRY, entry="build")
    project.file("test_a.py", "def test_a():\n    pass\n")
    project.run("k.py", "test_a.py", "--nvfp4-entry=k.py::build", "-k", "compile or test_a").outcomes(
        passed=2, deselected=3
    )


def test_options_reach_the_compile(project: Project) -> None:
    project.file("k.py", ENTRY)
    project.bank.seed(project.path / "k.py", entry="build", options=("--opt-level 1",), arch="sm_103a")
    options = ("--nvfp4-entry=k.py::build", "--nvfp4-compile-option=--opt-level 1", "--nvfp4-arch=sm_103a")
    project.run("k.py", *options, "--snapshot-update").outcomes(passed=4)
    text = project.snapshots()["k/layouts.txt"]
    assert "# arch     sm_103a\n" in text
    assert "# options  --opt-level 1\n" in text


def test_a_compile_option_that_the_dsl_does_not_know_is_the_kernels_failure(project: Project) -> None:
    project.file("k.py", ENTRY)
    ran = project.run("k.py", "--nvfp4-entry=k.py::build", "--nvfp4-compile-option=--no-such-thing")
    ran.outcomes(failed=1, skipped=3)
    assert "--no-such-thing" in ran.failures()["compile"]


def test_help_names_every_option_and_setting(project: Project) -> None:
    text = project.run("--help").text
    for name in (
        "entry",
        "arch",
        "problem",
        "compile-option",
        "fail-on",
        "unprotect",
        "timeout",
        "cache-dir",
        "html",
        "md",
    ):
        assert f"--nvfp4-{name}" in text
    for name in ("kernels", "snapshots", "fail_on", "protected", "timeout"):
        assert f"nvfp4_{name} (" in text


def test_settings_in_pytests_own_toml_table(project: Project) -> None:
    """Pytest 9 reads ``[tool.pytest]`` with TOML's own types."""
    project.file(
        "pyproject.toml",
        '[tool.pytest]\nnvfp4_kernels = ["kernels/*.py"]\nnvfp4_timeout = 60.5\nnvfp4_fail_on = "cosmetic"\n'
        'nvfp4_protected = ["*.tile"]\n',
    )
    project.kernel("kernels/k.py")
    project.record()
    project.run().outcomes(passed=4)
