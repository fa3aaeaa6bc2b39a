"""``model``: snapshots, baselines and refusals, on recordings written by hand; the last test records a kernel."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from pytest_nvfp4.model.calibrated import DATA_VARIABLE, calibrated_folder, calibrated_path

from .conftest import Project, Ran
from .shipped_kernel import SHIPPED
from .simulated import FILL, PROBLEM, outcomes, written

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
CONFTEST = f"""
import json
import sys
sys.path.insert(0, {str(ROOT)!r})
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.device.modelled import modelled_call
from pytest_nvfp4.plugin.simulations import Simulations
from tests.model.main_loop import main_loop


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    def modelled(self, kernel, case, device, conditions, **_):
        table = json.loads(Path(__file__).with_name("main_loop.json").read_text())
        recording = replace(
            main_loop(128, 128, 128, table["stages"], 20), arch=kernel.arch, refused=tuple(table.get("refused", ()))
        )
        return modelled_call([recording], device.changed(**table.get("device", {{}})), conditions)

    monkeypatch.setattr(Simulations, "modelled", modelled)
"""
"""The modelled call of every kernel is a main loop, with what ``main_loop.json`` says."""
MODELLED = ("k.py", f"--nvfp4-problem={PROBLEM}", "-k", "model", "--nvfp4-device=sim", "--nvfp4-model")
SNAPSHOT = f"k/model[{PROBLEM}].txt"


def by_hand(project: Project, **table: object) -> Project:
    written(project, FILL)
    project.file("conftest.py", CONFTEST)
    project.file("main_loop.json", json.dumps({"stages": 4} | table))
    return project


def recorded(project: Project, **table: object) -> Project:
    ran = by_hand(project, **table).run(*MODELLED, "--snapshot-update")
    assert ran.code == 0, ran.text
    return project


def message(ran: Ran) -> str:
    return ran.failures()[f"model[{PROBLEM}]"]


class TestSnapshot:
    @pytest.mark.slow
    def test_the_same_time_passes_and_is_shown_as_modelled(self, project: Project) -> None:
        missing = by_hand(project).run(*MODELLED)
        assert "there is no snapshot of the modelled time yet" in missing.text
        recorded(project)
        text = project.snapshots()[SNAPSHOT]
        assert text.startswith("# nvfp4-model 1\n# kernel ")
        assert re.search(r"\n# device +b200\n# table +1 [0-9a-f]{16} shipped\n# model +[0-9a-f]{12}\n", text)
        assert "\nmodelled_us  " in text
        ran = project.run(*MODELLED)
        outcomes(ran, passed=1)
        assert "modelled " in ran.section(r"nvfp4: modelled times \(nothing was measured\)")
        assert "as recorded" in ran.text
        assert re.search(r"table b200, version 1, digest [0-9a-f]{16} \(shipped\)", ran.text)

    @pytest.mark.slow
    def test_slower_fails_with_the_lines_that_take_longer(self, project: Project) -> None:
        recorded(project)
        ran = by_hand(project, stages=1).run(*MODELLED)
        outcomes(ran, failed=1)
        said = message(ran)
        assert said.startswith(f"modelled slower: k.py on {PROBLEM}, NVIDIA B200")
        assert "tolerance 10 %, against snapshots/k/model" in said
        assert " at loop.py:" in said
        assert "nothing was measured" in said
        assert "the snapshot is of" not in said
        file = project.path / "snapshots" / SNAPSHOT
        file.write_text(file.read_text().replace("# dsl         ", "# dsl         4.4.0 not "))
        assert "the snapshot is of nvidia-cutlass-dsl 4.4.0 not" in message(project.run(*MODELLED))
        project.settings('[tool.pytest_nvfp4]\nmodel-tolerance = "any"')
        outcomes(project.run(*MODELLED), passed=1)

    def test_faster_passes_and_is_reported_until_it_is_recorded(self, project: Project) -> None:
        recorded(project, stages=1)
        ran = by_hand(project, stages=4).run(*MODELLED)
        outcomes(ran, passed=1)
        assert "modelled faster: modelled " in ran.text
        assert "modelled_us" in ran.section("nvfp4: changes below the gate")
        assert project.run(*MODELLED, "--snapshot-update").code == 0
        assert "as recorded" in project.run(*MODELLED).text

    def test_a_time_of_another_table_is_a_failure_that_names_both(self, project: Project) -> None:
        recorded(project)
        before = project.snapshots()
        ran = by_hand(project, device={"tma_latency": 9000.0}).run(*MODELLED)
        outcomes(ran, failed=1)
        said = message(ran)
        assert "the modelled time cannot be compared with snapshots/k/model" in said
        assert re.search(r"the table of its constants: 1 \w{16} shipped in the snapshot, 1 \w{16} own now", said)
        assert "a shipped table is taken with --nvfp4-model-device shipped:b200" in said
        assert project.snapshots() == before
        assert project.run(*MODELLED, "--snapshot-update").code == 0
        assert project.snapshots() != before
        outcomes(project.run(*MODELLED), passed=1)

    def test_a_time_of_another_version_of_the_model_is_not_compared(self, project: Project) -> None:
        recorded(project)
        file = project.path / "snapshots" / SNAPSHOT
        before = re.sub(r"(# model +)\S+", r"\g<1>0123456789ab", file.read_text())
        file.write_text(before)
        ran = project.run(*MODELLED, "-rs")
        outcomes(ran, skipped=1)
        assert "not compared: the code of the model differs" in ran.text.replace("\n", " ")
        assert file.read_text() == before

    def test_a_table_of_the_user_is_named_and_can_be_left_out(
        self, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorded(project)
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
        calibrated_folder().mkdir(parents=True)
        text = (files("pytest_nvfp4.model") / "devices" / "b200.toml").read_text()
        own = calibrated_path("b200")
        own.write_text(text.replace("version = 1", "version = 2", 1))
        ran = project.run(*MODELLED)
        outcomes(ran, failed=1)
        assert f"times of b200 are modelled with your table {own}, " in ran.text
        assert "table of its constants: 1 " in message(ran)
        outcomes(project.run(*MODELLED, "--nvfp4-model-device", "shipped:b200"), passed=1)

    def test_a_refused_kernel_is_skipped_unless_it_had_a_time(self, project: Project) -> None:
        ran = by_hand(project, refused=["its tiles are taken from a counter"]).run(*MODELLED)
        outcomes(ran, skipped=1)
        assert "]: no time is modelled: its tiles are taken from a counter" in ran.text
        recorded(project)
        ran = by_hand(project, refused=["its tiles are taken from a counter"]).run(*MODELLED)
        outcomes(ran, failed=1)
        assert "a time was modelled before" in message(ran)

    def test_a_damaged_snapshot_fails(self, project: Project) -> None:
        recorded(project)
        file = project.path / "snapshots" / SNAPSHOT
        file.write_text(file.read_text().replace("modelled_us  ", "modelled_us  about ", 1))
        assert "is damaged" in message(project.run(*MODELLED))


class TestSelection:
    def collected(self, project: Project, *args: str) -> list[str]:
        return [line for line in project.run("k.py", "--co", "-q", *args).text.splitlines() if "::model" in line]

    def test_items_exist_where_settings_or_the_option_ask_for_them(self, project: Project) -> None:
        by_hand(project)
        sim = "--nvfp4-device=sim"
        assert self.collected(project, sim) == []
        assert self.collected(project, sim, "--nvfp4-model") == ["k.py::model[gpumode-0]"]
        project.settings('[tool.pytest_nvfp4]\nmodel-problems = ["gpumode-1"]')
        assert self.collected(project, sim) == ["k.py::model[gpumode-1]"]
        assert self.collected(project) == []

    def test_a_device_that_cannot_be_used_is_an_error(self, project: Project) -> None:
        by_hand(project)
        assert "there is no device 'b201'" in project.run("--nvfp4-model-device=b201").errors
        ran = project.run(*MODELLED, "--nvfp4-model-device=h200")
        outcomes(ran, failed=1)
        assert "is for sm_100a, which NVIDIA H200" in message(ran)
        project.settings('[tool.pytest_nvfp4]\nmodel-tolerance = "much"')
        assert "model-tolerance = 'much' is not usable" in project.run(*MODELLED).errors


class TestBenchmark:
    def run(self, project: Project, *args: str) -> Ran:
        chosen = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider", *MODELLED, "--benchmark-storage=kept")
        return Ran(project.pytester.runpytest_inprocess(*chosen, *args))

    @pytest.mark.slow
    def test_times_are_stored_and_compared_as_those_of_a_modelled_machine(self, project: Project) -> None:
        recorded(project)
        self.run(project, "--benchmark-autosave", "--benchmark-json=out.json")
        (stored,) = (project.path / "kept").glob("modelled-b200/0001_*.json")
        for file in (stored, project.path / "out.json"):
            data = json.loads(file.read_text())
            assert data["machine_info"]["node"] == "modelled-b200"
            (entry,) = data["benchmarks"]
            assert entry["options"]["timer"] == "nvfp4_modelled_time"
            assert entry["extra_info"]["nvfp4"]["is_a_measurement"] is False
            assert entry["group"] == "modelled-b200"
        again = self.run(project, "--benchmark-compare")
        outcomes(again, passed=1)
        assert "against the baseline: modelled" in again.text
        by_hand(project, stages=1)
        slower = self.run(project, "--benchmark-compare")
        assert "modelled slower than the baseline on NVIDIA B200" in message(slower)
        assert "(+" in message(slower)

    def test_measured_times_are_no_baseline(self, project: Project) -> None:
        recorded(project)
        project.file("kept/machine/0001_measured.json", json.dumps({"machine_info": {}, "benchmarks": [MEASURED]}))
        ran = self.run(project, "--benchmark-compare=machine/0001")
        assert "holds measured times, and modelled times are compared with modelled ones only" in ran.errors + ran.text

    def test_nothing_is_stored_beside_measured_times(self, project: Project) -> None:
        recorded(project)
        project.file("test_mine.py", "def test_mine(benchmark):\n    benchmark.pedantic(int, rounds=2)\n")
        ran = self.run(project, "test_mine.py", "-k", "model or mine", "--benchmark-json=out.json")
        outcomes(ran, passed=2)
        assert "not stored: this run also measures test_mine.py::test_mine" in ran.text
        (entry,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
        assert entry["name"] == "test_mine"

    @pytest.mark.slow
    def test_with_xdist_times_are_modelled_and_not_stored(self, project: Project) -> None:
        recorded(project)
        ran = self.run(project, "--benchmark-json=out.json", "-n2")
        outcomes(ran, passed=1)
        assert "as recorded" in ran.text
        assert not (project.path / "out.json").exists()
        by_hand(project, stages=1)
        outcomes(self.run(project, "-n2"), failed=1)


MEASURED = {
    "fullname": "other.py::benchmark[gpumode-0]",
    "name": "benchmark[gpumode-0]",
    "options": {"timer": "nvfp4_device_time"},
    "extra_info": {},
    "stats": {"min": 1e-5, "max": 1e-5, "mean": 1e-5, "stddev": 0, "rounds": 1, "iterations": 1, "median": 1e-5},
}


@pytest.mark.slow
def test_a_recorded_kernel_is_modelled_once(project: Project) -> None:
    project.kernel(source=SHIPPED.read_text(), problems=("gpumode-0",))
    chosen = ("k.py", "--nvfp4-problem=gpumode-0", "-k", "model", "--nvfp4-device=sim", "--nvfp4-model")
    assert project.run(*chosen, "--snapshot-update").code == 0
    text = project.snapshots()["k/model[gpumode-0].txt"]
    assert "launch.0.bound  " in text
    again = project.run(*chosen)
    outcomes(again, passed=1)
    assert "as recorded" in again.text
    assert "1 case known" in again.text or "known to pass" in again.text
