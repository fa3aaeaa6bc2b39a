"""The table of the guide's page ``reported``: ``python -m tests.reported.page`` runs the twins and writes it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.reported.reports import REPORTS, Report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "pytest_nvfp4" / "guide" / "reported.md"
HEAD = "| report | what was seen | defect of the twin | our finding |\n|---|---|---|---|\n"
Found = Mapping[tuple[str, bool], Sequence[Mapping[str, Any]]]


def run(folder: Path) -> Found:
    """Run every twin as it is and mended. Return the findings by report and whether it is mended."""
    command = [sys.executable, "-m", "tests.reported.worker", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("TWIN ")]
    errors = {one["report"]: one["error"] for one in told if "error" in one}
    assert errors == {}
    return {(one["report"], one["mended"]): one["findings"] for one in told}


def first_line(finding: Mapping[str, Any]) -> str:
    """What a finding says before it says why, without addresses."""
    said = re.sub(r" \((?:of '[^']*', )?address 0x[0-9a-f]+, initialised at [^`]*`[^`]*`\)", "", finding["message"])
    said = re.sub(r", kernel_\w+(?=[, ])", "", said)
    said = re.split(r": (?=[a-z])|; ", said)[0]
    return f"**{finding['kind']}**: {said}"


def link(report: Report) -> str:
    """The report's number as a link."""
    repository, _, number = report.name.partition("#")
    return f"[{repository.rpartition('/')[2]} #{number}](https://github.com/{repository}/issues/{number.split(',')[0]})"


def row(report: Report, findings: Sequence[Mapping[str, Any]]) -> str:
    """The row of a report."""
    asked = ["`--nvfp4-race-warnings`"] * report.warnings
    asked += [f"`--nvfp4-schedules={report.schedules}`"] * bool(report.schedules)
    found = first_line(findings[0]) if findings else f"nothing: {report.why_not}"
    cells = (link(report), report.seen, report.defect, found + "".join(f" ({option})" for option in asked))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(found: Found) -> str:
    """The table of all reports."""
    return HEAD + "".join(row(report, found[report.name, False]) for report in REPORTS)


def table_of(text: str) -> str:
    """The table that a page has now."""
    start = text.index(HEAD)
    return text[start : text.index("\n\n", start) + 1]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        page = PAGE.read_text()
        PAGE.write_text(page.replace(table_of(page), table(run(Path(folder)))))
