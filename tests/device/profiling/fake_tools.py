"""Stand-ins of ncu, nsys and compute-sanitizer that start the command after their options and write what is planned."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """#!{python}
import json, os, pathlib, subprocess, sys
arguments = sys.argv[1:]
plan = json.loads(pathlib.Path({plan!r}).read_text())
try:
    with open({calls!r}, "a") as file:
        file.write(json.dumps(arguments) + "\\n")
except OSError:
    pass  # an export runs behind a wall
if arguments == ["--version"]:
    print("Version " + plan["version"])
    sys.exit(plan["version_status"])
def option(*names):
    return next((arguments[at + 1] for at, text in enumerate(arguments[:-1]) if text in names), None)
if option("--import"):
    sys.stdout.write(plan["pages"][option("--page")])
    sys.exit(0)
if arguments[0] == "export":
    pathlib.Path(option("--output")).write_bytes(bytes.fromhex(plan["database"]))
    sys.exit(0)
start = next(at for at, text in enumerate(arguments) if text == {python!r} or text.endswith("python"))
few = "LaunchStats" in arguments[:start] and "--metrics" not in arguments
key = "nvtx" if option("--trace") == "nvtx" else "few" if few else "full"
step = plan["steps"].get(key) or plan["steps"]["full"]
status = 0
if step["runs"]:
    status = subprocess.run(arguments[start:], close_fds=False).returncode
report = option("--export", "--output", "--save")
if step["report"] is not None:
    pathlib.Path(report).write_bytes(bytes.fromhex(step["report"]))
log = option("--log-file")
if log:
    pathlib.Path(log).write_text(step["log"])
else:
    sys.stderr.write(step["log"])
sys.exit(status or step["status"])
"""


@dataclass(frozen=True)
class Step:
    """What a tool does in one kind of attempt: whether it starts the worker, its report, log and exit status."""

    runs: bool = True
    report: bytes | None = b"report"
    log: str = ""
    status: int = 0


def install(
    folder: Path,
    name: str,
    *,
    full: Step,
    few: Step | None = None,
    nvtx: Step | None = None,
    version: str = "2025.4.0.0",
    version_status: int = 0,
    pages: dict[str, str] | None = None,
    database: bytes = b"database",
) -> Path:
    """Write a program called ``name`` into a folder; return the file of its calls.

    Args:
        full: What it does with everything.
        few: What ncu does if it collects what a launch is.
        nvtx: What nsys does without CUDA events.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps = {"full": full, "few": few, "nvtx": nvtx}
    plan = {
        "version": version,
        "version_status": version_status,
        "steps": {
            key: None
            if step is None
            else {
                "runs": step.runs,
                "report": None if step.report is None else step.report.hex(),
                "log": step.log,
                "status": step.status,
            }
            for key, step in steps.items()
        },
        "pages": {"raw": "", "details": "", **(pages or {})},
        "database": database.hex(),
    }
    file, calls = folder / f"{name}.json", folder / f"{name}.calls"
    file.write_text(json.dumps(plan))
    program = folder / name
    program.write_text(PROGRAM.format(python=sys.executable, plan=str(file), calls=str(calls)))
    program.chmod(0o755)
    return calls
