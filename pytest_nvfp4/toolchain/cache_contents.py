"""Contents of the cache folder: count and remove traces and results."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

ENVIRONMENTS = "environments"
"""Folder of environments with other versions of the DSL."""
_RESULTS = ("verdicts", "simulations", "races-*", "rings*", "launches*", "verdicts-*")
"""Folders of the simulator's results. Results of a remote are not among them, since they cost money."""


@dataclass(frozen=True, slots=True)
class CacheContents:
    """Contents of a cache folder; sizes are bytes on disk, with files of several names counted once.

    Attributes:
        traces: Number of traces.
        trace_bytes: Size of the traces with their artifacts.
        results: Number of simulated cases with a cached result.
        result_bytes: Size of these results.
        environments: Names of the environments of other DSL versions.
        environment_bytes: Size of the environments.
    """

    traces: int
    trace_bytes: int
    results: int
    result_bytes: int
    environments: tuple[str, ...]
    environment_bytes: int


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; files of several names count once, and links are not followed."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(Path(place) / name)
            except OSError:
                continue
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                total += stat.st_size
    return total


def survey(root: Path) -> CacheContents:
    """Return the contents of a cache folder."""
    folder = root / ENVIRONMENTS
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    files = result_files(root)
    return CacheContents(
        traces=sum(1 for _ in (root / "traces").glob("??/*/trace.json")),
        trace_bytes=folder_bytes(root / "traces"),
        results=len(files),
        result_bytes=sum(path.stat().st_size for path in files if path.exists()),
        environments=tuple(name for name in names if not name.startswith(".")),
        environment_bytes=folder_bytes(folder) if folder.is_dir() else 0,
    )


def clear_traces(root: Path) -> int:
    """Remove every trace that no process is writing, and return their number."""
    removed = 0
    for entry in list((root / "traces").glob("??/*")):
        try:
            with FileLock(root / "locks" / f"{entry.name}.lock", timeout=0):
                aside = entry.with_name(f"{entry.name}.{os.getpid()}.old")
                entry.rename(aside)  # atomic: no reader sees a trace without some of its files
                shutil.rmtree(aside, ignore_errors=True)
                removed += 1
        except (Timeout, OSError):
            continue
    return removed


def result_files(root: Path) -> list[Path]:
    """Return the cached results of the simulator, one file for each case."""
    return [path for pattern in _RESULTS for folder in root.glob(pattern) for path in folder.glob("??/*.json")]


def clear_results(root: Path) -> int:
    """Remove the cached results of the simulator, and return their number."""
    removed = 0
    for path in result_files(root):
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    return removed
