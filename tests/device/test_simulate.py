"""The job action ``simulate``: launches, counters, writers, printed text; and that only a simulator does it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.device import result_cache
from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.result_cache import ResultKeys, SimulationCache, VerdictCache
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from tests.waiting import LONGEST_S, far_enough

from .simulated_jobs import KERNEL, cases, spec_of

pytest.importorskip("cutlass")

HONEST = Path(__file__).parent / "kernels" / "honest.py"
SHIPPED = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "sm100.py"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[SimulationResult]:
    folder = tmp_path_factory.mktemp("simulate")
    spec, base = spec_of(folder, KERNEL)
    return simulate(
        SimDevice(),
        spec,
        cases("7x128x256", "9x128x256"),
        folder=folder / "jobs",
        base=base,
        outputs=True,
        trace_ctas=1,
    )


def test_several_jobs_at_once_share_the_cases(tmp_path: Path) -> None:
    """Each of three jobs gets its share, all run at the same time, and the results have the order of the cases."""
    met = threading.Barrier(3)

    class Meeting(SimDevice):
        def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:  # noqa: ARG002
            met.wait(LONGEST_S)
            names = " ".join(case.problem.name for case in job.cases)
            return Result(job=job.id, status="failed", findings=(Finding(kind="names", message=names),))

    spec, base = spec_of(tmp_path, KERNEL)
    wanted = cases(*(f"{m}x128x256" for m in range(1, 8)))
    results = simulate(Meeting(), spec, wanted, folder=tmp_path / "jobs", base=base, jobs=3)
    assert [result.case for result in results] == list(wanted)
    assert all(result.case.problem.name in result.findings[0].message.split() for result in results)
    assert len({result.findings[0].message for result in results}) == 3


@pytest.mark.slow
def test_where_a_launch_is_that_does_not_end(tmp_path: Path) -> None:
    """The worker ends the job itself, shortly before its deadline, and names the statement that its warps execute."""
    pytest.importorskip("triton")
    source = """import triton
import triton.language as tl

@triton.jit
def count(c, step):
    n = 0
    while n < 5:
        tl.atomic_add(c, 1)
        n += step

def custom_kernel(data):
    abc, _, _, sizes = data
    count[(2,)](abc[0][2].view(-1).view(dtype=__import__("torch").int32), int(sizes[0][0] == 7))
    return [c for _, _, c in abc]
