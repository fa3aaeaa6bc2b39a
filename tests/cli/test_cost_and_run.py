"""``nvfp4 cost`` and ``nvfp4 run``: numbers, verdicts, words that claim no time, timelines, and wrong inputs."""

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_nvfp4.cli.cost import floor, floor_text
from pytest_nvfp4.problem import GPUMODE_BENCH, parse_shape
from tests.cli.helpers import ROOT
from tests.device.source.fill import fill as fill_ptx
from tests.sim.provenance.mistakes import MISTAKES

SHIPPED = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
SHAPE = "40x128x256"

FILL = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.kernel
def fill(c: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    if cta == 0:
        if lane == 0:
            cute.printf("hello from %d", cta)
    c[cta, lane] = cutlass.Float16(1.0)


@cute.jit
def go(start: cute.Pointer):
    fill(cute.make_tensor(start, cute.make_layout((40, 128), stride=(128, 1)))).launch(
        grid=(40, 1, 1), block=(128, 1, 1)
    )


def custom_kernel(data):
    go(make_ptr(cutlass.Float16, data[0][0][2].data_ptr(), cute.AddressSpace.gmem, assumed_align=16))
    return [c for _, _, c in data[0]]
"""


AND_THEN = """
def custom_kernel(data):
    filled(data)
    return compute(data)
"""
WAITS = "cute.arch.barrier(barrier_id=1, number_of_threads=160)"
"""More threads than there are."""


@pytest.fixture
def fill(tmp_path: Path) -> Path:
    path = tmp_path / "fill.py"
    path.write_text(FILL)
    return path


class TestCost:
    @pytest.mark.slow
    def test_in_words(self, cli, fill) -> None:
        shown = cli("cost", str(fill), "--problem", SHAPE)
        assert shown.code == 0, shown.err
        assert f"fill.py on {SHAPE} ({SHAPE})" in shown.out
        assert "simulated on a model of NVIDIA B200 with 148 SMs: counts of what one call does" in shown.out
        assert "launch 0 fill: grid 40x1x1, block 128x1x1, cluster 1x1x1" in shown.out
        assert "requests, 10.2 kB in " in shown.out
        assert "us if the published peaks were reached, bound by memory; not a measurement" in shown.out

    @pytest.mark.slow
    def test_of_a_call_that_went_wrong_there_are_no_costs(self, cli, fill) -> None:
        fill.write_text(FILL.replace("c[cta, lane] =", f"{WAITS}\n    c[cta, lane] ="))
        shown = cli("cost", str(fill), "--problem", SHAPE)
        assert shown.code == 1
        assert "simulated, barrier" in shown.out
        assert "counts of a call that failed, perhaps before its end; they are no costs" in shown.out
        assert "published peaks" not in shown.out
        assert "instructions" not in shown.out

    @pytest.mark.slow
    def test_verified_the_call_must_be_right(self, cli, fill) -> None:
        shown = cli("cost", str(fill), "--problem", SHAPE, "--verify")
        assert shown.code == 1
        assert "outputs wrong" in shown.out

    def test_verified_its_result_must_be_a_kernel_s(self, cli, fill) -> None:
        product = (ROOT / "tests/hostile/programs/shared/torch_gemm.py").read_text()
        fill.write_text(f"{FILL}\n\nfilled = custom_kernel\n\n\n{product}\n\n{AND_THEN}")
        shown = cli("model", str(fill), "--problem", SHAPE, "--verify")
        assert shown.code == 1
        assert "descends from torch's" in shown.out

    def test_as_json(self, cli, fill) -> None:
        shown = cli("cost", str(fill), "--problem", SHAPE, "--problem", "40x128x512", "--json")
        assert shown.code == 0, shown.err
        data = json.loads(shown.out)
        assert "none is a time" in data["note"]
        first, second = data["problems"]
        assert (first["problem"], second["problem"]) == (SHAPE, "40x128x512")
        assert first["facts"]["launch.0.global.store.bytes"] == 40 * 128 * 2
        assert first["facts"]["flops.padding"] == 0
        assert first["floor"]["is_a_measurement"] is False
        assert first["launches"][0]["counters"]["ctas"] == 40
        assert (
            second["floor"]["us_if_published_peaks_were_reached"] > first["floor"]["us_if_published_peaks_were_reached"]
        )

    def test_it_imports_modules_beside_it_and_of_its_project(self, cli, fill, tmp_path) -> None:
        (tmp_path / "pyproject.toml").write_text("[tool.pytest_nvfp4]\n")
        (tmp_path / "whole.py").write_text("ROWS = 40\n")
        (folder := tmp_path / "kernels").mkdir()
        (folder / "beside.py").write_text("from whole import ROWS\n")
        kernel = fill.rename(folder / "fill.py")
        kernel.write_text("from beside import ROWS\n" + FILL.replace("grid=(40, 1, 1)", "grid=(ROWS, 1, 1)"))
        shown = cli("cost", str(kernel), "--problem", SHAPE)
        assert shown.code == 0, shown.out + shown.err
        assert "40 in 40 clusters" in shown.out

    def test_what_is_wrong_with_it_is_said(self, cli, fill) -> None:
        fill.write_text(FILL.replace("grid=(40, 1, 1)", "grid=(39, 1, 1)"))
        shown = cli("cost", str(fill), "--problem", SHAPE)
        assert shown.code == 1
        assert "never-written: C of group 0: 128 of 5120 elements" in shown.out
        assert "39 in 39 clusters" in shown.out

    def test_the_floor_is_the_rooflines(self) -> None:
        text = floor_text(floor(GPUMODE_BENCH[0], "sm_100a"))
        assert text.startswith("floor on B200: ")
        assert text.endswith("not a measurement")
        assert "no floor" in floor_text(floor(parse_shape(SHAPE), "sm_120a"))


class TestRun:
    def test_a_wrong_result_is_a_failure(self, cli, fill) -> None:
        families = ("--family", "gpumode", "--family", "pow2_exact")
        shown = cli("run", str(fill), "--problem", SHAPE, "--device", "sim", *families)
        assert shown.code == 1
        assert f"on {SHAPE} with inputs 'gpumode': failed, simulated on a model of NVIDIA B200" in shown.out
        assert shown.out.count("  where: ") == 1, "what is wrong alike is told in full once"
        assert f"as on {SHAPE} with inputs 'gpumode': " in shown.out
        assert "mismatch" in shown.out or "outputs wrong" in shown.out
        assert "the kernel printed:\n    hello from 0" in shown.out

    def test_a_timeline_and_json(self, cli, fill, tmp_path) -> None:
        file = tmp_path / "trace.json"
        shown = cli("run", str(fill), "--problem", SHAPE, "--trace", str(file), "--trace-ctas", "3", "--json")
        assert shown.code == 1
        (one,) = json.loads(shown.out)["runs"]
        assert one["status"] == "failed"
        assert one["printed"] == "hello from 0\n"
        assert one["device"]["simulated"] is True
        assert one["outputs"][0]["never"] == 0
        assert "it counts steps of the simulator, not time" in shown.err
        data = json.loads(file.read_text())
        assert len({event["pid"] for event in data["traceEvents"]}) == 3

    @pytest.mark.slow
    def test_the_cause_of_a_wrong_result_comes_first(self, cli, fill) -> None:
        mistake = MISTAKES[1]
        fill.write_text(mistake.text())
        shown = cli("run", str(fill), "--problem", "128x128x256", "--device", "sim", "--json")
        assert shown.code == 1
        (one,) = json.loads(shown.out)["runs"]
        cause, *others = one["findings"]
        assert (cause["kind"], cause["line"]) == ("provenance", mistake.line(mistake.at))
        assert "reads SFB of group 0" in cause["message"]
        assert others[0]["kind"] == "mismatch", "what is wrong with C follows"

    @pytest.mark.slow
    def test_races_are_searched_for_on_request(self, cli, fill) -> None:
        # Every warp reads what another one writes, and nothing lies between.
        fill.write_text(FILL.replace("= cutlass.Float16(1.0)", "= c[cta, lane ^ 32]"))
        command = ("run", str(fill), "--problem", SHAPE, "--device", "sim", "--json")
        kinds = [
            {finding["kind"] for finding in json.loads(cli(*command, *more).out)["runs"][0]["findings"]}
            for more in ((), ("--races",))
        ]
        assert "race" not in kinds[0]
        assert "race" in kinds[1]
        refused = cli("run", str(fill), "--device", "local", "--races")
        assert refused.code == 2
        assert "--races needs the simulator" in refused.err

    @pytest.mark.slow
    def test_the_shipped_kernel_passes(self, cli) -> None:
        shown = cli("run", str(SHIPPED), "--problem", SHAPE, "--family", "pow2_exact", "--family", "gpumode")
        assert shown.code == 0, shown.out
        assert shown.out.count(": passed, simulated on a model of NVIDIA B200") == 2
        assert "68.75 % padding" in shown.out


class TestInputs:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--family", "nonsense"], "families are"),
            (["--problem", "nonsense"], "no problem is called"),
            (["--trace", "t.json", "--family", "gpumode", "--family", "pow2_exact"], "--trace shows one run"),
            (["--trace", "t.json", "--device", "local"], "--trace needs the simulator"),
            (["--schedule", "sometimes"], "must be eager, lazy, late-WARP or a seed"),
            (["--schedule", "9" * 19], "must be eager, lazy, late-WARP or a seed"),
            (["--schedule", "lazy", "--device", "local"], "--schedule needs the simulator"),
            (["--arch", "sm_89"], "the simulator supports sm_90a, sm_100a"),
            (["--config", "other"], "no configuration is called 'other'"),
        ],
    )
    def test_of_run(self, cli, fill, arguments, words) -> None:
        shown = cli("run", str(fill), *arguments)
        assert shown.code == 2
        assert words in shown.err

    @pytest.mark.parametrize("command", ["run", "cost"])
    def test_a_kernel_with_an_entry_is_shown_the_way_to_run_it(self, cli, fill, command) -> None:
        table = '[[tool.pytest_nvfp4.kernel]]\npath = "fill.py"\nentry = "fill.py::go"\n'
        (fill.parent / "pyproject.toml").write_text(table)
        shown = cli(command, str(fill))
        assert shown.code == 2
        assert "has an entry in its settings" in shown.err
        assert "nvfp4 exec --device sim PROGRAM" in shown.err
        (fill.parent / "pyproject.toml").unlink()
        fill.write_text(FILL.replace("custom_kernel", "mine"))
        shown = cli(command, str(fill))
        assert shown.code == 2
        assert "nvfp4 exec --device sim PROGRAM" in shown.err
        assert "--entry" not in shown.err, "this command has no such option"

    def test_a_device_that_is_not_there(self, cli, fill, monkeypatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        shown = cli("run", str(fill), "--device", "local")
        assert shown.code == 2
        assert "no NVIDIA GPU" in shown.err

    @pytest.mark.parametrize("command", ["run", "cost"])
    def test_a_kernel_that_cannot_be_run(self, cli, fill, tmp_path, command) -> None:
        assert "no such file" in cli(command, str(tmp_path / "none.py")).err
        fill.write_text("x = 1\n")
        assert "defines no custom_kernel(data)" in cli(command, str(fill)).err
        (tmp_path / "pyproject.toml").write_text(
            '[[tool.pytest_nvfp4.kernel]]\npath = "fill.py"\nentry = "fill.py::build"\n'
        )
        shown = cli(command, str(fill))
        assert shown.code == 2
        assert "has an entry in its settings" in shown.err


COSTS = "# nvfp4-cost 1\n# kernel  k.py\n\nlaunches  1\nlaunch.0.tma.load.bytes  4096\n# end 2\n"


def test_snapshots_of_costs_are_read_and_compared(cli, tmp_path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text(COSTS)
    new.write_text(COSTS.replace("4096", "8192"))
    assert f"{old}  2 costs, complete" in cli("snapshot", "check", str(old)).out
    assert "launch.0.tma.load.bytes  4096" in cli("snapshot", "show", str(old)).out
    assert "launch.0.tma.load.bytes 4096 -> 8192" in cli("diff", str(old), str(new)).out
    new.write_text(COSTS.replace("nvfp4-cost", "nvfp4-launch"))
    assert "different kinds" in cli("diff", str(old), str(new)).err


class TestRunOfSource:
    LAUNCH = ("--grid", "1", "--block", "32", "--arg", "x=f32[32]", "--arg", "0.5")

    @pytest.fixture
    def file(self, tmp_path):
        (tmp_path / "fill.ptx").write_text(fill_ptx("f32"))
        np.save(tmp_path / "half.npy", np.full(32, 0.5, np.float32))
        np.save(tmp_path / "other.npy", np.full(32, 0.51, np.float32))
        return tmp_path / "fill.ptx"

    @pytest.mark.slow
    def test_arrays_are_compared_and_written(self, cli, file) -> None:
        out = file.with_name("out.npz")
        expect = f"--expect=x={file.with_name('half.npy')}"
        shown = cli("run", str(file), *self.LAUNCH, expect, "--out", str(out), "--json")
        assert shown.code == 0, shown.err
        data = json.loads(shown.out)
        assert data["arrays"] == {"x": {"shape": [32], "element": "f32"}}
        assert data["launches"][0]["kernel"] == "fill"
        assert np.load(out)["x"].tolist() == [0.5] * 32
        wrong = f"--expect=x={file.with_name('other.npy')}"
        failed = cli("run", str(file), *self.LAUNCH, wrong)
        assert failed.code == 1
        assert "x: 32 of 32 elements differ, the first x[0] is 0.5, expected 0.51" in failed.out
        assert cli("run", str(file), *self.LAUNCH, wrong, "--tolerance", "0.02").code == 0

    def test_a_finding_fails(self, cli, file) -> None:
        shown = cli("run", str(file), "--grid=1", "--block=64", "--arg=f32[32]", "--arg=0.5")
        assert shown.code == 1
        assert "fill.ptx:13: simulated, out-of-bounds" in shown.out

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (["--grid=1"], "give --grid and --block"),
            (["--grid=a", "--block=1"], "--grid 'a': write it as X, X,Y or X,Y,Z"),
            (["--grid=1", "--block=1", "--arg=f33[3]"], "type 'f33' does not exist"),
            (["--grid=1", "--block=1", "--kernel=other"], "has no kernel other: it has fill"),
            (["--grid=1", "--block=1", "--family=gpumode"], "are for a Python file"),
        ],
    )
    def test_wrong_usage(self, cli, file, options, problem) -> None:
        shown = cli("run", str(file), *options)
        assert shown.code == 2
        assert problem in shown.err

    def test_options_of_the_other_kind_of_file(self, cli, fill) -> None:
        shown = cli("run", str(fill), "--grid", "1")
        assert shown.code == 2
        assert "--grid is for a CUDA C++ or PTX file (.cu, .cuh, .ptx)" in shown.err
