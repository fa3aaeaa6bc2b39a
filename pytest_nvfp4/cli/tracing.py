"""Traces of kernels for commands, from the cache or by a compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.options import Function, KernelOptions, kernel_options
from pytest_nvfp4.cli.subject import Subject, findings_text, resolve
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.sealed_files import refused_lines
from pytest_nvfp4.toolchain.trace import Trace, Value
from pytest_nvfp4.toolchain.tracer import Limits, Tracer


@dataclass(frozen=True)
class Traced:
    """A kernel with the trace of its compile."""

    subject: Subject
    trace: Trace

    @property
    def header(self) -> dict[str, str]:
        """Header of the trace's listing, as in the plugin's snapshots; independent of this machine."""
        shown = {
            "kernel": self.subject.relative(self.trace.kernel),
            "problem": self.trace.problem,
            "arch": self.trace.arch,
            "entry": self.trace.entry or "",
            "options": " ".join(self.trace.options),
            "dsl": self.trace.dsl_version,
        }
        return {key: text for key, value in shown.items() if (text := " ".join(value.split()))}

    @property
    def listing(self) -> Listing:
        """Every named layout of the trace."""
        return listing_of(self.trace.values, self.header)

    @property
    def places(self) -> Mapping[str, Value]:
        """Captured values by name, with the place where each name was bound."""
        return {_one_word(value.name): value for value in self.trace.values}

    def report_findings(self) -> None:
        """Write errors and warnings of the compile to standard error."""
        if self.trace.findings:
            what = "compiled with warnings" if self.trace.ok else "did not compile"
            output.note(f"{self.subject.description} {what}\n{findings_text(self.trace, self.subject)}")

    def to_json(self) -> dict[str, object]:
        """Return kernel, settings, versions and result of the compile as JSON-ready values."""
        return {
            "kernel": self.subject.relative(self.trace.kernel),
            "config": self.subject.settings.name,
            "entry": self.trace.entry,
            "problem": self.trace.problem,
            "sizes": [list(size) for size in self.trace.problem_sizes],
            "arch": self.trace.arch,
            "options": list(self.trace.options),
            "dsl": self.trace.dsl_version,
            "python": self.trace.python,
            "ok": self.trace.ok,
            "findings": [
                {**finding.to_dict(), "file": finding.file and self.subject.relative(finding.file)}
                for finding in self.trace.findings
            ],
        }


def _one_word(name: str) -> str:
    """Return a name without white space, which a listing cannot hold; keys of dictionaries may have some."""
    return "".join(name.split()) or "?"


def listing_of(values: tuple[Value, ...], header: Mapping[str, str]) -> Listing:
    """Return the listing of captured values."""
    return Listing.from_pairs(header, [(_one_word(value.name), value.type) for value in values])


def traced_kernel(function: Function) -> Function:
    """Add KERNEL and the options of its compile; the function receives its trace as ``traced``."""

    @click.argument("kernel", type=click.Path(path_type=Path))
    @kernel_options
    @wraps(function)
    def call(*args: Any, kernel: Path, how: KernelOptions, **kwargs: Any) -> Any:
        traced = trace(resolve(kernel, how))
        traced.report_findings()
        return function(*args, traced=traced, **kwargs)

    return call


def trace(subject: Subject, *, cache: Path | None = None) -> Traced:
    """Return the trace of a kernel, from the cache or by a compile, whose progress goes to standard error."""
    traces = TraceCache(cache)
    tracer = Tracer(root=subject.root, cache=traces, limits=Limits(deadline_s=subject.timeout_s))
    known = tracer.cached(subject.request)
    for line in refused_lines(traces.sealed.refused):
        output.note(line)
    if known is not None:
        return Traced(subject, known)
    with output.working(f"compiling {subject.description} with CuTe DSL {subject.request.toolchain.dsl_version}"):
        return Traced(subject, tracer.trace(subject.request))
