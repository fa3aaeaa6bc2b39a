"""Runs the twins in a process of its own, because the DSL reads its environment when it is imported.

``python -m tests.reported.worker FOLDER [REPORT...]`` prints ``TWIN {...}`` for each twin as it is and mended.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host import redirect

from .reports import REPORTS, Report

Run = Callable[[bool], None]
_HERE = Path(__file__).parent
_PLACE = re.compile(r"([\w.-]+\.py):(\d+)")
_EARLY = ("uninitialised", "in-flight")
_ORDER = ("race", "proxy", "tensormap")


def _simulated(report: Report, run: Run, mended: bool, schedule: str) -> list[Finding]:
    from pytest_nvfp4.device.worker.simulator import simulate

    with simulate(arch="sm_100a", races=True, race_warnings=report.warnings, schedule=schedule) as session:
        try:
            run(mended)
        except Exception:
            if not session.faults:
                raise
    return [*session.findings, *(fault.finding() for fault in session.faults)]


def _judged(report: Report, run: Run, mended: bool) -> list[Finding]:
    """The findings of the first schedule that has any."""
    for schedule in ("eager", *map(str, range(1, report.schedules + 1))):
        if findings := _delayed(report, run, mended, schedule):
            return findings
    return []


def _delayed(report: Report, run: Run, mended: bool, schedule: str) -> list[Finding]:
    """What the check ``races`` does: where a warp reads too early, another schedule in which that warp is late."""
    first = findings = _simulated(report, run, mended, schedule)
    late: list[int] = []
    while not any(one.kind in _ORDER for one in findings):
        early = next((one for one in findings if one.kind in _EARLY and one.where and one.where.warp is not None), None)
        if early is None or early.where is None or early.where.warp is None or early.where.warp in late:
            return first
        late.append(early.where.warp)
        findings = _simulated(report, run, mended, "late-" + "-".join(map(str, sorted(late))))
    return findings


def _lines(text: str) -> list[str]:
    return [linecache.getline(str(_HERE / name), int(number)).strip() for name, number in _PLACE.findall(text)]


def _told(finding: Finding) -> dict[str, Any]:
    at = finding.where.source if finding.where is not None else None
    place = f"{Path(at.file).name}:{at.line}" if at is not None else ""
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "message": finding.message,
        "hint": finding.hint,
        "lines": _lines(finding.message),
        "at": _lines(place),
    }


def main() -> None:
    """Run what the command line names, or everything."""
    os.environ.update(redirect.environment(Path(sys.argv[1]), arch="sm_100a"))
    from .catalogue import LAUNCHES

    for report in REPORTS:
        if sys.argv[2:] and report.name not in sys.argv[2:]:
            continue
        for mended in (False, True):
            said: dict[str, Any] = {"report": report.name, "mended": mended}
            try:
                said["findings"] = [_told(one) for one in _judged(report, LAUNCHES[report.name], mended)]
            except Exception:
                said["error"] = traceback.format_exc()
            print("TWIN " + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
