"""``nvfp4 profile``: saved reports are shown and compared; what cannot be profiled is refused with the way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.helpers import Result
from tests.profile.reports import RECORD, details_page, raw_page, sanitizer_xml

DURATION, DRAM = "gpu__time_duration.sum", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
UNITS = {DURATION: "ns", DRAM: "%"}
Cli = Callable[..., Result]


def refusal(done: Result) -> str:
    """The error of a command that was given wrong input."""
    assert done.code == 2, done
    return done.err


def test_a_saved_report_is_shown(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "x.csv"
    report.write_text(raw_page([{DURATION: "12500", DRAM: "nan"}], UNITS, kernel="gemm\x1b[31m"))
    shown = cli("profile", "show", str(report)).out
    assert "12.5 us" in shown
    assert "DRAM throughput" in shown.partition("unknown: ")[2]
    assert "\x1b" not in shown
    data = json.loads(cli("profile", "show", str(report), "--json").out)
    assert data["launches"][0]["metrics"]["duration"] == {"value": 12.5, "unit": "us", "because": ""}
    assert data["launches"][0]["metrics"]["dram_throughput"]["value"] is None
    failed = refusal(cli("profile", "show", str(report), "--kernel", "nothing"))
    assert "no kernel's name contains 'nothing'" in failed


def test_the_json_of_a_report_is_a_report(cli: Cli, tmp_path: Path) -> None:
    report, saved = tmp_path / "x.csv", tmp_path / "x.json"
    report.write_text(raw_page([{DURATION: "12500"}], UNITS))
    saved.write_text(cli("profile", "show", str(report), "--json").out)
    assert "12.5 us" in cli("profile", "show", str(saved)).out
    saved.write_text(json.dumps({"kernel": "k.py", "profiles": [json.loads(saved.read_text())]}))
    assert "12.5 us" in cli("profile", "show", str(saved)).out
    saved.write_text('{"profiles": []}')
    assert "no list of profiles" in refusal(cli("profile", "show", str(saved)))


def test_rules_and_defects_are_shown(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "x.csv"
    rules = [("Occupancy", "TheoreticalOccupancy", "OPT", "limited by registers", "12.5")]
    report.write_text(details_page([("Occupancy", "Achieved Occupancy", "%", "50")], rules))
    assert "[12 % global] TheoreticalOccupancy: limited by registers" in cli("profile", "show", str(report)).out
    report.write_text(sanitizer_xml(RECORD))
    assert "kernel.py:8: error: Invalid __global__ write" in cli("profile", "show", str(report)).out


def test_two_reports_are_compared(cli: Cli, tmp_path: Path) -> None:
    for name, duration in (("old", "1000"), ("new", "1500")):
        (tmp_path / name).write_text(raw_page([{DURATION: duration}], UNITS))
    shown = cli("profile", "diff", str(tmp_path / "old"), str(tmp_path / "new"))
    assert "+50.0%" in shown.out
    data = json.loads(cli("profile", "diff", str(tmp_path / "old"), str(tmp_path / "new"), "--json").out)
    assert data["kernels"][0]["metrics"]["duration"]["relative"] == pytest.approx(0.5)
    (tmp_path / "old").write_text(sanitizer_xml(RECORD))
    assert "no launches" in refusal(cli("profile", "diff", str(tmp_path / "old"), str(tmp_path / "new")))


def test_what_cannot_be_profiled_is_refused(cli: Cli, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
    assert "nvfp4 model" in refusal(cli("profile", str(kernel), "--device", "sim"))
    refused = refusal(cli("profile", str(kernel), "--metric", "sm__pipe_tensor_op_hmma_cycles_active.avg"))
    assert "GB100 has no metric" in refused
    assert "is no name of a metric" in refusal(cli("profile", str(kernel), "--metric", "-o x"))
    assert "name a KERNEL" in refusal(cli("profile", "--mode", "ncu"))
    assert "no such file" in refusal(cli("profile", "show", str(tmp_path / "absent.csv"))).lower()


TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def test_what_limits_a_launch_is_shown(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "x.csv"
    report.write_text(raw_page([{DURATION: "50000", TENSOR: "82"}], UNITS | {TENSOR: "%"}))
    shown = cli("profile", "show", str(report)).out
    assert "tensor: the tensor core (tensor pipe active 82 %, at least 60 %)" in shown
    assert "unknown: memory" in shown
    done = cli("profile", "show", str(report), "--json")
    (analysis,) = json.loads(done.out)["explanation"]["analyses"]
    assert {"class": "tensor", "state": "yes"}.items() <= analysis["bottlenecks"][1].items()
    # The JSON is a report itself, and so is that of a run.
    saved = tmp_path / "saved.json"
    saved.write_text(done.out)
    assert "tensor pipe active 82 %" in cli("profile", "show", str(saved)).out
    saved.write_text(json.dumps({"kernel": "k.py", "profiles": [json.loads(done.out), json.loads(done.out)]}))
    assert cli("profile", "show", str(saved)).out.count("tensor pipe active 82 %") == 2


def test_what_is_counted_needs_a_kernel_and_ncu(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "x.csv"
    report.write_text(raw_page([{DURATION: "50000"}], UNITS))
    assert "give --counted" in refusal(cli("profile", "show", str(report), "--problem", "gpumode-0"))
    missing = str(tmp_path / "missing.py")
    assert "missing.py" in refusal(cli("profile", "show", str(report), "--counted", missing))
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
    assert "not with nsys" in refusal(cli("profile", str(kernel), "--mode", "nsys", "--counted"))
