"""``nvfp4 cache``: where traces are kept, and how many."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
from filelock import FileLock, Timeout

from pytest_nvfp4.cli import environments, output
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.text import plural, visible
from pytest_nvfp4.toolchain.cache import CACHE_VARIABLE, TraceCache


@dataclass(frozen=True, slots=True)
class Content:
    """What a cache folder holds. Sizes in bytes of disk, without what several files share.

    Attributes:
        traces: Number of traces.
        trace_bytes: Their size with their artifacts.
        environments: Names of the environments that ``nvfp4 upgrade`` made.
        environment_bytes: Their size.
    """

    traces: int
    trace_bytes: int
    environments: tuple[str, ...]
    environment_bytes: int


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below a folder, a file with several names counted once; links are not followed."""
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


def survey(root: Path) -> Content:
    """Count what a cache folder holds."""
    folder = root / environments.FOLDER
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return Content(
        traces=sum(1 for _ in (root / "traces").glob("??/*/trace.json")),
        trace_bytes=folder_bytes(root / "traces"),
        environments=tuple(name for name in names if not name.startswith(".")),
        environment_bytes=folder_bytes(folder) if folder.is_dir() else 0,
    )


def clear_traces(root: Path) -> int:
    """Remove every trace that nobody is making at this moment; their number."""
    removed = 0
    for entry in list((root / "traces").glob("??/*")):
        try:
            with FileLock(root / "locks" / f"{entry.name}.lock", timeout=0):
                aside = entry.with_name(f"{entry.name}.{os.getpid()}.old")
                entry.rename(aside)  # so that no reader sees half of it
                shutil.rmtree(aside, ignore_errors=True)
                removed += 1
        except (Timeout, OSError):
            continue
    return removed


_RESULTS = ("verdicts", "simulations", "races-*")
"""Folders of what the simulator is known to say; answers of a remote, which were paid for, are not among them."""


def results(root: Path) -> list[Path]:
    """The files that say what kernels did in the simulator, one a case."""
    return [path for pattern in _RESULTS for folder in root.glob(pattern) for path in folder.glob("??/*.json")]


def _bytes_of(paths: list[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def clear_results(root: Path) -> int:
    """Forget what kernels did in the simulator; of how many cases."""
    removed = 0
    for path in results(root):
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    return removed


@click.command("cache")
@click.option(
    "--clear",
    is_flag=True,
    help="Remove every trace and what is known of the simulator's results. Environments of other DSL versions stay.",
)
@click.option("--environments", "clear_environments", is_flag=True, help="With --clear: remove the environments too.")
@json_option
def cache_command(clear: bool, clear_environments: bool, as_json: bool) -> None:
    """Where traces and the simulator's results are kept, how many there are, and their size.

    A trace is found again by the content of what went into it, so clearing the cache costs time and nothing else. The
    folder is chosen by NVFP4_CACHE_DIR.
    """
    if clear_environments and not clear:
        raise click.UsageError("--environments goes with --clear")
    root = TraceCache().root
    removed = removed_environments = removed_results = 0
    if clear:
        (root / "locks").mkdir(exist_ok=True)
        removed = clear_traces(root)
        removed_results = clear_results(root)
        if clear_environments:
            removed_environments = environments.clear(root)
    content, known = survey(root), results(root)
    if as_json:
        output.write_json(
            {
                "folder": str(root),
                "variable": CACHE_VARIABLE,
                "traces": content.traces,
                "trace_bytes": content.trace_bytes,
                "results": len(known),
                "result_bytes": _bytes_of(known),
                "environments": list(content.environments),
                "environment_bytes": content.environment_bytes,
                "removed": removed,
                "removed_results": removed_results,
                "removed_environments": removed_environments,
            }
        )
        return
    output.write(f"folder        {visible(str(root))}")
    if clear:
        gone = plural(removed, "trace"), plural(removed_results, "result"), plural(removed_environments, "environment")
        output.write(f"removed       {', '.join(gone)}")
    output.write(f"traces        {content.traces}, {output.size_text(content.trace_bytes)}")
    output.write(f"results       {len(known)}, {output.size_text(_bytes_of(known))}")
    names = f" ({', '.join(content.environments)})" if content.environments else ""
    output.write(
        f"environments  {len(content.environments)}, {output.size_text(content.environment_bytes)}{visible(names)}"
    )
