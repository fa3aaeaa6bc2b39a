"""The calibration's process on a driver that simulates, and what the parent accepts of its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.device import calibrate
from pytest_nvfp4.device.calibrate import CalibrationError
from pytest_nvfp4.device.gpus import GpuState
from pytest_nvfp4.device.remote.base import PythonProgram
from pytest_nvfp4.device.worker import calibration
from pytest_nvfp4.device.worker.memory import DriverError
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.model.calibrate.benchmark import Benchmark, Machine
from pytest_nvfp4.model.calibrate.readings import MARKER, Begun, Gpu, Line, Reading, Refusal, State
from pytest_nvfp4.model.calibrate.readings import by_name as readings_by_name
from tests.device.simulated_driver import ARCH, ELAPSED_MS, SimulatedDriver
from tests.model.calibrate.simulated import benchmarks, machine

RUN = ("tma.rate.2", "mbarrier.remote", "l2.latency", "dram.latency", "map.change", "cta.start", "launch.plain",
       "launch.programmatic", "launch.graph")  # fmt: skip


def few(_machine: Machine) -> list[Benchmark]:
    return [benchmarks(ARCH)[name] for name in RUN]


def simulate(monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    """Put a driver that simulates in the place of an idle GPU's, and a plan of few benchmarks."""
    made = SimulatedDriver()
    monkeypatch.setattr(calibration, "CudaMemory", lambda: made)
    monkeypatch.setattr(calibration, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(calibration, "gpu_state", lambda _: GpuState(0, 0, (), (1980, 1980)))
    monkeypatch.setattr(calibration, "driver_version", lambda: "580.1")
    monkeypatch.setattr(calibration, "REPEATS", 2)
    for module in (calibration, calibrate):
        monkeypatch.setattr(module, "plan", few)
    monkeypatch.setattr(Gpu, "machine", lambda _: machine(ARCH))
    return made


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    return simulate(monkeypatch)


@pytest.fixture(scope="module")
def report() -> tuple[list[Line], SimulatedDriver]:
    """The lines of one calibration, which all tests share, and its driver."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        driver = simulate(monkeypatch)
        return list(calibration.lines()), driver


@pytest.fixture
def lines(report: tuple[list[Line], SimulatedDriver]) -> list[Line]:
    return list(report[0])


Run = Callable[[PythonProgram, OnOutput], int]


def processes(*, status: int = 1, ending: str = "") -> Run:
    """A runner of processes with a driver each; one that begins a benchmark named ``ending`` ends there at once."""

    def run(program: PythonProgram, on_output: OnOutput) -> int:
        (first,) = program.arguments
        planned = calibration.plan(machine(ARCH))
        lines = list(calibration.lines(int(first)))
        for line in lines:
            on_output("stdout", f"{MARKER}{line.model_dump_json()}\n".encode())
            if isinstance(line, Begun) and planned[line.number].name == ending:
                on_output("stderr", b"Timeout (0:00:40)!")
                return status
        return 0

    return run


def printed(lines: list[Line], *, status: int = 0, noise: bytes = b"") -> Run:
    """A runner whose process prints lines."""

    def run(program: PythonProgram, on_output: OnOutput) -> int:
        compile(program.source, "program", "exec")
        on_output("stdout", noise)
        for line in lines:
            on_output("stdout", f"{MARKER}{line.model_dump_json()}\n".encode())
        on_output("stderr", b"what it said last")
        return status

    return run


def test_every_kind_of_benchmark_is_launched_as_planned_and_read(lines: list[Line]) -> None:
    assert [line for line in lines if isinstance(line, Refusal)] == []
    readings = [line for line in lines if isinstance(line, Reading)]
    assert {reading.benchmark for reading in readings} == set(RUN)
    assert [line.when for line in lines if isinstance(line, State)] == ["before", "after"]
    found = calibrate.calibrate(printed(lines, noise=b"a library's warning\n"), deadline_s=60)
    assert not [reason for reason in found.fitted.missing.values() if "counted" in reason]
    assert {"tma_row", "load_latency"} & (set(found.fitted.constants) | set(found.fitted.missing))
    assert found.gpu.clusters == {"2": 1, "4": 0, "8": 0, "16": 0}
    assert found.fitted.constants["clusters_of_2"].value == 1
    assert "clusters_of_4" not in found.fitted.constants
    plain = next(reading for reading in readings if reading.benchmark == "launch.plain")
    assert plain.ns == (ELAPSED_MS * 1e6,) * 2


def test_only_programmatic_launches_are_programmatic(report: tuple[list[Line], SimulatedDriver]) -> None:
    points = benchmarks(ARCH)["launch.programmatic"].points
    assert report[1].programmatic == (calibration._WARM_UPS + 2) * sum(point.n for point in points)
    assert report[1].launched > report[1].programmatic


def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan three benchmarks."""
    chosen = [benchmarks(ARCH)[name] for name in ("shared.latency", "atomic", "mbarrier.round")]
    for module in (calibration, calibrate):
        monkeypatch.setattr(module, "plan", lambda _: chosen)
    monkeypatch.setattr(calibration, "CudaMemory", SimulatedDriver)


def measuring(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, Reading]]:
    """The readings that the fits are given."""
    found = dict[str, dict[int, Reading]]()

    def by_name(readings: list[Reading]) -> dict[str, dict[int, Reading]]:
        found.update(readings_by_name(readings))
        return found

    monkeypatch.setattr(calibrate, "by_name", by_name)
    return found


