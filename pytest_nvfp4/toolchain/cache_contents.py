"""Contents of the cache folder: count and remove traces and results."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_nvfp4.toolchain.cache import BUILDERS, LOCKS, PROGRAMS, RESULTS, TRACES
from pytest_nvfp4.toolchain.sealed_files import sealed_folder

ENVIRONMENTS = "environments"
"""Folder of environments with other versions of the DSL."""
_FORMER = (
    *("traces", "builds", "locks", "far-end", "verdicts", "verdicts-*", "simulations"),
    *("races-*", "rings", "rings-*", "launches", "launches-*"),
)
"""Folders of earlier versions, whose entries have no seals. Results of a remote stay, since they cost money."""


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
    folder, traces = root / ENVIRONMENTS, sealed_folder(root) / TRACES
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    files = result_files(root)
    return CacheContents(
        traces=sum(1 for _ in traces.glob("??/*/trace.json")),
        trace_bytes=folder_bytes(traces),
        results=len(files),
        result_bytes=sum(path.stat().st_size for path in files if path.exists()),
        environments=tuple(name for name in names if not name.startswith(".")),
        environment_bytes=folder_bytes(folder) if folder.is_dir() else 0,
    )


def clear_traces(root: Path) -> int:
    """Remove every trace that no process is writing, and return their number; those of earlier versions go too."""
    removed = 0
    for former in (place for pattern in _FORMER for place in root.glob(pattern)):
        shutil.rmtree(former, ignore_errors=True)
    sealed = sealed_folder(root)
    for folder in (BUILDERS, PROGRAMS):
        shutil.rmtree(sealed / folder, ignore_errors=True)
    (sealed / LOCKS).mkdir(parents=True, exist_ok=True)
    for entry in list((sealed / TRACES).glob("??/*")):
        try:
            with FileLock(sealed / LOCKS / f"{entry.name}.lock", timeout=0):
                aside = entry.with_name(f"{entry.name}.{os.getpid()}.old")
                entry.rename(aside)  # atomic: no reader sees a trace without some of its files
                shutil.rmtree(aside, ignore_errors=True)
                removed += 1
        except (Timeout, OSError):
            continue
    return removed


def result_files(root: Path) -> list[Path]:
    """Return the cached results of the simulator, one file for each case."""
    return list((sealed_folder(root) / RESULTS).glob("*/??/*.json"))


def clear_results(root: Path) -> int:
    """Remove the cached results of the simulator, and return their number."""
    removed = 0
    for path in result_files(root):
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    return removed
