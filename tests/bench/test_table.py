"""The table of results: every number where it belongs, in any terminal."""

import math

import pytest

from pytest_nvfp4.bench.regression import ShapeRounds, compare
from pytest_nvfp4.bench.table import TimesRow, render
from pytest_nvfp4.problem import GPUMODE_BENCH
from tests.bench.helpers import H200, SMALL, UNKNOWN, measurement


def times(us, count=40):
    return tuple(us * (1 + 0.001 * (i % 5 - 2)) for i in range(count))


def rows(kernel="k.py", device=H200, **more):
    made = zip(GPUMODE_BENCH, (190.0, 100.0, 37.3, 21.5), strict=True)
    return [TimesRow(kernel, problem, measurement(times(us), **more), device) for problem, us in made]


def verdicts(factor):
    shapes = [
        ShapeRounds(problem.name, times(us), times(us * factor), noise=0.002)
        for problem, us in zip(GPUMODE_BENCH, (190.0, 100.0, 37.3, 21.5), strict=True)
    ]
    return compare(shapes)


def test_a_row_has_every_number():
    first = render(rows()).splitlines()[0]
    assert first == (
        "k.py gpumode-bench-0: 190.0 us (p10-p90 189.6-190.4), host 60.00 us, 316 TFLOP/s, 761 GB/s, "
        "32.0 % of the roofline, no baseline"
    )


def test_geometric_means_by_hand():
    line = render(rows()).splitlines()[4]
    mean = math.prod((190.0, 100.0, 37.3, 21.5)) ** 0.25
    assert line.startswith(f"k.py geomean: {mean:.2f} us, host 60.00 us, ")


def test_one_problem_has_no_mean():
    assert "geomean" not in render(rows()[:1])


def test_how_it_was_measured_is_said_once():
    lines = render(rows(clocks=(345, 1980, 1965))).splitlines()
    assert lines[5].startswith("measured on NVIDIA H200, sm_90, driver 580.1, driver events behind a gate")
    assert "cold L2, 3 sets of inputs, DSL 4.8.1, 40 rounds" in lines[5]
    assert lines[6] == "SM clock under load 1972 MHz"
    assert len(lines) == 7


def test_different_methods_are_numbered():
    text = render([*rows()[:1], *rows(l2="warm")[1:2]])
    assert "gpumode-bench-0 [1]: " in text
    assert "gpumode-bench-1 [2]: " in text
    assert "\n[1] NVIDIA H200" in text
    assert "warm L2" in text.splitlines()[-1]


def test_verdicts_and_their_notes():
    verdict = verdicts(1.05)
    measured = [
        TimesRow(row.kernel, row.problem, row.measurement, row.device, verdict=one)
        for row, one in zip(rows(), verdict.shapes, strict=True)
    ]
    text = render(measured, geomeans={"k.py": verdict.geomean})
    assert text.count("slower +5.0") == 5
    noted = verdicts(1.0).shapes[0]
    assumed = compare([ShapeRounds("gpumode-bench-0", times(190.0), times(190.0))]).shapes[0]
    assert "same +0.00 %" in render(
        [TimesRow("k.py", GPUMODE_BENCH[0], measurement(times(190.0)), H200, verdict=noted)]
    )
    text = render([TimesRow("k.py", GPUMODE_BENCH[0], measurement(times(190.0)), H200, verdict=assumed)])
    assert "gpumode-bench-0: the noise between sessions was not measured" in text


def test_a_faster_kernel_makes_its_baseline_outdated():
    verdict = verdicts(0.9)
    text = render([TimesRow("k.py", GPUMODE_BENCH[0], measurement(times(171.0)), H200, verdict=verdict.shapes[0])])
    assert "faster -10.00 %" in text
    assert "gpumode-bench-0: until a new baseline is saved" in text


def test_a_refused_comparison_is_said():
    assert "another device" in render([TimesRow("k.py", SMALL, measurement(times(5.0)), H200, note="another device")])


def test_a_device_without_peaks_has_no_percentage():
    text = render(rows(device=UNKNOWN))
    assert "% of the roofline" not in text
    assert text.count("the peak rates of 'Example GPU' are not listed") == 1


def test_late_rounds_stand_beside_the_time():
    assert "190.0 (3 late) us" in render(rows(late=3)[:1])


def test_no_rows_no_text():
    assert render([]) == ""


def test_names_cannot_move_the_cursor():
    assert "\x1b" not in render(rows(kernel="\x1b[2Jk.py\n"))


def test_a_measurement_without_rounds():
    with pytest.raises(ValueError, match="no rounds"):
        render([TimesRow("k.py", SMALL, measurement([]), H200)])
