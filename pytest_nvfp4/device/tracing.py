"""Traces that another machine makes, for those where the DSL is not installed: the job ``trace``, on both sides."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.toolchain import trace_archive
from pytest_nvfp4.toolchain.cache import TraceCache, content_key
from pytest_nvfp4.toolchain.events import Events
from pytest_nvfp4.toolchain.request import Entry, TraceRequest
from pytest_nvfp4.toolchain.trace import Trace
from pytest_nvfp4.toolchain.tracer import Limits, Tracer

_FAMILY = "gpumode"
"""Input family of the case of a job; no input is made for a trace."""


def run_trace(job: Job, folder: Path) -> Result:
    """Compile the kernel of a job behind the wall of every compile, and return the archive of its trace.

    Args:
        job: The job.
        folder: A new, empty folder.
    """
    spec = job.kernel
    assert spec is not None
    sources = (folder / "source").resolve()
    for file in spec.files:
        path = sources / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
    file_name, _, function = (spec.entry or "").rpartition("::")
    request = TraceRequest(
        kernel=sources / spec.main,
        problem=job.cases[0].problem.problem(),
        entry=Entry(sources / file_name, function) if spec.entry else None,
        arch=spec.arch,
        options=spec.compile_options,
        roots=(sources,),
        readable=spec.readable,
        network=spec.network,
    )
    limits = Limits(deadline_s=job.deadline_s)
    trace = Tracer(root=sources, cache=TraceCache(folder / "cache"), limits=limits).trace(request)
    data = trace_archive.pack(trace, base=sources)
    return Result(job=job.id, status="passed", trace=Blob.inlined(data), wall_s=trace.seconds)


class RemoteTracer(Tracer):
    """Maker of traces on another machine, with the cache of this one.

    Args:
        device: Device of the other machine.
        scope: What its traces depend on besides the kernel: the remote and its environment.
        root, cache, limits, session, fresh, notify: See ``Tracer``.
    """

    def __init__(
        self,
        device: Device,
        *,
        scope: str,
        root: Path,
        cache: TraceCache | None = None,
        limits: Limits | None = None,
        session: str | None = None,
        fresh: bool = False,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(root=root, cache=cache, limits=limits, session=session, fresh=fresh, notify=notify)
        self._device = device
        self._scope = scope

    def _key(self, request: TraceRequest) -> str:
        return content_key({"here": super()._key(request), "there": self._scope})

    def _make(self, request: TraceRequest, key: str) -> Trace:
        entry = request.entry
        try:
            spec, base = KernelSpec.from_files(
                request.kernel,
                roots=(self._root,),
                arch=request.arch,
                entry=entry.function if entry else None,
                entry_file=entry.file if entry else None,
                compile_options=request.options,
                readable=request.readable,
                network=request.network,
            )
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            return self._not_made(request, f"a file of the kernel cannot be read: {error}")
        job = Job(
            id=f"trace-{uuid.uuid4().hex[:12]}",
            action="trace",
            kernel=spec,
            cases=(JobCase(problem=ProblemSpec.of(request.problem), family=_FAMILY),),
            deadline_s=self._limits.deadline_s,
        )
        with self._cache.building() as build:
            result = self._device.run(job, folder=build, base=base)
            source = f"the trace of {request.kernel.name} from {self._device.name}"
            if result.trace is None:
                return self._not_made(request, result.reason)
            (artifacts := build / "artifacts").mkdir()
            try:
                data = result.trace.read(build, source=source, most=trace_archive.MOST_BYTES, exact=False)
                made = trace_archive.unpack(data, source=source, base=base, into=artifacts)
            except DoorError as error:
                return self._not_made(request, f"{error}: the answer is refused")
            return self._cache.store(key, _of_request(made, request, session=self._session), artifacts)

    def _not_made(self, request: TraceRequest, why: str) -> Trace:
        finding = Finding("environment", f"{request.kernel.name} was not compiled on another machine: {why}")
        return self._trace(request, Events(findings=[finding]), ok=False)


def _of_request(trace: Trace, request: TraceRequest, *, session: str | None) -> Trace:
    """Return a trace as that of a request: what the other machine says about the request does not count."""
    update = {
        "kernel": str(request.kernel),
        "entry": str(request.entry) if request.entry else None,
        "problem": request.problem.name,
        "problem_sizes": tuple(request.problem.sizes),
        "arch": request.arch,
        "options": request.options,
        "ok": trace.ok and not trace.errors,
        "session": session,
    }
    return trace.model_copy(update=update)
