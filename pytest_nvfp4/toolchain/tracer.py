"""Trace kernels: from the cache, or in a worker process that compiles them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_nvfp4 import isolation
from pytest_nvfp4.activity import ACTIVITIES
from pytest_nvfp4.contracts.signature import signature_json
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host import compile_cache, dumps, redirect
from pytest_nvfp4.isolation import Outcome, blas
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import purge
from pytest_nvfp4.isolation.environment import NO_GPU, UNATTENDED, scrubbed
from pytest_nvfp4.isolation.launcher import PACKAGE, worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.toolchain import artifacts, binaries, bundle, bytecode, diagnosis
from pytest_nvfp4.toolchain.cache import TraceCache, content_key, file_hash, take_files
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE
from pytest_nvfp4.toolchain.code_hash import ASKING, code_hash, parts_without
from pytest_nvfp4.toolchain.events import Events
from pytest_nvfp4.toolchain.other_inputs import other_inputs
from pytest_nvfp4.toolchain.own_files import (
    calls_extension,
    extension_sources,
    imported_sources,
    own_files,
    user_entries,
)
from pytest_nvfp4.toolchain.preload import PRELOAD
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.surroundings import surroundings
from pytest_nvfp4.toolchain.trace import SCHEMA, Artifact, Code, Trace
from pytest_nvfp4.toolchain.worker.contract import uses_torch

_WORKER = "pytest_nvfp4.toolchain.worker.__main__"
_MAX_LAUNCHES = 1000
_SOURCE_BYTES = 64 << 20
_ARTIFACT_BYTES = 256 << 20
"""Largest size of all PTX, CUBIN and IR of a compile that are read and stored."""
_DUMPED = re.compile(r"[^/]+\.(?:ptx|cubin|mlir)", re.DOTALL)
"""Names of the files that the DSL writes: those of its functions."""
_BUILD_S = 1800.0
"""Seconds beside the deadline of a compile in which an extension of torch may be built: its headers take minutes."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def builds_extension(request: TraceRequest) -> bool:
    """Return whether a kernel, or its entry, builds an extension of torch, as far as its source shows."""
    return any(map(calls_extension, (request.kernel, *([request.entry.file] if request.entry else []))))


