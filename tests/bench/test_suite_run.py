"""Runs of suites on a device that is not there: what is timed, skipped and unavailable, and what is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import get_machine_id, load_storage

from pytest_nvfp4.bench import suite_run
from pytest_nvfp4.bench.baseline import read_baseline
from pytest_nvfp4.bench.operators import OperatorTask, OperatorTimes
from pytest_nvfp4.bench.stored import store
from pytest_nvfp4.bench.suite import Suite, SuiteError, load_suite, parse_suite
from pytest_nvfp4.bench.suite_run import Bench, CaseResult, contract_kernels, result_json
from pytest_nvfp4.bench.twice import TimedProblem
from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.result import DeviceInfo, Measurement, Result
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.settings import load

ROOT = Path(__file__).parents[2]
H200 = DeviceInfo(name="NVIDIA H200", capability=(9, 0), driver="580", sms=132, dsl="4.8.1")


US = (20.0, 21.0, 22.0)


class Gpu:
    """A device that runs code for Hopper, and nothing."""

    name = "local"

    def describe(self) -> DeviceInfo:
        """The device."""
        return H200

    def unsupported(self, arch: str) -> str | None:
        """Why code does not run."""
        return None if arch == "sm_90a" else f"the kernel is for {arch}"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The place where suites run: problems take 20 us, and operators 2 us."""

    def measure_twice(device: Any, kernel: Any, problems: Sequence[Problem], **_: Any) -> tuple[Result, Any]:
        del device, kernel
        timed = []
        for index, problem in enumerate(problems):
            case = JobCase(problem=ProblemSpec.of(problem), family="gpumode")
            wrong = problem.name == "gpumode-bench-1"
            found = [Finding("mismatch", "an element is wrong")] if wrong else []
            verdict = CaseVerdict(case=case, status="failed" if wrong else "passed", findings=found)
            times = Measurement(
                case=index,
                device_us=(20.0, 21.0, 22.0),
                host_us=(),
                call_us=1,
                late_rounds=0,
                method="m",
                l2="cold",
                sets=3,
            )
            timed.append(TimedProblem(problem, verdict, None if wrong else times))
        return Result(job="j", status="passed", device=H200), timed

    def time_operator(_: Any, task: OperatorTask, kernel: bytes, **__: Any) -> OperatorTimes:
        assert b"def " in kernel
        if task.call == "softmax":
            return OperatorTimes(status="failed", because="one element is wrong", device=H200)
        moved = 1 << 40 if task.call == "transpose" and task.rows == 7 else 4 << 20
        return OperatorTimes(
            status="passed",
            device=H200,
            device_us=(2.0,) * 9 + (4.0,) * task.rounds,
            bytes=moved,
            clocks_mhz=(300, 1980),
        )

    monkeypatch.setattr(suite_run, "measure_twice", measure_twice)
    monkeypatch.setattr(suite_run, "time_operator", time_operator)
    return Bench(Gpu(), lambda *_: 0, tmp_path, load(ROOT), 3, 60)


def by_name(results: Sequence[CaseResult]) -> dict[str, CaseResult]:
    """Results by the end of their names."""
    return {one.nodeid.rpartition("/")[2] + " " + one.kernel.split("/")[1]: one for one in results}


def test_smoke(bench: Bench) -> None:
    suite = load_suite("smoke")
    results = list(bench.cases(suite, contract_kernels(bench.settings)))
    status = {one.nodeid.partition("kernels/")[2]: one.status for one in results}
    assert status == {
        "copy_transpose/sm90.py::transpose[float16-1024x1024]": "passed",
        "reduce_sum/sm90.py::row_sums[float16-1024x1024]": "passed",
        "softmax_online/sm90.py::softmax[float16-256x2048]": "failed",
        "nvfp4_group_gemm/sm100.py::benchmark[gpumode-bench-2]": "skipped",
        "nvfp4_group_gemm/sm90.py::benchmark[gpumode-bench-2]": "passed",
        "nvfp4_gemm/sm100.py::benchmark[gpumode-bench-2]": "skipped",
        "nvfp4_dual_gemm/sm100.py::benchmark[gpumode-bench-2]": "skipped",
        "nvfp4_gemv/sm100.py::benchmark[gpumode-bench-2]": "skipped",
    }
    copy = results[0].speed
    assert copy is not None
    assert (copy.p50_us, copy.p90_us, copy.gbps) == (2.0, 4.0, (4 << 20) / 2.0 / 1e3)
    assert copy.roofline_percent == pytest.approx(100 * (4 << 20) / 4.8e12 * 1e6 / 2.0)
    assert copy.clock_mhz == 1980
    gemm = next(one for one in results if "nvfp4_group_gemm/sm90.py" in one.nodeid).speed
    assert gemm is not None
    assert (gemm.p50_us, gemm.method, gemm.tflops > 0) == (21.0, "m", True)
    data = json.loads(json.dumps(result_json(suite, results)))
    assert data["device"]["dsl"] == "4.8.1"
    assert data["cases"][2]["because"] == "one element is wrong"
    assert data["cases"][2]["speed"] is None


