"""``nvfp4 check`` and ``nvfp4 watch``: the checks as pytest runs them, and what a change brings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from pytest_nvfp4.cli.app import COMMANDS, FIRST
from pytest_nvfp4.cli.check import _run, report
from tests.cli.helpers import ROW_MAJOR, Result
from tests.waiting import LONGEST_S

QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel with settings, in a folder of its own."""
    (tmp_path / "k.py").write_text(ROW_MAJOR)
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nentry = "k.py::build"\n[tool.pytest.ini_options]\n'
    )
    return tmp_path / "k.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest_nvfp4.cli", *arguments]


def test_a_folder_is_no_kernel(tmp_path: Path, cli) -> None:
    shown = cli("check", tmp_path)
    assert (shown.code, "is a folder" in shown.err) == (2, True)


@pytest.mark.slow
def test_check_is_pytest(kernel: Path) -> None:
    codes = []
    for text in (ROW_MAJOR, ROW_MAJOR.replace("cute.compile(host", "cute.compile(missing")):
        kernel.write_text(text)
        options = [kernel.name, "--nvfp4-check=compile", *QUIET]
        ours = subprocess.run(
            command("check", kernel.name, "--check", "compile", *QUIET),
            cwd=kernel.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        theirs = subprocess.run(
            [sys.executable, "-m", "pytest", *options], cwd=kernel.parent, capture_output=True, check=False
        )
        assert ours.returncode == theirs.returncode, ours.stdout
        assert "k.py" in ours.stdout
        codes.append(ours.returncode)
    assert codes == [0, 1]


@pytest.mark.slow
def test_the_report_is_the_result_and_what_pytest_shows_is_not(kernel: Path) -> None:
    options = [kernel.name, "--nvfp4-check=compile", *QUIET]
    found = {}
    for form in ("--json", "--md"):
        found[form] = subprocess.run(
            command("check", *options, form), cwd=kernel.parent, capture_output=True, text=True, check=False
        )
    assert [done.returncode for done in found.values()] == [0, 0], found
    assert json.loads(found["--json"].stdout)["outcomes"]["passed"] == 1
    assert found["--md"].stdout.startswith("<!-- pytest-nvfp4 report -->")
    assert "1 passed" in found["--json"].stderr


def test_a_pattern_without_a_file_is_explained(cli: Callable[..., Result]) -> None:
    for name in ("check", "layouts", "cost"):
        done = cli(name, "none/*.py")
        assert done.code == 2
        assert "as a pattern it matches none in" in done.err


OPTIONS = """\
def test_options(pytestconfig):
    assert pytestconfig.getoption("--nvfp4-problem") == ["8x8x64", "8x8x128"]
    assert pytestconfig.getoption("--nvfp4-races") == "off"
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("-n2",)])
def test_options_of_other_commands_are_pytests(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(OPTIONS)

    def code(*options: str) -> int:
        line = command("check", "test_it.py", *options, *QUIET, *more)
        return subprocess.run(line, cwd=tmp_path, capture_output=True, check=False).returncode

    assert code("--races=off", "--problem", "8x8x64", "--problem=8x8x128") == 0
    assert code("--races=all", "--problem", "8x8x64", "--problem=8x8x128") == 1
    assert code("--no-such-option") == 4


@pytest.mark.parametrize("name", ["check", "watch"])
def test_a_kernel_that_is_not_there(cli: Callable[..., Result], name: str) -> None:
    done = cli(name, "missing.py")
    assert done.code == 2
    assert "missing.py: no such file" in done.err


def test_what_a_run_reports() -> None:
    first = {"compile[a]": ("passed", ""), "verify[a]": ("failed", "wrong at 3\nmore"), "races[a]": ("skipped", "no")}
    *lines, total = report({}, first, first=True)
    assert lines == ["verify[a]: failed: wrong at 3", "races[a]: skipped: no"]
    assert total.endswith(" 1 failed, 1 passed")
    *lines, total = report(first, {**first, "verify[a]": ("failed", "wrong at 4")}, first=False)
    assert lines == ["verify[a]: failed differently: wrong at 4"]
    *lines, total = report(first, first, first=False)
    assert lines == ["verify[a]: still failed: wrong at 3"]
    *lines, total = report(first, {"compile[a]": ("failed", "bad")}, first=False)
    assert lines == ["compile[a]: passed -> failed: bad"]
    assert total.endswith("1 failed; 2 not run again until these pass")
    *lines, total = report(first, {**first, "verify[a]": ("passed", "")}, first=False)
    assert lines == ["verify[a]: failed -> passed"]


@pytest.mark.slow
def test_a_run_as_json(kernel: Path) -> None:
    options = [kernel.name, "--runs=1", "--json", "-k", "compile", *QUIET]
    done = subprocess.run(command("watch", *options), cwd=kernel.parent, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    data = json.loads(line)
    assert data["ok"]
    assert {name: each["outcome"] for name, each in data["checks"].items()} == {"compile": "passed"}


def test_a_change_ends_the_run_in_progress() -> None:
    answers: Iterator[bool] = iter([False, True])
    started = time.monotonic()
    assert _run([sys.executable, "-c", f"import time; time.sleep({LONGEST_S})"], lambda: next(answers)) is None
    assert time.monotonic() - started < LONGEST_S
    assert _run([sys.executable, "-c", "print('x'); raise SystemExit(3)"], lambda: False) == (3, "x\n")


@pytest.mark.slow
def test_watch_shows_what_a_change_brings(kernel: Path) -> None:
    watching = subprocess.Popen(
        command("watch", kernel.name, *QUIET), cwd=kernel.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    lines: list[str] = []
    assert watching.stdout is not None
    reader = Thread(target=lambda: lines.extend(iter(watching.stdout.readline, "")))  # type: ignore[union-attr]
    reader.start()

    def until(runs: int) -> str:
        end = time.monotonic() + LONGEST_S
        while "".join(lines).count("waiting for a change") < runs:
            assert time.monotonic() < end, lines
            assert watching.poll() is None, lines
            time.sleep(0.1)
        return "".join(lines)

    try:
        assert "compile[build]: passed" not in until(1)
        kernel.write_text(ROW_MAJOR.replace("cute.compile(host", "cute.compile(missing"))
        assert ": passed -> failed: " in (text := until(2))
        assert "missing" in text
        kernel.write_text(ROW_MAJOR)
        assert ": failed -> passed" in until(3)
    finally:
        watching.send_signal(signal.SIGINT)
    assert watching.wait(LONGEST_S) == 130
    reader.join()


def test_without_arguments_the_commands_that_matter_are_shown(cli: Callable[..., Result]) -> None:
    done = cli()
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("  nvfp4 ")] == list(FIRST)
    assert set(FIRST) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "expected"), [("nvfp4 wat", "watch"), ("nvfp4 watch --r", "--runs"), ("nvfp4 model dev", "devices")]
)
def test_words_are_completed(words: str, expected: str) -> None:
    environ = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from pytest_nvfp4.cli.app import run; run()"],
        env={**environ, "_NVFP4_COMPLETE": "bash_complete"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"plain,{expected}" in done.stdout.splitlines(), done.stderr


def test_the_script_of_a_shell(cli: Callable[..., Result]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_NVFP4_COMPLETE" in cli("completion", shell).out
    assert cli("completion", "tcsh").code == 2
