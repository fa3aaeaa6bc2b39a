import json

import pytest
import report_samples as reports

from pytest_nvfp4.layout.change import ListingDiff, Severity
from pytest_nvfp4.report.model import CheckReport, Report


def test_an_outcome_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'xfailed' of k::c"):
        CheckReport("k", "c", "xfailed")


def test_a_run_of_skips_is_not_called_a_pass():
    report = Report([CheckReport("k", "c", "skipped", "no device")])
    assert report.ok
    assert report.headline == "1 skipped"
    assert Report([]).headline == "no check ran"


def test_failed_checks_come_first_then_the_worst_layouts():
    quiet = CheckReport("a", "c", "passed")
    moved = CheckReport("b", "c", "passed", diff=ListingDiff((reports.change(Severity.RENESTED),)))
    broken = CheckReport("c", "c", "error")
    skipped = CheckReport("d", "c", "skipped")
    assert Report([quiet, skipped, moved, broken]).worst_first() == [broken, moved, quiet, skipped]


def test_severities_are_counted_over_all_checks():
    report = Report([reports.check(*reports.every_severity()), reports.check(reports.change())])
    assert report.severities[Severity.DIFFERENT] == 2
    assert report.severities[Severity.PERMUTED] == 1
    assert report.severities[Severity.IDENTICAL] == 80


def test_json_survives_a_round_trip():
    data = json.loads(json.dumps(reports.ordinary().to_json()))
    assert data["outcomes"] == {"passed": 1, "failed": 1, "error": 0, "skipped": 1}
    (check, *_) = data["checks"]
    assert check["diff"]["changes"][0]["severity"] == "different"
    assert check["diff"]["dsl_version"] == {"key": "dsl", "old": "4.4.0", "new": "4.8.1"}
    assert {fact["name"]: fact["direction"] for fact in check["facts"]} == {"registers": "up", "grid": "down"}
