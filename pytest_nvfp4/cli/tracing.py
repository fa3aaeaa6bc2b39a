"""Make the trace of a kernel for a command, and read it as a listing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.subject import Subject, findings_text
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.trace import Trace, Value
from pytest_nvfp4.toolchain.tracer import Limits, Tracer


@dataclass(frozen=True)
class Traced:
    """A kernel and what its compile showed."""

    subject: Subject
    trace: Trace

    @property
    def header(self) -> dict[str, str]:
        """What a listing of this trace says about itself, as the plugin's snapshots do; nothing of this machine."""
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
        """Where each name of the trace was bound."""
        return {_one_word(value.name): value for value in self.trace.values}

    def report_findings(self) -> None:
        """Say on standard error what the compile complained of; nothing if it did not."""
        if self.trace.findings:
            what = "compiled with warnings" if self.trace.ok else "did not compile"
            output.note(f"{self.subject.description} {what}\n{findings_text(self.trace, self.subject)}")

    def to_json(self) -> dict[str, object]:
        """The trace's identity as JSON-ready values: what was compiled, with what, and how it went."""
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
    """A name as a listing can hold it: a dictionary's key may have blanks in it."""
    return "".join(name.split()) or "?"


def listing_of(values: tuple[Value, ...], header: Mapping[str, str]) -> Listing:
    """The listing of captured values."""
    return Listing.from_pairs(header, [(_one_word(value.name), value.type) for value in values])


def trace(subject: Subject, *, cache: Path | None = None) -> Traced:
    """The trace of a kernel, from the cache or made now; what takes time is said on standard error."""
    tracer = Tracer(
        root=subject.root,
        cache=TraceCache(cache) if cache else None,
        limits=Limits(deadline_s=subject.timeout_s),
    )
    known = tracer.cached(subject.request)
    if known is not None:
        return Traced(subject, known)
    with output.working(f"compiling {subject.description} with CuTe DSL {subject.request.toolchain.dsl_version}"):
        return Traced(subject, tracer.trace(subject.request))