def test_a_benchmark_that_faults_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    three(monkeypatch)
    launch = SimulatedDriver.driver_call

    def faulting(self: SimulatedDriver, name: str, *arguments: Any) -> None:
        if name == "cuLaunchKernelEx" and "atom.relaxed" in self.text_of(arguments[1]):
            raise DriverError("cuLaunchKernelEx failed with CUDA error 700")
        launch(self, name, *arguments)

    monkeypatch.setattr(SimulatedDriver, "driver_call", faulting)
    measured = measuring(monkeypatch)
    fitted = calibrate.calibrate(processes(), deadline_s=60).fitted
    assert fitted.missing["atomic"] == "benchmark atomic: cuLaunchKernelEx failed with CUDA error 700"
    assert set(measured) == {"shared.latency", "mbarrier.round"}


def test_a_benchmark_that_ends_its_process_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    three(monkeypatch)
    measured = measuring(monkeypatch)
    fitted = calibrate.calibrate(processes(ending="atomic"), deadline_s=60).fitted
    assert fitted.missing["atomic"] == "benchmark atomic: its process failed: exit status 1; Timeout (0:00:40)!"
    assert set(measured) == {"shared.latency", "mbarrier.round"}


def test_benchmarks_that_all_end_their_processes_are_not_tried_for_ever() -> None:
    tried = list[str]()
    gpu = next(line for line in calibration.lines() if isinstance(line, Gpu))

    def run(program: PythonProgram, on_output: OnOutput) -> int:
        tried.extend(program.arguments)
        return printed([State(when="before"), gpu, Begun(number=int(program.arguments[0]))], status=1)(
            program, on_output
        )

    with pytest.raises(CalibrationError, match=r"nothing was measured: benchmark tma.rate.\d: its process failed"):
        calibrate.calibrate(run, deadline_s=60)
    assert tried == [str(number) for number in range(len(RUN))]


@pytest.mark.parametrize("number", [len(RUN), 0])
def test_a_process_that_begins_what_was_not_asked_for_is_an_error(number: int) -> None:
    gpu = next(line for line in calibration.lines() if isinstance(line, Gpu))
    with pytest.raises(CalibrationError, match=f"begins benchmark {number}, which was not asked for"):
        calibrate.calibrate(printed([gpu, Begun(number=number)], status=1), deadline_s=60)