def building(kernel: str) -> str:
    """Return the message about a kernel whose extension is about to be built."""
    return (
        f"building the C++ and CUDA extension of {kernel}, a minute or more with torch's headers; it is kept until its "
        "sources, a header or a compiler change"
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a worker; the defaults far exceed the needs of a compile."""

    deadline_s: float = 300.0
    memory_bytes: int = 12 << 30
    file_bytes: int = 4 << 30
    output_bytes: int = 1 << 20


_DISTRIBUTIONS = ("numpy", "torch", "triton", "nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump")


@lru_cache(maxsize=1)
def _own_hash() -> str:
    """Return the hash of the tracing code, so that traces of other versions are not used."""
    return code_hash(parts_without(*ASKING, "sim", "device", "schedules.py"))


def cache_key(request: TraceRequest) -> str:
    """Return the cache key of a request, which depends on contents only."""
    return content_key({**_kernel_parts(request), "problem": [request.problem.name, request.problem.key]})


def _builder_key(request: TraceRequest) -> str:
    """Return the key of the extensions of a kernel: its traces for all problems have it in common."""
    files = (request.kernel, *([request.entry.file] if request.entry else []))
    sources = {str(path): file_hash(path) for path in extension_sources(files)}
    return content_key({**_kernel_parts(request), "sources": sources})


def _kernel_parts(request: TraceRequest) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "own": _own_hash(),
        "kernel": str(request.kernel),
        "source": file_hash(request.kernel),
        "entry": [str(request.entry.file), request.entry.function, file_hash(request.entry.file)]
        if request.entry
        else None,
        "arch": request.arch,
        "options": request.options,
        "roots": [str(root) for root in request.all_roots],
        "capture": request.capture,
        "may": [request.readable, request.network],
        "dsl": request.toolchain.dsl_version,
        "python": request.toolchain.python_version,
        "interpreter": str(request.toolchain.python),
        "surroundings": surroundings(_DISTRIBUTIONS),
        "tools": [str(binaries.find(tool)) for tool in ("nvdisasm", "cuobjdump")],
    }


class Tracer:
    """Maker of traces with a cache.

    Args:
        root: The user's root folder, for debug bundles; its Python files belong to the user.
        cache: Cache of traces; None for the default.
        limits: Resource limits of a worker.
        session: Name of this test run; within it failed traces are reused too.
        fresh: Reuse no trace of another test run.
        notify: Gets a message before a step that takes long.
    """

    def __init__(
        self,
        *,
        root: Path,
        cache: TraceCache | None = None,
        limits: Limits | None = None,
        session: str | None = None,
        fresh: bool = False,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._notify = notify
        self._root = root.resolve()
        self._cache = cache or TraceCache()
        self._limits = limits or Limits()
        self._session = session
        self._fresh = fresh
        self._memory: dict[str, Trace] = {}

    def cached(self, request: TraceRequest) -> Trace | None:
        """Return the cached trace of a request, or None; nothing is compiled."""
        key = self._key(request)
        return self._memory.get(key) or self._load(key)

    def _key(self, request: TraceRequest) -> str:
        return cache_key(request)

    def _load(self, key: str) -> Trace | None:
        return self._cache.load(key, session=self._session, fresh=self._fresh)

    def copy_compiled(self, files: Mapping[str, str], *, arch: str, options: Sequence[str], into: Path) -> bool:
        """Copy the modules that this tracer compiled from some files for a worker; see `host.compile_cache`.

        Args:
            files: SHA-256 of each of the kernel's files by path; the dependencies of a matching trace are a subset.
            arch: Architecture of the compile.
            options: Compile options.
            into: The folder to copy to.

        Returns:
            Whether there are any.
        """
        matching = [
            self._cache.copy_compiled(key, compile_cache.folder_name(Path(trace.kernel)), into=into)
            for key, trace in list(self._memory.items())
            if trace.folder is not None
            and (trace.arch, trace.options) == (arch, tuple(options))
            and trace.dependencies.items() <= files.items()
        ]
        return any(matching)

    def trace(self, request: TraceRequest) -> Trace:
        """Return the trace of a request; a failed compile gives a trace with findings, never an exception."""
        key = self._key(request)
        if known := self._memory.get(key):
            return known
        trace = self._load(key)
        if trace is None and (finding := diagnosis.source_finding(request)) is not None:
            trace = self._trace(request, Events(findings=[finding]), ok=False)
        if trace is None:
            try:
                with self._cache.locked(key):
                    trace = self._load(key) or self._make(request, key)
            except OSError as error:
                if error.errno not in _DISK_FULL:
                    raise
                trace = self._disk_full(request, error)
        self._memory[key] = trace
        return trace

    def _disk_full(self, request: TraceRequest, error: OSError) -> Trace:
        """Return a failed trace for a full disk, which is not an error of the kernel."""
        message = (
            f"{request.kernel.name} was not compiled: the cache of traces {self._cache.root} cannot be written: "
            f"{error.strerror}; free disk space, or set another folder with --nvfp4-cache-dir or {CACHE_VARIABLE}"
        )
        return self._trace(request, Events(findings=[Finding("environment", message)]), ok=False)

    def _make(self, request: TraceRequest, key: str) -> Trace:
        builder = _builder_key(request) if builds_extension(request) else None
        doing = ACTIVITIES.doing(f"{request.kernel.name}: compile for {request.problem.name}")
        with self._cache.building() as build, doing, contextlib.ExitStack() as turn:
            written, folder, built = build / "job" / "artifacts", build / "taken", build / "built"
            scratch, job = build / "job" / "scratch", build / "job" / "job.json"
            for place in (written, scratch, folder, built):
                place.mkdir(parents=True)
            if builder is not None and self._copy_built(request, builder, built) is None:
                # Compiles for several problems begin at once: one builds the extension, and the others wait for it.
                turn.enter_context(self._cache.locked(builder))
                if self._copy_built(request, builder, built) is not None:
                    turn.close()
            builds = builder is not None and not any(built.iterdir())
            fields = self._job(request, written, built)
            job.write_text(json.dumps(fields), encoding="utf-8")
            environ = {
                **redirect.environment(written, arch=request.arch),
                **{f"{prefix}_KEEP_IR": "1" for prefix in dumps.DSL_PREFIXES},
                **NO_GPU,
                **blas.variables(),
                **UNATTENDED,
            }
            if builds:
                self._notify(building(request.kernel.name))
            bytecode.write_missing(request.toolchain.python)
            torch = uses_torch([Path(file) for file in fields["sources"]], entry=request.entry is not None)
            preload = PRELOAD if torch else ()
            outcome = isolation.run(
                worker(_WORKER, job, python=request.toolchain.python, preload=preload),
                cwd=scratch,
                # A kept extension may be another one than the kernel builds for this problem.
                deadline_s=self._limits.deadline_s + (_BUILD_S if builder is not None else 0.0),
                environ=environ,
                wall=self._wall(request, build / "job", built),
                output_bytes=self._limits.output_bytes,
            )
            trace = self._assemble(request, outcome, written, folder, scrubbed(os.environ, environ))
            if builder is None:
                return self._cache.store(key, trace, folder)
            self._copy_built(request, builder, folder / compile_cache.folder_name(request.kernel))
            trace = self._cache.store(key, trace, folder)
            self._cache.record_builder(builder, key)
            return trace

    def _copy_built(self, request: TraceRequest, builder: str, into: Path) -> int | None:
        """Copy the extensions of an earlier trace of the kernel, see `TraceCache.copy_built`."""
        folder = compile_cache.folder_name(request.kernel)
        return self._cache.copy_built(builder, folder, into=into, session=self._session, fresh=self._fresh)

    def _wall(self, request: TraceRequest, folder: Path, built: Path) -> Wall:
        own = own_files(
            request.kernel, request.entry.file if request.entry else None, roots=(self._root, *request.all_roots)
        )
        return Wall(
            folder=str(folder),
            readable=(*own.files, *request.readable, str(built)),
            network=request.network,
            listed=own.folders,
            memory_bytes=self._limits.memory_bytes,
            file_bytes=self._limits.file_bytes,
        )

    def _job(self, request: TraceRequest, folder: Path, built: Path) -> dict[str, Any]:
        entry = request.entry.file if request.entry else None
        return {
            "kernel": str(request.kernel),
            "entry": {"file": str(request.entry.file), "function": request.entry.function} if request.entry else None,
            "problem": {"name": request.problem.name, "sizes": request.problem.sizes, "seed": request.problem.seed},
            "call": None if request.entry and not request.calls else signature_json(request.problem),
            "arch": request.arch,
            "options": list(request.options),
            "roots": [str(root) for root in dict.fromkeys((self._root, *request.all_roots))],
            "sources": [str(file) for file in imported_sources(request.kernel, entry, roots=(self._root,))],
            "package": str(PACKAGE),
            "cache": str(self._cache.root),
            "artifacts": str(folder),
            "compiled": str(folder / compile_cache.folder_name(request.kernel)),
            "built": str(built),
            "capture": request.capture,
            "max_launches": _MAX_LAUNCHES,
        }

    def _assemble(
        self, request: TraceRequest, outcome: Outcome, written: Path, folder: Path, environ: dict[str, str]
    ) -> Trace:
        events = Events.parse(outcome.result or b"")
        if outcome.returncode != 0 or not (events.ended or events.refused):
            events.findings.append(diagnosis.ending(request, outcome, events.last_stage))
        elif events.kept is None and not events.refused:
            message = "the memory of the kernel's process was not compared with what it was before the kernel ran"
            events.findings.append(Finding("internal", message))
        elif events.kept is not None:
            events.findings[:0] = events.kept.findings()
        events.findings += self._refused(events, written, folder)
        functions = _functions((request.kernel, *map(Path, events.dependencies)))
        code, files, warnings = artifacts.collect(folder, functions, library=events.dsl_folder)
        events.findings += [*warnings, *diagnosis.poisoned(events.values)]
        if request.capture and not code and not any(finding.severity == "error" for finding in events.findings):
            events.findings.append(diagnosis.nothing_compiled(request))
        events.findings = [diagnosis.with_diagnostics(finding, outcome.stderr.text) for finding in events.findings]
        errors = [finding for finding in events.findings if finding.severity == "error"]
        place = None
        if errors:
            errors_name = f"{request.kernel.stem}-{request.problem.name}-{self._key(request)[:8]}"
            try:
                place = bundle.write(
                    self._root,
                    name=re.sub(r"[^\w.+-]", "_", errors_name)[:120],
                    request=request,
                    outcome=outcome,
                    findings=events.findings,
                    environ=environ,
                    artifacts=folder,
                )
            except OSError as error:  # the findings of the kernel matter more than the bundle
                message = f"the debug bundle cannot be written below {self._root}: {error.strerror}"
                events.findings.append(Finding("environment", message))
        return self._trace(request, events, ok=not errors, code=code, files=files, seconds=outcome.wall_s, place=place)

    @staticmethod
    def _refused(events: Events, written: Path, folder: Path) -> list[Finding]:
        """Copy what a worker wrote, and return a finding for each file that it names or leaves that is not read."""
        problems = [f"the artifact {problem}" for problem in purge(written, most=_ARTIFACT_BYTES)]
        try:
            take_files(written, folder, artifacts=_DUMPED)
        except DoorError as error:
            problems.append(str(error))
        named, events.dependencies = events.dependencies, []
        for name in named:
            if (problem := _dependency_problem(name)) is None:
                events.dependencies.append(name)
            else:
                problems.append(f"the dependency {name[:200]!r} {problem}")
        most = 5
        shown = problems[:most] + ([f"and {len(problems) - most} more"] if len(problems) > most else [])
        return [Finding("answer", f"{problem}: the answer is refused") for problem in shown]

    def _trace(
        self,
        request: TraceRequest,
        events: Events,
        *,
        ok: bool,
        code: tuple[Code, ...] = (),
        files: tuple[Artifact, ...] = (),
        seconds: float = 0.0,
        place: Path | None = None,
    ) -> Trace:
        known = {*events.dependencies, str(request.kernel), *([str(request.entry.file)] if request.entry else [])}
        known.update(map(str, extension_sources(map(Path, tuple(known)))))
        folders = [request.kernel.parent, *([request.entry.file.parent] if request.entry else [])]
        search = [*dict.fromkeys((*folders, self._root, *request.all_roots, *user_entries()))]
        return Trace(
            kernel=str(request.kernel),
            entry=str(request.entry) if request.entry else None,
            problem=request.problem.name,
            problem_sizes=tuple(request.problem.sizes),
            arch=request.arch,
            options=request.options,
            dsl_version=events.dsl_version or request.toolchain.dsl_version,
            python=request.toolchain.python_version,
            ok=ok,
            values=tuple(events.values),
            launches=tuple(events.launches),
            launch_count=events.launch_count,
            code=code,
            artifacts=files,
            findings=tuple(events.findings),
            dependencies={path: file_hash(Path(path)) for path in sorted(known)},
            others=other_inputs(events.read, known, search=search),
            stages=events.stages,
            seconds=round(seconds, 3),
            session=self._session,
            bundle=str(place) if place else None,
        )


def _dependency_problem(name: str) -> str | None:
    """Return why a file that a worker names cannot be a source file, as a predicate; None if it can, or is gone."""
    try:
        found = Path(name).stat()
    except OSError:
        return None
    except ValueError:
        return "has a name that no file can have"
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    return f"has {found.st_size} bytes" if found.st_size > _SOURCE_BYTES else None


def _functions(files: Iterable[Path]) -> list[str]:
    """Return the names of the functions that the user's files define."""
    sources = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
    return [name for source in sources for name in re.findall(r"^\s*def\s+(\w+)", source, re.MULTILINE)]
