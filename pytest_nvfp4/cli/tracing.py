"""Traces of kernels for commands, from the cache or by a compile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import Function, KernelOptions, kernel_options, remote_options
from pytest_nvfp4.cli.subject import Subject, findings_text, resolve
from pytest_nvfp4.cli.used_remote import used_remote
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.problem import Group, Problem, ProblemError
from pytest_nvfp4.settings import KernelSettings
from pytest_nvfp4.temporary import TemporaryFolder
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.sealed_files import refused_lines
from pytest_nvfp4.toolchain.trace import Trace, Value
from pytest_nvfp4.toolchain.trace_archive import MOST_BYTES, SUFFIX, unpack
from pytest_nvfp4.toolchain.tracer import Limits, Tracer

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device


@dataclass(frozen=True)
class Traced:
    """A kernel with the trace of its compile, and the remote that compiled it if one did."""

    subject: Subject
    trace: Trace
    remote: tuple[str, RemoteOptions] | None = None

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
    @click.option(
        "--remote",
        "spec",
        metavar="NAME",
        help="Compile on modal or ssh:HOST, for a machine without the DSL.",
    )
    @remote_options("max_cost", "deployed_app")
    @wraps(function)
    def call(
        *args: Any, kernel: Path, how: KernelOptions, spec: str | None, remote: RemoteOptions, **kwargs: Any
    ) -> Any:
        if kernel.suffix == SUFFIX:
            if spec is not None or how != KernelOptions():
                raise InputError(f"{kernel}: is the trace of a compile: leave out the options of a compile")
            traced = of_archive(kernel)
        elif spec is not None:
            traced = trace_remotely(resolve(kernel, how), spec, remote)
        else:
            traced = trace(resolve(kernel, how))
        traced.report_findings()
        return function(*args, traced=traced, **kwargs)

    return call


def trace_remotely(subject: Subject, spec: str, options: RemoteOptions) -> Traced:
    """Return the trace of a kernel, compiled on a remote. Raises InputError if the remote cannot be used."""
    from pytest_nvfp4.device.remote.base import RemoteError
    from pytest_nvfp4.device.tracing import RemoteTracer

    limits = Limits(deadline_s=subject.timeout_s)
    try:
        with remote_device(spec, options) as device, output.working(f"compiling {subject.description} on {spec}"):
            tracer = RemoteTracer(device, scope=spec, root=subject.root, limits=limits, fresh=True)
            made = tracer.trace(subject.request)
    except RemoteError as error:
        raise InputError(f"{spec}: {error}") from error
    return Traced(subject, made, (spec, options))


@contextlib.contextmanager
def remote_device(spec: str, options: RemoteOptions) -> Iterator[Device]:
    """Yield a remote's device for jobs that need no GPU; at the end, stop the remote and show the cost."""
    from pytest_nvfp4.device.remote.device import RemoteDevice
    from pytest_nvfp4.device.remote.session import RemoteSession

    with used_remote(spec, replace(options, simulates=True)) as chosen:
        session = RemoteSession(chosen, timeout_s=options.timeout_s, max_cost=options.max_cost)
        try:
            yield RemoteDevice(session, name=spec, gpu=options.gpu, simulates=True)
        finally:
            session.close()


def of_archive(path: Path) -> Traced:
    """Return the trace in an archive, which `nvfp4 trace` wrote. Raises InputError."""
    label = str(path)
    temporary = TemporaryFolder("archive")
    click.get_current_context().call_on_close(temporary.remove)
    artifacts = temporary.path / "artifacts"
    artifacts.mkdir()
    try:
        data = read_file(path, source=f"{label}:", most=MOST_BYTES)
        made = unpack(data, source=f"{label}:", base=path.resolve().parent, into=artifacts)
        problem = Problem(made.problem, tuple(Group(*size) for size in made.problem_sizes))
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror}") from error
    except DoorError as error:
        raise InputError(str(error)) from error
    except ProblemError as error:
        raise InputError(f"{label}: has no problem that can be: {error}") from error
    request = TraceRequest(Path(made.kernel), problem, arch=made.arch, options=made.options)
    return Traced(Subject(label, path.resolve().parent, KernelSettings(), request, timeout_s=0.0), made)


def trace(subject: Subject, *, cache: Path | None = None) -> Traced:
    """Return the trace of a kernel, from the cache or by a compile, whose progress goes to standard error."""
    traces = TraceCache(cache)
    tracer = Tracer(root=subject.root, cache=traces, limits=Limits(deadline_s=subject.timeout_s), notify=output.note)
    known = tracer.cached(subject.request)
    for line in refused_lines(traces.sealed.refused):
        output.note(line)
    if known is not None:
        return Traced(subject, known)
    with output.working(f"compiling {subject.description} with CuTe DSL {subject.request.toolchain.dsl_version}"):
        return Traced(subject, tracer.trace(subject.request))
