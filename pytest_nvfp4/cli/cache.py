"""``nvfp4 cache``: the folder of cached traces and results."""

from __future__ import annotations

import click

from pytest_nvfp4.cli import environments
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.output import size_text
from pytest_nvfp4.report.document import Document, Facts
from pytest_nvfp4.text import plural
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.cache_contents import clear_results, clear_traces, survey
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove all traces and simulator results, but no environments.")
@click.option("--environments", "clear_environments", is_flag=True, help="With --clear: remove environments too.")
@document_options()
def cache_command(*, clear: bool, clear_environments: bool) -> Document:
    """Show the cache folder, and the number and size of its traces, simulator results and environments.

    Traces are found by the content of their inputs, so that clearing the cache costs time only. NVFP4_CACHE_DIR chooses
    the folder.
    """
    if clear_environments and not clear:
        raise click.UsageError("--environments needs --clear")
    root = TraceCache().root
    removed = removed_results = removed_environments = 0
    if clear:
        removed = clear_traces(root)
        removed_results = clear_results(root)
        if clear_environments:
            removed_environments = environments.clear(root)
    contents = survey(root)
    gone = plural(removed, "trace"), plural(removed_results, "result"), plural(removed_environments, "environment")
    names = f" ({', '.join(contents.environments)})" if contents.environments else ""
    facts = Facts(
        [
            ("folder", str(root)),
            *([("removed", ", ".join(gone))] if clear else []),
            ("traces", f"{contents.traces}, {size_text(contents.trace_bytes)}"),
            ("results", f"{contents.results}, {size_text(contents.result_bytes)}"),
            ("environments", f"{len(contents.environments)}, {size_text(contents.environment_bytes)}{names}"),
        ]
    )
    data = {
        "folder": str(root),
        "variable": CACHE_VARIABLE,
        "traces": contents.traces,
        "trace_bytes": contents.trace_bytes,
        "results": contents.results,
        "result_bytes": contents.result_bytes,
        "environments": list(contents.environments),
        "environment_bytes": contents.environment_bytes,
        "removed": removed,
        "removed_results": removed_results,
        "removed_environments": removed_environments,
    }
    return Document("The cache", [facts], data)