@pytest.mark.parametrize(("late", "refused"), [(2, False), (3, True)])
def test_launches_that_the_host_enqueues_too_late_are_repeated(
    late: int, refused: bool, driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "plan", lambda _: [benchmarks(ARCH)["launch.plain"]])
    driver.late = late
    lines = list(calibration.lines())
    assert [line.reason for line in lines if isinstance(line, Refusal)] == [
        "benchmark launch.plain: the host needs more than 64 ms for 2 launches"
    ] * refused
    readings = [line for line in lines if isinstance(line, Reading)]
    assert [reading.operations for reading in readings] == [(2,), (3,)][refused:]


def test_a_gpu_that_cannot_be_used_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> SimulatedDriver:
        raise DriverError("cuInit failed with CUDA error 100")

    monkeypatch.setattr(calibration, "CudaMemory", none)
    with pytest.raises(CalibrationError, match="the GPU cannot be used: DriverError: cuInit failed"):
        calibrate.calibrate(printed(list(calibration.lines())), deadline_s=60)


def test_readings_that_counted_other_operations_are_not_used(lines: list[Line]) -> None:
    wrong = [
        line.model_copy(update={"operations": (1,)})
        if isinstance(line, Reading) and line.benchmark == "l2.latency"
        else line
        for line in lines
    ]
    fitted = calibrate.calibrate(printed(wrong), deadline_s=60).fitted
    assert "load_latency" not in fitted.constants
    assert fitted.missing["l2.latency"] == "benchmark l2.latency counted 1 operations, and 2 were asked for"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (GpuState(2, 0, (), None), "2 other processes"),
        (GpuState(0, 60, (), None), "busy"),
        (GpuState(0, 0, ("thermal slowdown by hardware",), None), "throttled"),
    ],
)
def test_a_gpu_in_use_is_refused_before_it_is_touched(
    state: GpuState, message: str, driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "gpu_state", lambda _: state)
    before = list(calibration.lines())
    assert driver.launched == 0
    with pytest.raises(CalibrationError, match=message):
        calibrate.calibrate(printed(before), deadline_s=60)


def test_a_gpu_that_was_throttled_meanwhile_is_refused(lines: list[Line]) -> None:
    lines[-1] = State(when="after", throttled=("power brake",))
    with pytest.raises(CalibrationError, match="power brake"):
        calibrate.calibrate(printed(lines), deadline_s=60)


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ([], 1, "reported no GPU: exit status 1; what it said last"),
        ([State(when="before")], 124, "stopped after 60 s"),
        ([Refusal(reason="there is no GPU")], 0, "there is no GPU"),
        ([State(when="before")], 0, "reported no GPU"),
    ],
)
def test_a_process_without_a_gpu_is_an_error_with_its_reason(lines: list[Line], status: int, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        calibrate.calibrate(printed(lines, status=status), deadline_s=60)


@pytest.mark.parametrize("line", ['{"kind": "gpu"}', '{"kind": "reading", "benchmark": 3}', "[]", "{", '{"kind": "x"}'])
def test_a_line_that_is_not_valid_is_an_error(line: str) -> None:
    def run(_program: PythonProgram, on_output: OnOutput) -> int:
        on_output("stdout", f"{MARKER}{line}\n".encode())
        return 0

    with pytest.raises(CalibrationError, match="the calibration's report"):
        calibrate.calibrate(run, deadline_s=60)


def test_a_process_that_writes_without_end_is_stopped() -> None:
    def run(_program: PythonProgram, on_output: OnOutput) -> int:
        while True:
            on_output("stdout", bytes(8 << 20))

    with pytest.raises(CalibrationError, match="more than 32 MiB"):
        calibrate.calibrate(run, deadline_s=60)


def test_gaps_lie_between_ctas_of_one_sm() -> None:
    #                    start, end, times, operations, SM
    records = np.array([[100, 150, 0, 0, 1, 0, 0, 0], [900, 950, 0, 0, 1, 1, 0, 0], [170, 200, 0, 0, 1, 0, 0, 0],
                        [1000, 1010, 0, 0, 1, 1, 0, 0], [230, 240, 0, 0, 1, 0, 0, 0]], np.int64)  # fmt: skip
    assert calibration.gaps(records).tolist() == [20, 30, 50]
