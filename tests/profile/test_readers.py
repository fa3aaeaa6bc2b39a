"""Saved reports of profilers: what they say is read, what they do not say is unknown, what is hostile is refused."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import random
import sqlite3
import zipfile
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profile.compare import compare
from pytest_nvfp4.profile.read import read_report
from pytest_nvfp4.profile.readers.ncu_csv import merged
from pytest_nvfp4.profile.result import Profile
from pytest_nvfp4.profile.units import metric, number, scaled
from tests.profile.reports import RECORD, details_page, nsys_export, raw_page, sanitizer_xml

DURATION, DRAM, STALL = (
    "gpu__time_duration.sum",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
)
UNITS = {DURATION: "ns", DRAM: "%", STALL: "inst", "launch__cluster_dim_x": "", "launch__func_cache_config": ""}


def read(tmp_path: Path, text: str | bytes, name: str = "report.csv") -> Profile:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_report(path)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (65.5, "Kbyte/block", (65500.0, "byte/block")),
        (2, "msecond", (2e6, "ns")),
        (3, "us", (3e3, "ns")),
        (1.5, "Ghz", (1.5e9, "Hz")),
        (3, "Gbyte/second", (3e9, "byte/s")),
        (5, "register/thread", (5, "register/thread")),
        (7, "block", (7, "block")),
        (5, "%", (5, "%")),
    ],
)
def test_values_are_in_base_units(value, unit, expected):
    assert scaled(value, unit) == (pytest.approx(expected[0]), expected[1])


def test_numbers_of_cells():
    assert number("1,234,567.5") == 1234567.5
    assert math.isnan(number("-nan(ind)"))
    assert number("1.234,5") is None, "a locale of decimal commas is not guessed"
    assert number("9" * 100) is None
    assert metric(3.0, "usecond", to="us").value == pytest.approx(3)
    assert metric(3.0, "%", to="us").value is None, "a unit that does not fit is unknown, not a number"


def test_a_table_is_of_a_locale_with_decimal_commas_if_a_number_shows_it(tmp_path):
    def launch(*values):
        return read(tmp_path, raw_page([dict(zip(UNITS, values, strict=False))], UNITS)).launches[0]

    german, french = launch("1.024", "45,12"), launch("1\u202f024", "45,125")
    assert (german.counter(DURATION).value, german.value("dram_throughput")) == (1024, 45.12)
    assert french.counter(DURATION).value == 1024
    english = launch("1,024", "45.12")
    assert (english.counter(DURATION).value, english.value("dram_throughput")) == (1024, 45.12)
    both = launch("1,5", "45.12")
    assert both.counter(DURATION).value is None, "a table with both marks is of no locale"
    metrics = [("GPU Speed Of Light Throughput", "Duration", "us", "1.234,5")]
    gain = [("GPU Speed Of Light Throughput", "SOLBottleneck", "OPT", "text", "12,5")]
    (details,) = read(tmp_path, details_page(metrics, gain)).launches
    assert (details.value("duration"), details.rules[0].speedup_pct) == (1234.5, 12.5)


@pytest.mark.parametrize("each", ["{}", "0x7f7a3b7a{:04x}: 1,440"])
def test_values_of_instances_stand_behind_the_value_however_many_there_are(tmp_path, each):
    instances = "; ".join(each.format(at) for at in range(40_000))
    assert len(instances) > 131_072, "the limit of Python's csv reader"
    before = csv.field_size_limit()
    values = {DURATION: f"12,500 ({instances})", "launch__func_cache_config": "PreferNone (1)"}
    (launch,) = read(tmp_path, raw_page([values], UNITS)).launches
    assert launch.value("duration") == 12.5
    assert launch.texts == {"launch__func_cache_config": "PreferNone (1)", "CC": "9.0"}
    assert csv.field_size_limit() == before


def test_the_raw_page(tmp_path):
    values = {DURATION: "12,500", DRAM: "88.1", STALL: "4.5", "launch__func_cache_config": "PreferNone"}
    text = "==PROF== Connected to process 7\nhello\n" + raw_page([values, {**values, DRAM: "nan"}], UNITS)
    text += "==PROF== Disconnected\n"
    profile = read(tmp_path, text)
    first, second = profile.launches
    assert (first.name, first.grid, first.block) == ("gemm", (132, 1, 1), (256, 1, 1))
    assert first.value("duration") == 12.5
    assert first.value("dram_throughput") == 88.1
    assert first.counter(DURATION).value == 12500
    assert first.stalls["long_scoreboard"].value == 4.5
    assert first.texts["launch__func_cache_config"] == "PreferNone"
    assert second.value("dram_throughput") is None
    assert "nan" in second.metric("dram_throughput").because
    assert first.value("l2_hit_rate") is None, "a metric that was not collected is not zero"
    assert profile.device is not None
    assert profile.device.capability == (9, 0)


def test_the_details_page_of_display_names_and_rules(tmp_path):
    light = "GPU Speed Of Light Throughput"
    metrics = [
        (light, "Duration", "ms", "1.5"),
        (light, "DRAM Throughput", "%", "88.0"),
        (light, "SM Frequency", "Ghz", "1.2"),
        ("Launch Statistics", "Dynamic Shared Memory Per Block", "Kbyte/block", "65.54"),
        ("Occupancy", "Achieved Occupancy", "%", "n/a"),
    ]
    text = details_page(metrics, [(light, "SOLBottleneck", "OPT", "Memory is well used", "12.5")])
    (launch,) = read(tmp_path, text).launches
    assert launch.value("duration") == 1500
    assert launch.value("sm_clock") == 1200
    assert launch.value("dynamic_shared_memory") == 65540
    assert launch.value("achieved_occupancy") is None
    assert launch.sections[light]["DRAM Throughput"].value == 88
    (rule,) = launch.rules
    assert (rule.kind, rule.speedup_pct, rule.scope) == ("optimization", 12.5, "global")


H200 = Path(__file__).parent / "h200"
"""Pages that ncu 2025.3.1 wrote of kernels/nvfp4_group_gemm/sm90.py on 80x128x256, on an H200; shortened."""


def test_pages_of_an_h200():
    """The figures are those of the .ncu-rep of the same run, as read by ncu_report, rounded as the pages are."""
    raw = read_report(H200 / "group_gemm.raw.csv")
    details = read_report(H200 / "group_gemm.details.csv")
    assert raw.device is not None
    assert (raw.device.name, raw.device.capability) == ("NVIDIA H200", (9, 0))
    exact = {
        "duration": 14.208,
        "sm_throughput": 0.184863,
        "tensor_pipe": 2.64687,
        "dram_read": 156_928,
        "achieved_occupancy": 18.7316,
        "registers": 168,
        "dynamic_shared_memory": 219_264,
        "shared_memory": 220_288,
        "waves": 0.030303,
        "sm_clock": 1961.24,
    }
    gemm = merged(raw.launches, details.launches)[1]
    assert "group_gemm_kernel" in gemm.name
    assert (gemm.grid, gemm.block, gemm.cluster) == ((4, 1, 1), (384, 1, 1), (2, 1, 1))
    assert {name: gemm.value(name) for name in exact} == {
        name: pytest.approx(value, rel=1e-3, abs=0.0051) for name, value in exact.items()
    }
    assert gemm.value("l2_hit_rate") is None, "the set basic has no hit rates"
    assert gemm.stalls["barrier"].value == pytest.approx(11.57)
    assert gemm.metric("registers").unit == ""
    best = max(gemm.rules, key=lambda rule: rule.speedup_pct or 0)
    assert (best.name, best.kind, best.scope) == ("LaunchConfiguration", "optimization", "global")
    for name in ("duration", "dram_throughput", "registers", "achieved_occupancy"):
        assert details.launches[1].value(name) == pytest.approx(raw.launches[1].value(name), abs=0.01)


def test_findings_of_memcheck_on_an_h200():
    write, call = read_report(H200 / "memcheck.xml").defects
    assert write.text.startswith("Invalid __global__ write of size 4 bytes")
    assert "block (0,0,0), thread (0,0,0), address 0x1000" in write.text
    assert (write.kernel, write.severity) == ("out_of_bounds", "error")
    assert "error 719" in call.text


def test_an_export_of_nsys_of_a_new_schema_shows_the_kernels_of_the_region(tmp_path):
    path = nsys_export(
        tmp_path / "x.sqlite",
        tables={
            "StringIds": ("id, value", [(1, "gemm"), (2, "other"), (3, "profile_region")]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                "start, end, correlationId, demangledName, gridX, gridY, gridZ, registersPerThread",
                [(900, 1000, 5, 2, 1, 1, 1, 40), (2000, 3000, 6, 1, 8, 1, 1, 90), (3000, 5000, 7, 1, 8, 1, 1, 90)],
            ),
            "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, correlationId", [(100, 5), (600, 6), (700, 7)]),
            "NVTX_EVENTS": ("start, end, textId, text, eventType", [(500, 6000, 3, None, 59), (1, None, 1, "x", 59)]),
            "TARGET_INFO_GPU": ("name, computeMajor, computeMinor, smCount", [("NVIDIA B200", 10, 0, 148)]),
            "DIAGNOSTIC_EVENT": ("text, severity", [("CUDA events were lost", 3), ("a note", 1)]),
        },
    )
    profile = read_report(path)
    (launch,) = profile.launches
    assert (launch.name, launch.instances, launch.grid) == ("gemm", 2, (8, 1, 1))
    assert launch.value("duration") == 1.5
    assert launch.value("registers") == 90
    assert launch.cluster is None, "this schema has no clusters"
    assert [one.name for one in profile.ranges] == ["profile_region"]
    assert profile.device is not None
    assert profile.device.capability == (10, 0)
    assert profile.notes == ("CUDA events were lost",)


def test_an_export_of_nsys_without_cuda_events_has_ranges_only(tmp_path):
    path = nsys_export(tmp_path / "x.sqlite", tables={"NVTX_EVENTS": ("start, end, text", [(0, 10, "profile_region")])})
    profile = read_report(path)
    assert profile.launches == ()
    assert profile.tool is not None
    assert profile.tool.tool == "nvtx"
    assert any("no CUDA kernels" in note for note in profile.notes)


def test_an_export_with_a_view_in_place_of_a_table_runs_no_query_of_it(tmp_path):
    path = nsys_export(tmp_path / "x.sqlite", tables={"NVTX_EVENTS": ("start, end, text", [])})
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
            "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
        )
    connection.close()
    assert read_report(path).launches == ()


def test_a_report_of_compute_sanitizer(tmp_path):
    profile = read(tmp_path, sanitizer_xml(RECORD, RECORD), "x.xml")
    (defect,) = profile.defects
    assert (defect.count, defect.file, defect.line, defect.kernel) == (2, "kernel.py", 8, "gemm")
    assert "block (2,0,0), thread (3,0,0), address 0x10" in defect.text


def test_a_report_of_a_process_that_was_killed_is_read_as_far_as_it_goes(tmp_path):
    profile = read(tmp_path, sanitizer_xml(RECORD, RECORD)[:-60], "x.xml")
    assert len(profile.defects) == 1
    assert any("ends early" in note for note in profile.notes)


BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><ComputeSanitizerOutput>&b;'


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (BOMB, "x.xml", "declares a document type"),
        ("<html></html>", "x.xml", "no report of compute-sanitizer"),
        ("<ComputeSanitizerOutput>" + "<a>" * 50, "x.xml", "levels"),
        ("ID,Name\n1,2\n", "x.csv", "no report that is known"),
        ('"ID","Kernel Name","x"\n', "x.csv", "no launch"),
        (b"SQLite format 3\0" + b"\0" * 600, "x.sqlite", "no readable SQLite"),
        ("{}", "x.json", None),
        ('{"launches": 3}', "x.json", "launches"),
        (b"", "x.ncu-rep", "without any launch|neither ncu_report"),
        (b"\0\1\2", "x.bin", "no report that is known"),
        ("", "x.nsys-rep", "nsys export"),
        ("", "x.qdstrm", "not imported"),
    ],
)
def test_what_is_no_report_is_refused_with_the_way_out(tmp_path, text, name, words):
    if words is None:
        assert read(tmp_path, text, name).tool is None
        return
    with pytest.raises(DoorError, match=words):
        read(tmp_path, text, name)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "report.csv")
    with pytest.raises(DoorError, match="is a pipe"):
        read_report(tmp_path / "report.csv")


def test_an_archive_of_popcorn(tmp_path):
    page = raw_page([{DURATION: "10"}], UNITS)
    path = tmp_path / "profile.0-m-80.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run/ncu-details.csv", page)
        archive.writestr("run/ncu-details.txt", "text")
        archive.writestr("run/manifest.json", "{}")
    assert read_report(path).launches[0].value("duration") == 0.01
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../x.csv", page)
    with pytest.raises(DoorError, match="stay below its folder"):
        read_report(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_read_or_refused_in_a_sentence(tmp_path, method):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("caf\u00e9/report.csv", raw_page([{DURATION: "12"}], UNITS))
        archive.writestr("__MACOSX/._report.csv", b"\0\5\x16\7")
    assert read(tmp_path, whole.getvalue(), "a.zip").launches[0].value("duration") == 0.012
    chance, refused = random.Random(method), 0
    for _ in range(100):
        data = bytearray(whole.getvalue())
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read(tmp_path, bytes(data), "a.zip")
        except DoorError:
            refused += 1
    assert refused > 10


def test_a_folder_of_reports_and_the_json_of_a_profile(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        read(tmp_path / name, raw_page([{DURATION: "10"}], UNITS))
    both = read_report(tmp_path)
    assert [launch.index for launch in both.launches] == [0, 1]
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(both.model_dump(mode="json")))
    assert read_report(saved).launches == both.launches
    assert both.device is not None


def test_reports_of_several_gpus_have_no_number_of_sms(tmp_path):
    devices = [None, {"name": "H200", "sms": 132}, {"name": "B200", "sms": 148}]
    reports = [{"device": device, "launches": [{"name": "gemm"}]} for device in devices]
    known = read(tmp_path, json.dumps({"profiles": reports[:2]}), "known.json")
    assert known.device is not None, "a report without a device hides none"
    assert known.device.sms == 132
    mixed = read(tmp_path, json.dumps({"profiles": reports}), "mixed.json")
    assert mixed.device is None
    assert "several GPUs (H200, B200)" in mixed.notes[0]


def test_a_comparison_has_only_what_both_reports_know(tmp_path):
    old = read(tmp_path, raw_page([{DURATION: "1000", DRAM: "50"}], UNITS, kernel="kernel_gemm_1234567"))
    new = read(tmp_path, raw_page([{DURATION: "1500", DRAM: "nan"}], UNITS, kernel="kernel_gemm_7654321"))
    (kernel,) = compare(old, new).both
    changes = {change.known.name: change.relative for change in kernel.changes}
    assert changes == {"duration": pytest.approx(0.5), "dram_throughput": None}


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_report_is_read_or_refused_in_a_sentence(tmp_path, seed):
    drawn = random.Random(seed)
    table = {"StringIds": ("id, value", [(1, "g")]), "NVTX_EVENTS": ("start, end, textId", [(0, 9, 1)])}
    whole = [
        raw_page([{DURATION: "1,000"}, {DRAM: "nan"}], UNITS).encode(),
        details_page([("S", "Duration", "ms", "1.5")], [("S", "R", "OPT", "t", "12")]).encode(),
        sanitizer_xml(RECORD, RECORD).encode(),
        nsys_export(tmp_path / "whole.sqlite", tables=table).read_bytes(),
    ][seed]
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(drawn.choice([1, 4, 20])):
            at = drawn.randrange(len(data))
            data[at : at + drawn.choice([0, 1, 9])] = drawn.choice([b"", b'"', b",", b"\n", b"&a;", b"\xff", b"9" * 30])
        with contextlib.suppress(DoorError):  # any other exception fails
            made = read(tmp_path, bytes(data))
            assert Profile.model_validate_json(made.model_dump_json()) == made
