"""Debug bundle of a failed compile: one folder with everything needed to reproduce it elsewhere."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.temporary import name_beside, remove_unfinished
from pytest_nvfp4.toolchain.request import TraceRequest

BUNDLE_FOLDER = ".nvfp4/bundles"


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        ignore = folder.parent / ".gitignore"
        if folder.parent.name == ".nvfp4" and not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="nvfp4-bundle-"))


def write(
    root: Path,
    *,
    name: str,
    request: TraceRequest,
    outcome: Outcome,
    findings: list[Finding],
    environ: Mapping[str, str],
    artifacts: Path,
) -> Path:
    """Write the bundle below ``root`` (or a temporary folder if ``root`` is not writable) and return its folder.

    It contains ``summary.json`` (findings, end of the process, versions, problem, options), ``environment.json``,
    ``stdout.txt``, ``stderr.txt``, the kernel's source, and the IR, PTX and CUBIN written so far. A bundle of the same
    name is replaced.
    """
    folder = _writable(root / BUNDLE_FOLDER) / name
    remove_unfinished(folder.parent)
    build = name_beside(folder)
    build.mkdir(parents=True)
    summary = {
        "kernel": str(request.kernel),
        "entry": str(request.entry) if request.entry else None,
        "problem": {"name": request.problem.name, "sizes": request.problem.sizes, "seed": request.problem.seed},
        "arch": request.arch,
        "options": list(request.options),
        "dsl_version": request.toolchain.dsl_version,
        "python": request.toolchain.python_version,
        "platform": platform.platform(),
        "process": {
            "end": outcome.describe_end(),
            "returncode": outcome.returncode,
            "timed_out": outcome.timed_out,
            "seconds": round(outcome.wall_s, 3),
        },
        "findings": [finding.to_dict() for finding in findings],
    }
    (build / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    (build / "environment.json").write_text(
        json.dumps(dict(sorted(environ.items())), indent=2) + "\n", encoding="utf-8"
    )
    (build / "stdout.txt").write_text(outcome.stdout.text, encoding="utf-8")
    (build / "stderr.txt").write_text(outcome.stderr.text, encoding="utf-8")
    for path in (request.kernel, *([request.entry.file] if request.entry else [])):
        if path.is_file():
            shutil.copyfile(path, build / path.name)
    if artifacts.is_dir():
        for path in sorted(artifacts.iterdir()):
            if path.is_file():
                shutil.copyfile(path, build / path.name)
    shutil.rmtree(folder, ignore_errors=True)
    build.rename(folder)
    return folder