def test_a_wrong_answer_has_no_times(bench: Bench) -> None:
    results = list(bench.cases(load_suite("gpumode"), [ROOT / "kernels/nvfp4_group_gemm/sm90.py"]))
    assert [one.status for one in results] == ["passed", "failed", "passed", "passed"]
    assert (results[1].speed, results[1].stored) == (None, None)
    assert "an element is wrong" in results[1].because


def test_times_below_the_memory_bandwidth_are_refused(bench: Bench, tmp_path: Path) -> None:
    text = '[[case]]\ncontract = "operator"\nkernel = "k.py"\ncall = "transpose"\nreference = "x"\nshapes = ["7x8"]\n'
    (tmp_path / "k.py").write_text("def transpose(x): ...\n")
    suite = parse_suite(text, name="s", source="s", file=tmp_path / "s.toml")
    own = Bench(bench.device, bench.run, tmp_path, load(tmp_path), 3, 60)
    (refused,) = own.cases(suite, [])
    assert refused.status == "skipped"  # it is for a B200 unless its settings say otherwise
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\narch = "sm_90a"\nentry = "k.py::transpose"\n'
    )
    own = Bench(bench.device, bench.run, tmp_path, load(tmp_path), 3, 60)
    (refused,) = own.cases(suite, [])
    assert (refused.status, refused.speed) == ("failed", None)
    assert "cannot be true" in refused.because


def test_what_cannot_be_timed_says_why(bench: Bench, tmp_path: Path) -> None:
    nowhere = Suite("s", load_suite("smoke").case, tmp_path / "s.toml")
    results = list(bench.cases(nowhere, [tmp_path / "k.py"]))
    assert {one.status for one in results} == {"unavailable"}
    assert all("no such file" in one.because for one in results)
    without = Bench(bench.device, None, tmp_path, bench.settings, 3, 60, "no programs there")
    assert next(iter(without.cases(load_suite("smoke"), []))).because == "no programs there"
    operator = [ROOT / "kernels/reduce_sum/sm90.py"]
    (entry, *_) = bench.cases(load_suite("gpumode"), operator)
    assert (entry.status, "entry" in entry.because) == ("skipped", True)
    with pytest.raises(SuiteError, match="give kernels as arguments"):
        list(bench.cases(load_suite("gpumode"), []))
    with pytest.raises(SuiteError, match="gpumode-99"):
        list(bench.cases(parse_suite('[[case]]\nproblems = ["gpumode-99"]\n', name="s", source="s"), operator))


def test_a_problem_that_a_contract_lacks_is_skipped(bench: Bench) -> None:
    suite = parse_suite('[[case]]\nproblems = ["gpumode-bench-3"]\n', name="s", source="s")
    group, gemm = (ROOT / "kernels" / name / "sm100.py" for name in ("nvfp4_group_gemm", "nvfp4_gemm"))
    found = {one.kernel: one.because for one in bench.cases(suite, [group, gemm])}
    assert found["kernels/nvfp4_gemm/sm100.py"] == "nvfp4_gemm has no problem gpumode-bench-3"
    assert found["kernels/nvfp4_group_gemm/sm100.py"] == "the kernel is for sm_100a"


def test_stored_rounds_are_a_baseline_of_the_check(bench: Bench, tmp_path: Path) -> None:
    results = list(bench.cases(load_suite("smoke"), contract_kernels(bench.settings)))
    stored = [one.stored for one in results if one.stored is not None]
    uri = f"file://{tmp_path}/storage"
    said = store(stored, device=H200, name="before", uri=uri)
    (file,) = (tmp_path / "storage" / "nvidia-h200").rglob("*.json")
    assert file.name == "0001_before.json"
    assert str(file) in said
    data = json.loads(file.read_text())
    nodeid = "kernels/nvfp4_group_gemm/sm90.py::benchmark[gpumode-bench-2]"
    (entry,) = [one for one in data["benchmarks"] if one["fullname"] == nodeid]
    baseline = read_baseline(entry, nodeid=nodeid, source=file.name)
    assert baseline.rounds_us == pytest.approx(US)
    assert baseline.provenance.device == H200
    assert data["machine_info"]["nvfp4"]["devices"][0]["name"] == "NVIDIA H200"
    assert store(stored, device=H200, name="after", uri=uri) != said
    storage = load_storage(f"{uri}/nvidia-h200", logger=None, default_machine_id=get_machine_id(), netrc=None)
    loaded = [one["fullname"] for one in storage.load_benchmarks("0002")]
    assert loaded == [one.nodeid for one in stored]