"""
    spec, base = spec_of(tmp_path, source)

    def run(shape: str, deadline_s: float) -> SimulationResult:
        folder = tmp_path / "jobs"
        return simulate(SimDevice(), spec, cases(shape), folder=folder, base=base, deadline_s=deadline_s)[0]

    done = far_enough(lambda deadline_s: run("9x128x256", deadline_s), lambda done: done.findings[0].line, first_s=12)
    assert done.status == "timeout"
    finding = done.findings[0]
    assert (finding.kind, finding.file) == ("timeout", str(base / "kernel.py"))
    assert finding.text in ("while n < 5:", "tl.atomic_add(c, 1)", "n += step")
    assert "count had not ended when its time was over" in finding.message
    assert "raise the timeout" in finding.message
    assert run("7x128x256", LONGEST_S).status == "failed"  # C is not zero


class TestWhatIsTold:
    def test_each_case_once_in_order(self, done: list[SimulationResult]) -> None:
        assert [one.call.call for one in done if one.call] == [0, 1]
        assert [one.case.problem.name for one in done] == ["7x128x256", "9x128x256"]

    def test_launches(self, done: list[SimulationResult]) -> None:
        call = done[1].call
        assert call is not None
        talk, clear = call.launches
        assert (call.model, call.sms) == ("NVIDIA B200", 148)
        assert (talk.grid, talk.block, talk.cluster) == ((1, 1, 1), (32, 1, 1), (1, 1, 1))
        assert (clear.grid, clear.writers, talk.writers) == ((9, 1, 1), 9, None)
        assert clear.counters["ctas"] == 9
        assert clear.counters["global.store.bytes"] == 9 * 128 * 2
        assert clear.counters["instructions"] == sum(clear.counters[f"instructions.warp{warp}"] for warp in range(4))

    def test_text(self, done: list[SimulationResult]) -> None:
        assert [one.call.printed for one in done if one.call] == ["number 7\n", "number 9\n"]
        assert "host: m is 7" in done[0].stdout

    def test_who_wrote_what(self, done: list[SimulationResult]) -> None:
        call = done[0].call
        assert call is not None
        (written,) = call.outputs
        assert written.model_dump() == {
            "group": 0, "elements": 896, "never": 0, "host": 0, "by_two": 0, "twice": 0, "ctas": 7, "tiles": 7,
            "written": (), "size": (0, 0),
        }  # fmt: skip

    def test_outputs_are_judged(self, done: list[SimulationResult]) -> None:
        assert {one.status for one in done} == {"failed"}
        assert "mismatch" in {finding.kind for one in done for finding in one.errors}

    def test_the_timeline(self, done: list[SimulationResult]) -> None:
        assert done[0].trace is not None
        data = json.loads(done[0].trace)
        assert [launch["grid"] for launch in data["otherData"]["launches"]] == [[1, 1, 1], [7, 1, 1]]


@pytest.mark.slow
def test_a_process_that_ends_spoils_no_other_case(tmp_path: Path) -> None:
    spec, base = spec_of(tmp_path, KERNEL)
    shapes = cases("13x128x256", "5x128x256", "9x128x256")
    done = simulate(SimDevice(), spec, shapes, folder=tmp_path / "jobs", base=base, launch_only=(2,), sms=12)
    assert [one.status for one in done] == ["crashed", "passed", "passed"]
    assert done[0].call is None
    executed, launched = (one.call for one in done[1:])
    assert executed is not None
    assert launched is not None
    assert (executed.sms, executed.launches[1].grid, executed.launches[1].counters["ctas"]) == (12, (5, 1, 1), 5)
    assert (launched.launches[1].grid, launched.launches[1].counters) == ((9, 1, 1), {}), "recorded, not executed"


@pytest.mark.slow
def test_a_search_for_races_records_what_a_simulation_does(tmp_path: Path) -> None:
    """So does one in which a launch is only recorded, whose outputs nothing has written."""
    spec, base = KernelSpec.from_files(SHIPPED, arch="sm_100a")
    shapes = cases("128x128x1024,72x256x256", "256x128x256")
    plain, raced = (
        simulate(
            SimDevice(), spec, shapes, folder=tmp_path / "jobs", base=base, launch_only=(1,), ring_ctas=256,
            races=races, outputs=races, later_calls=races,
        )
        for races in (False, True)
    )  # fmt: skip
    assert [(one.status, one.findings) for one in raced] == [("passed", ())] * 2
    assert [one.call for one in raced] == [one.call for one in plain]
    assert plain[0].call is not None
    assert plain[0].call.launches[-1].rings


def test_a_device_that_is_none_says_so(tmp_path: Path) -> None:
    spec, base = KernelSpec.from_files(HONEST, arch="sm_100a")
    device = LocalDevice(probe_folder=tmp_path, backend="host")
    (done,) = simulate(device, spec, cases("5x128x256"), folder=tmp_path / "jobs", base=base)
    assert done.status == "unavailable"
    assert "recorded by the simulator only" in str(done.findings[0])


def test_a_kernel_that_launches_nothing_did_nothing(tmp_path: Path) -> None:
    spec, base = KernelSpec.from_files(HONEST, arch="sm_100a")
    (done,) = simulate(SimDevice(), spec, cases("5x128x256"), folder=tmp_path / "jobs", base=base, outputs=True)
    assert done.status == "passed", done.findings
    assert done.call is not None
    assert done.call.launches == ()


class TestKept:
    def test_what_passed_is_known(self, tmp_path: Path, done: list[SimulationResult]) -> None:
        spec, _ = spec_of(tmp_path, KERNEL)
        kept = SimulationCache(SealedFiles(tmp_path / "cache"))
        good = SimulationResult(done[0].case, "passed", (), done[0].call)
        assert kept.get(spec, good.case) is None
        kept.add(spec, good)
        assert kept.get(spec, good.case) == good
        assert kept.get(spec, done[1].case) is None
        other, _ = spec_of(tmp_path, KERNEL + "\n# changed")
        assert kept.get(other, good.case) is None

    def test_what_failed_is_not(self, tmp_path: Path, done: list[SimulationResult]) -> None:
        spec, _ = spec_of(tmp_path, KERNEL)
        kept = SimulationCache(SealedFiles(tmp_path / "cache"))
        kept.add(spec, done[0])
        assert kept.get(spec, done[0].case) is None

    def test_a_damaged_entry_is_none(self, tmp_path: Path, done: list[SimulationResult]) -> None:
        spec, _ = spec_of(tmp_path, KERNEL)
        kept = SimulationCache(SealedFiles(tmp_path / "cache"))
        kept.add(spec, SimulationResult(done[0].case, "passed", (), done[0].call))
        (file,) = (tmp_path / "cache").rglob("*.json")
        file.write_text("{")
        assert kept.get(spec, done[0].case) is None

    def test_stores_that_share_their_names_read_the_code_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec, _ = spec_of(tmp_path, KERNEL)
        (case,) = cases("5x128x256")
        code = ["before"]
        monkeypatch.setattr(result_cache, "code_hash", lambda _parts: code[0])
        keys = ResultKeys()
        one, two = SealedFiles(tmp_path / "one"), SealedFiles(tmp_path / "two")
        first, second = VerdictCache(one, keys=keys), VerdictCache(two, keys=keys)
        first.add(spec, case)
        code[0] = "after"
        second.add(spec, case)
        assert first.has(spec, case)
        assert second.has(spec, case)
        # Names of their own see that the code changed.
        assert not VerdictCache(SealedFiles(tmp_path / "one")).has(spec, case)
        assert not VerdictCache(SealedFiles(tmp_path / "two")).has(spec, case)
