"""Calibrate a GPU of this machine or of a remote: run the micro-benchmarks in a process there, and fit what it read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.gpus import visible_gpus
from pytest_nvfp4.device.remote.base import ProgramRemote, PythonProgram
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.model.calibrate.benchmark import Machine
from pytest_nvfp4.model.calibrate.estimates import Measurements
from pytest_nvfp4.model.calibrate.fits import Fitted, fit
from pytest_nvfp4.model.calibrate.plan import plan
from pytest_nvfp4.model.calibrate.readings import (
    MOST_BYTES,
    Gpu,
    Refusal,
    Report,
    by_name,
    read_report,
    wrong_reading,
)
from pytest_nvfp4.text import clip

_SOURCE = "from pytest_nvfp4.device.worker.calibration import main\nmain()\n"
_MOST_ERROR = 600
_MOST_LOST = 8
"""Benchmarks that may end their process before the rest is given up."""
_TIMED_OUT = 124
"""Exit status of a program that was stopped at its deadline."""

Runner = Callable[[PythonProgram, OnOutput], int]
"""Runs a program where the GPU is, forwards its output, and returns its exit status."""


class CalibrationError(Exception):
    """A GPU was not calibrated; the message is the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated GPU, and what was found."""

    gpu: Gpu
    fitted: Fitted


def on_this_machine() -> Runner:
    """Return a runner on the first GPU that this process may use. Raises CalibrationError if there is none."""
    gpus = visible_gpus()
    if not gpus:
        raise CalibrationError(
            "there is no NVIDIA GPU that this process may use; --remote measures one elsewhere (modal, ssh:HOST)"
        )
    return lambda program, on_output: execute(program, backend="cuda", visible=gpus[0], on_output=on_output).exit_status


def on_remote(remote: ProgramRemote) -> Runner:
    """Return a runner on a remote."""
    return lambda program, on_output: remote.execute(program, on_output=on_output)


def calibrate(run: Runner, *, deadline_s: float) -> Calibration:
    """Measure a GPU. Benchmarks behind one that ends its process run in another process.

    Raises:
        CalibrationError: The GPU is busy, throttled or unknown, or the process failed.
        RemoteError: The remote failed.
    """
    until = time.monotonic() + deadline_s
    report, first = Report(), 0
    for _ in range(1 + _MOST_LOST):
        found, failure = _attempt(run, first, until - time.monotonic(), deadline_s)
        report = report.followed_by(found)
        if reason := report.refused():
            raise CalibrationError(reason if report.gpu or not failure else f"{reason}: {failure}")
        if found.complete or found.begun is None:
            if failure:
                raise CalibrationError(f"the calibration's process failed: {failure}")
            break
        assert report.gpu is not None
        planned = plan(_machine(report.gpu))
        if not first <= found.begun < len(planned):
            raise CalibrationError(f"the calibration's report begins benchmark {found.begun}, which was not asked for")
        name, first = planned[found.begun].name, found.begun + 1
        if not any(refusal.benchmark == name for refusal in found.refusals):
            lost = Refusal(benchmark=name, reason=f"benchmark {name}: its process failed: {failure or 'no reason'}")
            report = report.followed_by(Report(refusals=(lost,)))
    return judged(report)


def _attempt(run: Runner, first: int, left_s: float, deadline_s: float) -> tuple[Report, str]:
    """Return what a process reports of the benchmarks from a number on, and how it failed, or an empty text."""
    written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    size = 0

    def collect(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        if size > MOST_BYTES:
            raise CalibrationError(f"the calibration's process wrote more than {MOST_BYTES >> 20} MiB")
        written[stream].append(piece)

    status = _TIMED_OUT
    if left_s > 0:
        status = run(PythonProgram(_SOURCE, arguments=(str(first),), deadline_s=left_s), collect)
    if status == _TIMED_OUT:
        raise CalibrationError(f"the micro-benchmarks were stopped after {deadline_s:g} s; raise --timeout")
    try:
        report = read_report(b"".join(written["stdout"]))
    except DoorError as error:
        raise CalibrationError(str(error)) from error
    return report, _said(written, status) if status else ""


def _said(written: dict[str, list[bytes]], status: int) -> str:
    text = b"".join(written["stderr"]).decode("utf-8", "replace").strip()
    return f"exit status {status}" + (f"; {clip(text[-_MOST_ERROR:], _MOST_ERROR)}" if text else "")


def _machine(gpu: Gpu) -> Machine:
    try:
        return gpu.machine()
    except ValueError as error:
        raise CalibrationError(str(error)) from error


def judged(report: Report) -> Calibration:
    """Return the fits of a report, without readings that do not fit their benchmark. Raises CalibrationError."""
    assert report.gpu is not None
    machine = _machine(report.gpu)
    benchmarks = {benchmark.name: benchmark for benchmark in plan(machine)}
    rejected = {refusal.benchmark: refusal.reason for refusal in report.refusals}
    kept = []
    for reading in report.readings:
        benchmark = benchmarks.get(reading.benchmark)
        wrong = "is no benchmark" if benchmark is None else wrong_reading(benchmark, reading)
        if wrong:
            rejected[reading.benchmark] = f"benchmark {reading.benchmark} {wrong}"
        else:
            kept.append(reading)
    operations = {
        name: [point.operations if benchmark.launches == "one" else point.n for point in benchmark.points]
        for name, benchmark in benchmarks.items()
    }
    fitted = fit(report.gpu, machine, Measurements(by_name(kept), operations))
    fitted.missing.update(rejected)
    if not kept:
        raise CalibrationError("nothing was measured: " + next(iter(rejected.values()), "the report has no readings"))
    return Calibration(report.gpu, fitted)
