from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.cli.popcorn import Popcorn, Statistics, spec_line
from pytest_nvfp4.problem import GPUMODE
from tests.waiting import far_enough

HONEST = Path(__file__).parents[1] / "device" / "kernels" / "honest.py"

PLUGIN = """
from pathlib import Path
from pytest_nvfp4.device import select
from pytest_nvfp4.device.local import LocalDevice

select._third_party = lambda name: (lambda *, probe_folder: LocalDevice(probe_folder=probe_folder, backend="host"))
"""
"""Stands in for an entry point: the device ``cpu`` computes torch's operations on the CPU."""


def evaluate(tmp_path: Path, *arguments: str, fd: bool = True) -> tuple[int, dict[str, str], str]:
    script = tmp_path / "run.py"
    script.write_text(PLUGIN + "\nfrom pytest_nvfp4.cli import main\nmain()\n")
    read, write = os.pipe()
    environ = dict(os.environ)
    environ.pop("POPCORN_FD", None)
    if fd:
        environ["POPCORN_FD"] = str(write)
    done = subprocess.run(
        [sys.executable, str(script), "eval", *arguments],
        pass_fds=(write,),
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read() if fd else done.stdout
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    return done.returncode, lines, done.stderr


@pytest.mark.slow
def test_an_honest_kernel_passes(tmp_path: Path) -> None:
    code, lines, err = evaluate(
        tmp_path, str(HONEST), "--device", "cpu", "--problem", "7x128x256", "--problem", "40x128x256,9x128x512"
    )
    assert code == 0, err
    assert lines["test-count"] == "2"
    assert lines["test.1.spec"] == "m: [40, 9]; n: [128, 128]; k: [256, 512]; g: 2; seed: 1111"
    assert (lines["test.0.status"], lines["test.1.status"], lines["check"]) == ("pass", "pass", "pass")


@pytest.mark.slow
def test_a_wrong_kernel_fails_validation(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(HONEST.read_text().replace("[:rows, : k // 16]", "[:rows, : k // 16].roll(1, dims=1)"))
    code, lines, _ = evaluate(tmp_path, str(wrong), "--device", "cpu", "--problem", "7x128x256")
    assert code == 112
    assert lines["test.0.status"] == "fail"
    assert "outputs wrong" in lines["test.0.error"]
    assert lines["check"] == "fail"


@pytest.mark.slow
def test_a_kernel_that_raises_is_a_cuda_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def custom_kernel(data):\n    raise RuntimeError('no')\n")
    code, lines, _ = evaluate(tmp_path, str(broken), "--device", "cpu", "--problem", "7x128x256")
    assert code == 110
    assert "RuntimeError: no" in lines["test.0.error"]


@pytest.mark.slow
def test_a_hang_times_out(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("def custom_kernel(data):\n    import time; time.sleep(10_000)\n")
    given = (tmp_path, str(slow), "--device", "cpu", "--problem", "7x128x256", "--timeout")
    code, lines, _ = far_enough(
        lambda seconds: evaluate(*given, f"{seconds:g}"), lambda done: "call 0" in str(done), first_s=8
    )
    assert "call 0" in str(lines)
    assert code == 114


@pytest.mark.slow
def test_without_a_descriptor_lines_go_to_standard_output(tmp_path: Path) -> None:
    code, lines, _ = evaluate(tmp_path, str(HONEST), "--device", "cpu", "--problem", "3x128x256", fd=False)
    assert code == 0
    assert lines["check"] == "pass"


@pytest.mark.slow
def test_json_has_the_same_lines(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(PLUGIN + "\nfrom pytest_nvfp4.cli import main\nmain()\n")
    done = subprocess.run(
        [sys.executable, str(script), "eval", str(HONEST), "--device", "cpu", "--problem", "3x128x256", "--json"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (found["exit_code"], found["lines"]["check"], found["mode"]) == (0, "pass", "test")


@pytest.mark.slow
def test_times_of_a_cpu_are_no_benchmark(tmp_path: Path) -> None:
    code, lines, _ = evaluate(tmp_path, str(HONEST), "--device", "cpu", "--mode", "benchmark", "--problem", "3x128x256")
    assert code == 110
    assert "no GPU clock" in lines["benchmark.0.error"]
    assert "benchmark.0.mean" not in lines


@pytest.mark.slow
def test_the_simulator_is_a_device(tmp_path: Path) -> None:
    """Its C counts only if a kernel computed it: this one uses torch's operators, which a setting allows."""
    kernel = tmp_path / "honest.py"
    kernel.write_text(HONEST.read_text())
    code, lines, _ = evaluate(tmp_path, str(kernel), "--device", "sim", "--problem", "3x128x256")
    assert (code, lines["check"]) == (112, "fail")
    assert "descends from torch's mm" in lines["test.0.error"]
    (tmp_path / "pyproject.toml").write_text("[tool.pytest_nvfp4]\ntorch-operators = true\n")
    code, lines, _ = evaluate(tmp_path, str(kernel), "--device", "sim", "--problem", "3x128x256")
    assert (code, lines["check"]) == (0, "pass")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([str(HONEST), "--problem", "nonsense"], 113, "no problem is called"),
        (["missing.py"], 112, "no such file"),
        ([str(HONEST), "--device", "none"], 110, "no device is selected"),
        ([str(HONEST), "--mode", "dance"], 2, "dance"),
    ],
)
def test_mistakes_have_their_exit_codes(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    got, _, err = evaluate(tmp_path, *arguments)
    assert got == code
    assert words in err


def test_a_closed_descriptor_is_a_pipe_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.cli", "eval", str(HONEST)],
        env={**os.environ, "POPCORN_FD": "99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 111
    assert "POPCORN_FD" in done.stderr


def test_statistics_are_nanoseconds() -> None:
    found = Statistics.of([1.0, 2.0, 3.0])
    assert (found.runs, found.mean, found.best, found.worst) == (3, 2000.0, 1000.0, 3000.0)
    assert found.std == pytest.approx(1000.0)
    assert found.err == pytest.approx(1000.0 / 3**0.5)
    assert Statistics.of([5.0]).std == 0.0


def test_lines_stay_lines() -> None:
    lines: list[str] = []
    Popcorn(lines.append).log("key", "a\nb: c\r\\")
    assert lines == ["key: a\\nb: c\\r\\\\\n"]
    assert spec_line(GPUMODE[0]) == "m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2; seed: 1111"
