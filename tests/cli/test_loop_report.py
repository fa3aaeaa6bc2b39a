"""``nvfp4 loop report``: formats, files, the exit codes, and a directory without a loop."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.helpers import Result, git
from tests.loop.samples import Sample, night, promotion


def test_a_report_in_all_formats(tmp_path: Path, cli: Callable[..., Result]) -> None:
    night(tmp_path / "loop")
    page = tmp_path / "night.html"
    done = cli("loop", "report", "--state", tmp_path / "loop", "--html", page)
    assert done.code == 0
    assert "+STAGES = 4" in done.out
    assert "2 accepted, 4 not accepted" in page.read_text()
    assert "### accepted" in cli("loop", "report", "--state", tmp_path / "loop", "--md").out
    assert json.loads(cli("loop", "report", "--state", tmp_path / "loop", "--json").out)["name"] == "night"


def test_a_summary_has_no_diffs(tmp_path: Path, cli: Callable[..., Result]) -> None:
    night(tmp_path)
    done = cli("loop", "report", "--state", tmp_path, "--summary")
    assert "2 accepted, 4 not accepted" in done.out
    assert "STAGES" not in done.out


def test_a_long_diff_is_cut_and_its_file_named(tmp_path: Path, cli: Callable[..., Result]) -> None:
    sample = Sample.at(tmp_path)
    sample.candidate(1, outcome="faster", us=90.0, diff="+line\n" * 1000)
    sample.state("STOPPED", [promotion(1, 90.0)])
    done = cli("loop", "report", "--state", tmp_path)
    assert done.out.count("+line") == 400
    assert f"... 600 more lines: {tmp_path}/candidates/0001/diff.patch" in done.out


def test_the_default_directory_lies_below_the_root_of_the_repository(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    git("init", "-q", cwd=tmp_path)
    night(tmp_path / ".nvfp4" / "loop")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert "stopped: no progress" in cli("loop", "report").out


def test_without_a_loop_there_is_no_report(tmp_path: Path, cli: Callable[..., Result]) -> None:
    done = cli("loop", "report", "--state", tmp_path / "none")
    assert done.code == 2
    assert "holds no loop; name its directory with --state, or begin with `nvfp4 loop run`" in done.err


def test_a_loop_that_ran_is_reported_as_its_last_line_says(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    git("init", "-q", cwd=tmp_path)
    (tmp_path / "k.py").write_text("custom_kernel = None\n")
    (tmp_path / "nvfp4-loop.toml").write_text('[kernel]\nfile = "k.py"\n')
    monkeypatch.chdir(tmp_path)
    end = json.loads(cli("loop", "run", "--mode", "dry-run", "--json", "budget.iterations=8").out)
    report = json.loads(cli("loop", "report", "--state", end["state"], "--json").out)
    assert (report["life"], report["stop_reason"]) == ("stopped", "budget.iterations = 8 is reached")
    assert len(report["candidates"]) == report["iteration"] == end["iteration"] == 8
    assert len(report["accepted"]) == end["promotions"] > 0
    assert report["accepted"][-1]["after"] == report["incumbent"]["value"] == end["best_value"]
    assert report["accepted"][0]["before"] == report["baseline"]["value"] == end["baseline_value"]
    assert {each["name"]: each["spent"] for each in report["budgets"]}["tokens"] == end["spent"]["tokens"]
    assert sum(map(len, report["rejected"].values())) == 8 - end["promotions"]
    assert report["unreadable"] == []
    watched = cli("loop", "watch", "--state", end["state"])
    assert watched.out.startswith("loop loop: stopped: budget.iterations = 8 is reached\n8 candidates; ")
