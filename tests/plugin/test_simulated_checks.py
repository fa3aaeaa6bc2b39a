"""``coverage``, ``cost`` and ``--nvfp4-trace``: small kernels that fill C, with one line changed, in the simulator."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from pytest_nvfp4 import isolation
from pytest_nvfp4.plugin.checks.coverage import coverage_line
from tests.bench.cost_samples import call

from .conftest import Project, Ran
from .shipped_kernel import SHIPPED
from .simulated import FILL, PROBLEM, outcomes, written

pytest.importorskip("torch")

NEVER = FILL.replace("cutlass.Int32(5)", "cutlass.Int32(4)")
TWO = FILL.replace("tile = cta", "tile = cta % 5").replace("cutlass.Int32(5)", "cutlass.Int32(6)")
TWICE = FILL.replace("range_constexpr(ROWS)", "range(ROWS + 1, unroll=1)").replace(
    "+ row, lane]", "+ row % ROWS, lane]"
)
IDLE = FILL.replace("    for row", "    if tile < 5:\n     for row").replace("cutlass.Int32(5)", "cutlass.Int32(7)")
READS = FILL.replace("cutlass.Float16(1.0)", "c[tile * ROWS + row, lane ^ 1]")
"""FILL does less: it reads nothing."""
OUTSIDE = FILL.replace("tile = cta", "tile = cta + 1")
SIMULATED = ("k.py", f"--nvfp4-problem={PROBLEM}", "-k", "coverage or cost", "--nvfp4-device=sim")


def recorded(project: Project, source: str) -> Project:
    written(project, source)
    ran = project.run(*SIMULATED, "--snapshot-update")
    assert ran.code == 0, ran.text
    return project


def messages(ran: Ran, check: str) -> str:
    return ran.failures()[f"{check}[{PROBLEM}]"]


class TestCoverage:
    @pytest.mark.slow
    def test_every_element_once(self, project: Project, workers: tuple[str, ...]) -> None:
        ran = written(project, FILL).run(*SIMULATED, "-k", "coverage", *workers)
        outcomes(ran, passed=1)
        line = ran.section(r"nvfp4: coverage \(simulated\)")
        assert "5 CTAs, 1 wave on 148 SMs" in line
        assert "every CTA wrote output; 5 tiles of C, 5120 elements" in line

    @pytest.mark.slow
    def test_what_nobody_wrote(self, project: Project) -> None:
        ran = written(project, NEVER).run(*SIMULATED, "-k", "coverage")
        said = messages(ran, "coverage")
        assert "never-written: C of group 0: 1024 of 5120 elements were never written" in said
        assert "the first: C of group 0, row 32, column 0" in said
        assert "4 CTAs" in said
        assert f"failed on {PROBLEM}, simulated" in said
        assert not said.startswith("failed"), "what is wrong, first: the short summary has a line"

    @pytest.mark.slow
    def test_what_two_ctas_wrote(self, project: Project) -> None:
        ran = written(project, TWO).run(*SIMULATED, "-k", "coverage")
        said = messages(ran, "coverage")
        assert "written-by-two: C of group 0: 1024 elements were written by two CTAs; CTAs 0 and 5" in said
        assert re.search(r"CTAs 0 and 5: .* \(\w+\.py:\d+\)$", said, re.MULTILINE)

    @pytest.mark.slow
    def test_what_one_cta_wrote_twice_is_a_warning(self, project: Project) -> None:
        ran = written(project, TWICE).run(*SIMULATED, "-k", "coverage")
        assert ran.code == 0, ran.text
        assert "KernelWarning" in ran.text
        assert "written twice by one CTA" in ran.text
        assert "640 of them written more than once by one CTA" in ran.section(r"nvfp4: coverage")

    @pytest.mark.slow
    def test_an_output_whose_writers_are_not_recorded_is_skipped(self, project: Project) -> None:
        part = FILL.replace(
            "    start =",
            "    whole = torch.empty((41, 128, 1), dtype=abc[0][2].dtype, device=abc[0][2].device)\n    start =",
        )
        part = part.replace("abc[0][2].data_ptr()", "whole[1:].data_ptr()").replace(
            "[c for _, _, c in abc]", "[whole[1:]]"
        )
        ran = written(project, "import torch\n" + part).run(*SIMULATED, "-k", "coverage", "-rs")
        outcomes(ran, skipped=1)
        assert "which CTA wrote the outputs is not recorded: the kernel returned a part of another tensor" in ran.text

    @pytest.mark.slow
    def test_ctas_without_work_are_counted(self, project: Project) -> None:
        ran = written(project, IDLE).run(*SIMULATED, "-k", "coverage")
        assert "7 CTAs, 1 wave on 148 SMs" in ran.section("nvfp4: coverage")
        assert "2 CTAs wrote no output" in ran.section("nvfp4: coverage")

    @pytest.mark.slow
    def test_a_kernel_that_does_not_end_well_fails_once(self, project: Project) -> None:
        ran = written(project, OUTSIDE).run(*SIMULATED)
        outcomes(ran, failed=1, skipped=1)
        assert "out-of-bounds" in messages(ran, "coverage")
        assert "k.py:15: simulated" in messages(ran, "coverage")

    def test_no_such_checks_without_the_simulator(self, project: Project) -> None:
        ran = written(project, FILL).run("k.py", f"--nvfp4-problem={PROBLEM}", "--co", "-q")
        assert "coverage" not in ran.text
        assert "cost" not in ran.text

    def test_a_launch_that_wrote_nothing_is_not_called_idle(self) -> None:
        assert "1 launch that wrote no output" in coverage_line(call(writers=(None, 4)))
        assert coverage_line(call(writers=(None,))) == "no launch of 1 wrote an output"

    def test_outputs_of_the_host_and_those_that_are_not_recorded_are_counted(self) -> None:
        (output,) = call().outputs
        copied = call(writers=(None,)).model_copy(
            update={"outputs": (output.model_copy(update={"host": 5, "tiles": 0}),)}
        )
        assert "elements, 5 of them written by the host's copies or operators; 1 launch" in coverage_line(copied)
        assert "tile" not in coverage_line(copied)
        part = call().model_copy(update={"unrecorded": 1})
        assert "; 1 output not recorded (the kernel returned a part of another tensor, or one" in coverage_line(part)


class TestCost:
    @pytest.mark.slow
    def test_the_same_passes_and_is_not_simulated_again(self, project: Project, workers: tuple[str, ...]) -> None:
        recorded(project, FILL)
        text = project.snapshots()[f"k/cost[{PROBLEM}].txt"]
        assert text.startswith("# nvfp4-cost 1\n# kernel   k.py\n# problem  40x128x256\n")
        assert "# model    NVIDIA B200, 148 SMs" in text
        assert "launch.0.kernel  fill" in text
        assert "launch.0.global.store.bytes  10240\n" in text
        assert "launch.0.instructions.by.nothing  " in text
        ran = project.run(*SIMULATED, *workers)
        assert ran.code == 0, ran.text
        assert "known to pass in the simulator" in ran.text or workers
        fresh = project.run(*SIMULATED, "--nvfp4-fresh")
        assert fresh.code == 0, fresh.text
        assert "known to pass" not in fresh.text

    @pytest.mark.slow
    def test_the_counters_are_in_junit_and_in_the_files_of_pytest_benchmark(
        self, project: Project, workers: tuple[str, ...]
    ) -> None:
        recorded(project, FILL)
        stored = ("--benchmark-json=out.json", "--benchmark-autosave", "--benchmark-storage=kept", "--junitxml=j.xml")
        written(project, READS)
        plugins = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
        ran = Ran(project.pytester.runpytest_inprocess(*plugins, *SIMULATED, *stored, *workers))
        outcomes(ran, passed=1, failed=1)
        (kept,) = (project.path / "kept").glob("counted/0001_*.json")
        for file in (kept, project.path / "out.json"):
            data = json.loads(file.read_text())
            assert data["benchmarks"] == [], "a counter is no time"
            assert data["machine_info"]["node"] == "counted"
            (found,) = data["nvfp4_costs"].items()
            assert found[0] == f"k.py::cost[{PROBLEM}]"
            assert found[1]["is_a_time"] is False
            assert found[1]["model"] == "NVIDIA B200, 148 SMs"
            assert found[1]["counters"]["launch.0.global.load.bytes"] == 10240, "also of a check that fails"
            assert found[1]["counters"]["flops.padding"] == 0.0
        (case,) = ElementTree.parse(project.path / "j.xml").getroot().iterfind(".//testcase[failure]")
        properties = {item.get("name"): item.get("value") for item in case.iter("property")}
        assert properties["nvfp4_cost.launch.0.global.load.bytes"] == "10240"
        assert properties["nvfp4_cost_of.problem"] == PROBLEM

    @pytest.mark.slow
    def test_more_of_something_fails_and_says_so(self, project: Project) -> None:
        recorded(project, FILL)
        ran = written(project, READS).run(*SIMULATED, "--nvfp4-md=report.md", "--nvfp4-html=report.html")
        outcomes(ran, passed=1, failed=1)
        for report in ("report.md", "report.html"):
            assert "launch.0.global.load.bytes" in (project.path / report).read_text()
        said = messages(ran, "cost")
        assert f"costs of k.py on {PROBLEM} changed for the worse against snapshots/k/cost[{PROBLEM}].txt:" in said
        assert "launch.0.global.load.bytes absent -> 10240 (+10240, from zero), tolerance 0 %" in said
        assert "none is a time" in said
        assert "pytest k.py --nvfp4-problem=40x128x256 --snapshot-update" in said

    @pytest.mark.slow
    def test_less_is_reported_until_it_is_recorded(self, project: Project) -> None:
        recorded(project, READS)
        ran = written(project, FILL).run(*SIMULATED)
        outcomes(ran, passed=2)
        shown = ran.section("nvfp4: changes below the gate")
        assert "launch.0.global.load.bytes 10240 -> absent" in shown
        assert "--snapshot-update" in shown
        assert project.run(*SIMULATED, "--snapshot-update").code == 0
        assert "global.load" not in project.snapshots()[f"k/cost[{PROBLEM}].txt"]

    def test_a_tolerance_lets_it_pass(self, project: Project) -> None:
        recorded(project, FILL)
        project.settings('[tool.pytest_nvfp4]\ncost-tolerance = { "global.load.*" = "any", "instructions*" = "300%" }')
        ran = written(project, READS).run(*SIMULATED)
        assert ran.code == 0, ran.text
        assert "launch.0.global.load.bytes" in ran.section("nvfp4: changes below the gate")

    @pytest.mark.slow
    def test_exchanged_roles_and_one_more_barrier_are_reported(self, project: Project) -> None:
        chosen = ("k.py", "--nvfp4-problem=gpumode-0", "--nvfp4-device=sim", "-k", "cost")
        before, after = "MMA_WARP, EPILOGUE_WARPS = 5, 4, 4", "MMA_WARP, EPILOGUE_WARPS = 4, 5, 4"
        branch = "    if warp == MMA_WARP:\n"
        shipped = SHIPPED.read_text()
        project.path.joinpath("k.py").write_text(shipped)
        assert project.run(*chosen, "--snapshot-update").code == 0
        changed = shipped.replace(before, after).replace(branch, f"    cute.arch.sync_threads()\n{branch}", 1)
        project.path.joinpath("k.py").write_text(changed)
        ran = project.run(*chosen)
        assert ran.code == 0, ran.text
        section = ran.section("nvfp4: changes below the gate")
        assert "launch.0.barrier.cta.arrivals 36 -> 54" in section
        assert "launch.0.instructions.by.load" in section

    def test_a_first_one_is_asked_for(self, project: Project) -> None:
        ran = written(project, FILL).run(*SIMULATED)
        assert "there is no snapshot of the costs yet" in messages(ran, "cost")

    def test_a_damaged_one_is_left_alone(self, project: Project) -> None:
        recorded(project, FILL)
        file = project.path / f"snapshots/k/cost[{PROBLEM}].txt"
        file.write_text(file.read_text().partition("# end")[0])
        ran = project.run(*SIMULATED)
        assert "is damaged: the file ends without its '# end' line" in messages(ran, "cost")

    def test_a_run_without_the_simulator_leaves_its_snapshots_alone(self, project: Project) -> None:
        project.settings(
            f'[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nproblems = ["{PROBLEM}"]\nfitted-problem = false'
        )
        written(project, FILL)
        right = ("-k", "not verify and not races")  # the values of C are wrong
        assert project.run("k.py", "--nvfp4-device=sim", *right, "--snapshot-update").code == 0
        assert f"k/cost[{PROBLEM}].txt" in project.snapshots()
        ran = project.run("k.py", "--snapshot-update")
        assert ran.code == 0, ran.text
        assert "unused" not in ran.text
        assert f"k/cost[{PROBLEM}].txt" in project.snapshots()

    @pytest.mark.slow
    def test_the_problems_that_are_simulated_can_be_named(self, project: Project) -> None:
        project.settings(
            f'[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nproblems = ["{PROBLEM}"]\nsimulate-problems = ["40x128x512"]'
        )
        ran = written(project, FILL).run("k.py", "--nvfp4-device=sim", "-k", "coverage")
        assert "k.py::coverage[40x128x512]: 5 CTAs" in ran.text

    @pytest.mark.parametrize("table", ['"5%"', '{ "instructions*" = 5 }', '{ x = "-1%" }', '{ x = "much" }'])
    def test_a_tolerance_that_is_none(self, project: Project, table: str) -> None:
        project.settings(f"[tool.pytest_nvfp4]\ncost-tolerance = {table}")
        assert "cost-tolerance" in project.run("k.py").errors


class TestTrace:
    @pytest.mark.slow
    def test_each_check_writes_its_own(self, project: Project, workers: tuple[str, ...]) -> None:
        recorded(project, FILL)
        folder = project.path / "traces"
        ran = project.run(*SIMULATED, f"--nvfp4-trace={folder}", "--nvfp4-trace-ctas=2", *workers)
        assert ran.code == 0, ran.text
        assert "known to pass" not in ran.text
        for check in ("coverage", "cost"):
            data = json.loads((folder / "k" / f"{check}[{PROBLEM}].json").read_text())
            shown = {event["pid"] for event in data["traceEvents"]}
            assert len(shown) == 2
            assert "not time" in data["otherData"]["unit"]

    def test_a_file_is_no_folder(self, project: Project) -> None:
        file = project.file("taken", "")
        assert "name a folder" in project.run("k.py", f"--nvfp4-trace={file}").errors


SHAPE = "130x256x512"
"""Four tiles."""


@pytest.mark.slow
class TestShippedKernel:
    """The shipped kernel with one thing changed must fail the check that is about it, with the right words."""

    def run(self, project: Project, *changes: tuple[str, str]) -> Ran:
        source = SHIPPED.read_text()
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        project.file("k.py", source)
        options = ("k.py", f"--nvfp4-problem={SHAPE}", "-k", "coverage or cost", "--nvfp4-device=sim")
        return project.run(*options, *(() if changes else ("--snapshot-update",)))

    def test_as_it_is(self, project: Project) -> None:
        ran = self.run(project)
        assert ran.code == 0, ran.text
        assert "4 CTAs, 1 wave on 148 SMs (2 an SM), every CTA wrote output; 4 tiles of C" in ran.text

    def test_an_offset_overflows(self, project: Project) -> None:
        source = SHIPPED.read_text()
        old = "cute.assume(Int64(n), divby=TILE_N)"
        assert source.count(old) == 1
        project.file("k.py", source.replace(old, "cute.assume(n, divby=TILE_N)"))
        said = project.run("k.py", "-k", "verify and own", "--nvfp4-device=sim").failures()["verify[own-shapes]"]
        assert "an offset in C is computed in 32 bits and overflows: from 37505x57344x256 on" in said
        assert "cute.autovec_copy(tDrC, tDgC)" in said

    def test_a_tile_is_missed(self, project: Project) -> None:
        ran = self.run(project, ("grid=(num_tiles, 1, 1)", "grid=(num_tiles - 1, 1, 1)"))
        assert "never-written: C of group 0: 256 of 33280 elements" in ran.failures()[f"coverage[{SHAPE}]"]

    def test_a_tile_is_written_twice(self, project: Project) -> None:
        ran = self.run(project, ("(TILE_M, TILE_N), (x, y))\n        tCgC", "(TILE_M, TILE_N), (x, 0))\n        tCgC"))
        said = ran.failures()[f"coverage[{SHAPE}]"]
        assert "written-by-two: C of group 0: 16640 elements" in said
        assert "never-written" in said

    def test_a_store_is_split(self, project: Project) -> None:
        assert self.run(project).code == 0
        ran = self.run(project, ("cute.autovec_copy(tDrC, tDgC)", "cute.basic_copy(tDrC, tDgC)"))
        said = ran.failures()[f"cost[{SHAPE}]"]
        assert "launch.0.global.store.requests" in said
        assert "launch.0.global.store.sectors " in said
        assert "global.store.bytes" not in said

    def test_more_bytes_are_moved(self, project: Project) -> None:
        assert self.run(project).code == 0
        copy = "            cute.copy(tma_atom_a, tAgA[None, k_tile], tAsA[None, stage], tma_bar_ptr=mbar"
        ran = self.run(
            project,
            (copy, f"            for _ in cutlass.range_constexpr(2):\n    {copy}"),
            (
                "mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES)",
                "mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES + 16384)",
            ),
        )
        said = ran.failures()[f"cost[{SHAPE}]"]
        assert "launch.0.tma.load.requests 32 -> 40 (+8, +25.0 %), tolerance 0 %" in said
        assert "launch.0.tma.load.bytes " in said
        assert "unique_bytes" not in said


@pytest.mark.slow
def test_a_fresh_run_uses_nothing_of_an_earlier_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts as many workers as the first run; an unchanged run starts none, and a damaged entry costs its own."""
    started: list[str] = []
    run = isolation.run

    def counted(command: isolation.Worker, **options: object) -> isolation.Outcome:
        started.append(command.module)
        return run(command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(isolation, "run", counted)
    project.file("k.py", FILL)
    project.settings(f'[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nproblems = ["{PROBLEM}"]\nfitted-problem = false')
    args = ("k.py", "--nvfp4-device=sim", "-k", "compile or coverage", f"--nvfp4-cache-dir={project.path}/cache")

    def workers(*more: str) -> list[str]:
        started.clear()
        ran = project.run(*args, "--nvfp4-sandbox=auto", *more)
        outcomes(ran, passed=2)
        texts.append(ran.text)
        return [module for module in started if module.endswith("__main__")]

    texts: list[str] = []
    first = workers()
    assert len(first) == 2
    assert workers() == []
    assert workers("--nvfp4-fresh") == first
    assert workers() == []
    (trace,) = (project.path / "cache" / "sealed" / "traces").glob("*/*/trace.json")
    trace.write_bytes(trace.read_bytes()[:-1])
    assert workers() == first[:1]
    assert "nvfp4: cache 'traces': " in texts[-1]
    assert "has a seal that does not fit its content, key and cache; removed, and computed again" in texts[-1]
    (result,) = (project.path / "cache" / "sealed" / "results" / "simulations").glob("*/*.json")
    result.write_bytes(result.read_bytes().replace(b'"launches"', b'"LAUNCHES"'))
    assert workers() == first[1:]
    assert "nvfp4: cache 'simulations': " in texts[-1]
