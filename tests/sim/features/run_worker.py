"""Runs of the worker that simulates features."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect

ROOT = Path(redirect.__file__).parents[2]
MARK = "FEATURE "
LIMIT_S = 1800


def run_worker(names: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """What the worker says of each feature; one that ends the process is reported and the rest go on in another."""
    said: dict[str, dict[str, Any]] = {}
    while remaining := [name for name in names if name not in said]:
        dump = folder / f"dump-{len(said)}"
        dump.mkdir()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        result = subprocess.run(
            [sys.executable, "-m", "tests.sim.features.worker", "--brief", "simulate", *remaining],
            cwd=ROOT,
            env={**os.environ, **redirect.environment(dump), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        lines = [json.loads(line.removeprefix(MARK)) for line in result.stdout.splitlines() if line.startswith(MARK)]
        if not lines:
            failed = f"the worker failed ({result.returncode}):\n{result.stdout}\n{result.stderr}"
            return said | {name: {"error": failed} for name in remaining}
        for line in lines:
            if line.pop("began", False):
                ended = (
                    f"the worker ended here ({result.returncode}):\n{result.stdout[-1000:]}\n{result.stderr[-2000:]}"
                )
                said[line["name"]] = {"error": ended}
            else:
                said[line["name"]] = line
    return said
