"""Runs of emitted snippets in the simulator, and what they must give."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, problems: list[Any], sources: Sequence[str]) -> Any:
    """What each CTA was given by each source, by the worker."""
    asked, dump = tmp_path / "problems.json", tmp_path / "dump"
    asked.write_text(json.dumps(problems))
    dump.mkdir()
    snippets = [tmp_path / f"emitted{number}.py" for number in range(len(sources))]
    for snippet, source in zip(snippets, sources, strict=True):
        snippet.write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.snippet_worker", str(asked), *map(str, snippets)],
        cwd=ROOT,
        env={**os.environ, **redirect.environment(dump), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("EMITTED "))
    return json.loads(line.removeprefix("EMITTED "))


def expected(problem: list[list[int]], *, tile_m: int, tile_n: int, n_major: bool) -> list[list[int]]:
    found = []
    for group, (m, n, _) in enumerate(problem):
        tiles = itertools.product(range(0, n, tile_n), range(0, m, tile_m))
        order = [(x // tile_m, y // tile_n) for y, x in tiles]
        found += [[group, x, y, 1] for x, y in (sorted(order) if n_major else order)]
    return found
