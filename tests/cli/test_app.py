"""The group: help without imports, near misses, exit codes, pipes and interrupts."""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module

import click
import pytest

from pytest_nvfp4.cli import errors
from pytest_nvfp4.cli.app import COMMANDS, app
from pytest_nvfp4.cli.errors import Exit
from tests.cli.helpers import ROOT, run_process
from tests.waiting import LONGEST_S, locked, until

HEAVY = {"torch", "cutlass", "numpy", "pydantic", "rich", "jinja2", "modal", "z3", "pytest", "filelock"}


def test_help_and_version_import_nothing_heavy_and_no_subcommand() -> None:
    script = (
        "import sys, json\n"
        "from pytest_nvfp4.cli import main\n"
        "sys.argv = ['nvfp4', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=900, check=True
    )
    modules = set(json.loads(done.stderr))
    assert not HEAVY & modules
    own = {name for name in modules if name.startswith("pytest_nvfp4.cli.")}
    assert own == {"pytest_nvfp4.cli.app", "pytest_nvfp4.cli.errors"}
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


def test_importing_the_package_imports_nothing() -> None:
    script = "import sys; old = set(sys.modules); import pytest_nvfp4.cli; print(*sorted(set(sys.modules) - old))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=900, check=True
    )
    assert done.stdout.split() == ["pytest_nvfp4", "pytest_nvfp4.cli"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_explains_itself(name, cli) -> None:
    module = import_module(f"pytest_nvfp4.{COMMANDS[name][0]}")
    command = getattr(module, f"{name.replace('-', '_')}_command")
    assert isinstance(command, click.Command)
    assert command.name == name
    shown = cli(name, "--help")
    assert shown.code == 0
    assert len(command.help or "") > 30
    subcommands = command.commands.values() if isinstance(command, click.Group) else [command]
    for one in subcommands:
        if name not in ("check", "completion"):  # pytest's own results, and a shell's script
            assert any("--json" in option.opts for option in one.params), f"{name} {one.name} has no --json"
        for option in one.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts} has no help"


def test_a_near_miss_is_named(cli) -> None:
    shown = cli("layots")
    assert shown.code == Exit.USAGE
    assert "did you mean 'layouts'" in shown.err
    unlike = cli("qqqq")
    assert unlike.code == Exit.USAGE
    assert "doctor" in unlike.err


def test_usage_errors_end_with_2(cli) -> None:
    for arguments in (
        ["layouts"],
        ["diff", "a"],
        ["layouts", "x.py", "--no-such"],
        ["diff", "a", "b", "--fail-on", "z"],
    ):
        shown = cli(*arguments)
        assert shown.code == Exit.USAGE, arguments
        assert "Traceback" not in shown.err
    assert "'z' is not a severity; use one of cosmetic, renested, same-function, permuted, different" in shown.err


def test_unknown_exceptions_are_not_hidden() -> None:
    assert errors.as_input_error(RuntimeError("a defect")) is None
    assert errors.as_input_error(ModuleNotFoundError("x", name="pytest_nvfp4.cli.nothing")) is None


def test_a_missing_package_is_one_line() -> None:
    script = "import sys; sys.modules['pydantic'] = None; from pytest_nvfp4.cli import main; main()"
    kernel = ROOT / "kernels" / "nvfp4_group_gemm" / "sm100.py"
    done = subprocess.run(
        [sys.executable, "-c", script, "layouts", str(kernel)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == Exit.USAGE
    assert done.stderr.strip() == (
        "nvfp4: error: pydantic is not installed; `nvfp4 doctor` lists what is missing and how to get it"
    )


def test_without_click_there_is_still_a_sentence() -> None:
    script = "import sys; sys.modules['click'] = None; from pytest_nvfp4.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "nvfp4: error: click is not installed: pip install click"


def test_a_reader_that_leaves_early_is_no_error(project) -> None:
    facts = "".join(f"fact.{at}  {'x' * 100}\n" for at in range(20000))
    (project / "long.txt").write_text(f"# nvfp4-launch 1\n\n{facts}# end 20000\n")
    pipe = subprocess.run(
        f"set -o pipefail; {sys.executable} -m pytest_nvfp4.cli snapshot show long.txt | head -1",
        shell=True,
        executable="/bin/bash",
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert pipe.stderr == ""
    assert pipe.stdout.startswith("fact.0  ")
    assert pipe.returncode == 0


SLEEPER = """
import fcntl, time
import cutlass

def build():
    file = open(__file__)
    fcntl.flock(file, fcntl.LOCK_SH)
    time.sleep(600)
"""


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_and_says_so(tmp_path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "temporary").mkdir()
    started = subprocess.Popen(
        [sys.executable, "-m", "pytest_nvfp4.cli", "layouts", "sleeper.py", "--entry", "sleeper.py::build"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NVFP4_CACHE_DIR": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path / "temporary"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        kernel = tmp_path / "sleeper.py"
        assert until(lambda: started.poll() is not None or locked(kernel)), "no worker started"
        assert started.poll() is None, started.communicate()
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=LONGEST_S)
    finally:
        started.kill()
    assert started.returncode == Exit.INTERRUPTED
    assert err.splitlines()[-1] == "nvfp4: interrupted"
    assert "Traceback" not in err
    assert until(lambda: not locked(kernel)), "the worker still runs"
    assert not list((tmp_path / "temporary").glob("nvfp4-*"))


def test_the_module_can_be_run(tmp_path) -> None:
    shown = run_process("--version", cwd=tmp_path)
    assert shown.code == 0
    assert shown.out.startswith("nvfp4, version ")
    assert isinstance(app, click.Group)
