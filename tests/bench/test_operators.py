"""Operators of suites: right and wrong answers, and results that do not fit what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.bench.operators import OperatorTimes, time_operator
from pytest_nvfp4.device.remote.base import PythonProgram
from pytest_nvfp4.device.worker import clock, memory, operator_clock
from pytest_nvfp4.device.worker.operator_clock import KERNEL
from pytest_nvfp4.isolation import OnOutput
from tests.bench.operator_programs import TASK, CountingClock, on_cpu


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Times a kernel's text in this process, on the CPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(clock, "DeviceClock", CountingClock)
    monkeypatch.setattr(memory, "CudaMemory", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1 << 20))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.chdir(tmp_path)

    def measure(kernel: str, **changes: object) -> dict[str, Any]:
        (tmp_path / KERNEL).write_text(kernel)
        return operator_clock.timed(torch, TASK.model_copy(update=changes).model_dump(), device="cpu")

    return measure


@pytest.mark.slow
def test_a_program_times_a_right_operator() -> None:
    kernel = b"def doubled(x):\n    print('operator- noise')\n    return x + x\n"
    times = time_operator(on_cpu, TASK, kernel, deadline_s=120)
    assert times.because == ""
    assert times.status == "passed"
    assert times.device_us == tuple(map(float, range(1, 10)))
    assert (times.late, times.bytes, times.sets) == (1, 2 * 8 * 16 * 4, 8)
    assert times.device is not None


@pytest.mark.parametrize(
    ("kernel", "status", "said"),
    [
        ("def doubled(x):\n    y = 2 * x\n    y[3, 5] += 1\n    return y\n", "failed", "at (3, 5)"),
        ("def doubled(x):\n    return (2 * x)[:4]\n", "failed", "shape (4, 16)"),
        (
            "calls = 0\ndef doubled(x):\n    global calls\n    calls += 1\n    return x if calls > 5 else 2 * x\n",
            "failed",
            "timed round",
        ),
        ("def doubled(x):\n    raise ValueError('not today')\n", "crashed", "ValueError: not today"),
        ("def other(x):\n    return x\n", "crashed", "doubled"),
        ("def doubled(x) return x\n", "crashed", "SyntaxError"),
        ("def doubled(x):\n    return None\n", "crashed", "AttributeError"),
    ],
)
def test_what_is_wrong_has_no_times(
    measured: Callable[..., dict[str, Any]], kernel: str, status: str, said: str
) -> None:
    times = measured(kernel)
    assert times["status"] == status
    assert "device_us" not in times
    assert said in times["because"]


def test_a_tolerance_is_a_number_or_an_expression(measured: Callable[..., dict[str, Any]]) -> None:
    near = "def doubled(x):\n    return 2 * x + 1e-4\n"
    for tolerance, status in ((0.0, "failed"), (1e-3, "passed"), ("0 * x + 1e-3", "passed"), ("0 * x", "failed")):
        assert measured(near, tolerance=tolerance)["status"] == status
    for dtype in ("int16", "int32", "bfloat16"):
        exact = {"tolerance": 0.0, "reference": "x.t().contiguous()", "dtype": dtype}
        assert measured("def doubled(x):\n    return x.t().contiguous()\n", **exact)["status"] == "passed"
        assert measured("def doubled(x):\n    return 1 - x.t()\n", **exact)["status"] == "failed"


def test_a_program_that_ends_without_a_result() -> None:
    def run(program: PythonProgram, on_output: OnOutput) -> int:
        del program
        on_output("stderr", b"Segmentation fault\n")
        return 139

    times = time_operator(run, TASK, b"", deadline_s=1)
    assert times.status == "crashed"
    assert times.because == "the program ended with status 139 and without a result: Segmentation fault"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device_us": [1.0] * 8}, "8 rounds were measured, and 9 were asked for"),
        ({"device_us": [1.0] * 8 + [0.0]}, "device_us.8"),
        ({"device_us": "no list"}, "device_us"),
        ({"status": "proud"}, "status"),
        ({"device": None}, "rounds were measured"),
        ({"more": 1}, "unknown field more"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(change: dict[str, object], said: str) -> None:
    device = {"name": "NVIDIA H200", "capability": [9, 0]}
    good = {"status": "passed", "device_us": [1.0] * 9, "device": device}

    def lying(answer: dict[str, object]) -> OperatorTimes:
        def run(program: PythonProgram, on_output: OnOutput) -> int:
            token = program.source.partition("main('")[2].partition("')")[0]
            on_output("stdout", f"{token}{json.dumps(answer)}\n".encode())
            return 0

        return time_operator(run, TASK, b"", deadline_s=1)

    assert lying(good).status == "passed"
    refused = lying(good | change)
    assert refused.status == "crashed"
    assert said in refused.because
