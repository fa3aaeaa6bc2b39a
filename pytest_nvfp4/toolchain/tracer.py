"""Make the trace of a kernel: from the cache, or by a worker process that compiles it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4 import isolation
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host import compile_cache, redirect
from pytest_nvfp4.isolation import Outcome, blas
from pytest_nvfp4.isolation.environment import NO_GPU, scrubbed
from pytest_nvfp4.toolchain import artifacts, bundle
from pytest_nvfp4.toolchain.cache import CACHE_VARIABLE, TraceCache, content_key, file_hash
from pytest_nvfp4.toolchain.launcher import PACKAGE, PRELOAD, worker
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, TraceRequest
from pytest_nvfp4.toolchain.source import KernelSource, read_source, syntax_problem
from pytest_nvfp4.toolchain.trace import FINDING, SCHEMA, Artifact, Code, LaunchFact, Trace, Value
from pytest_nvfp4.toolchain.worker.contract import uses_torch

_WORKER = "pytest_nvfp4.toolchain.worker.__main__"
_MAX_LAUNCHES = 1000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_DIAGNOSTIC = re.compile(r"^loc\(.*\): ((?:error|note): .*)$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use. The defaults are far above what a kernel's compile needs."""

    deadline_s: float = 300.0
    memory_bytes: int = 12 << 30
    file_bytes: int = 4 << 30
    output_bytes: int = 1 << 20


@dataclass(slots=True)
class _Events:
    """What a worker said before it ended."""

    findings: list[Finding] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    launches: list[LaunchFact] = field(default_factory=list)
    launch_count: int = 0
    dependencies: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    dsl_version: str | None = None
    dsl_folder: str | None = None
    ended: bool = False

    @property
    def last_stage(self) -> str:
        return next(reversed(self.stages), "start")

    def take(self, event: dict[str, Any]) -> None:
        match event.pop("event"):
            case "finding":
                self.findings.append(FINDING.validate_python(event))
            case "stage":
                self.stages[str(event["name"])] = float(event["seconds"])
            case "dsl":
                self.dsl_version, self.dsl_folder = str(event["version"]), str(event["folder"])
            case "launch":
                self.launches.append(LaunchFact.model_validate(event))
            case "values":
                self.values = [
                    Value(name=name, type=text, file=file, line=line) for name, text, file, line in event["values"]
                ]
                self.launch_count = int(event["launches"])
            case "dependencies":
                self.dependencies = [str(file) for file in event["files"]]
            case "end":
                self.ended = True
            case other:
                raise ValueError(f"unknown event {other!r}")


@lru_cache(maxsize=1)
def _own_hash() -> str:
    """Hash of the code that makes traces, so that a trace of another version of it is not used."""
    digest = hashlib.sha256()
    for folder in ("toolchain", "isolation"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_key(request: TraceRequest) -> str:
    """The name of a request's trace: its content, not its time."""
    return content_key(
        {
            "schema": SCHEMA,
            "own": _own_hash(),
            "kernel": str(request.kernel),
            "source": file_hash(request.kernel),
            "entry": [str(request.entry.file), request.entry.function, file_hash(request.entry.file)]
            if request.entry
            else None,
            "problem": [request.problem.name, request.problem.key],
            "arch": request.arch,
            "options": request.options,
            "roots": [str(root) for root in request.all_roots],
            "capture": request.capture,
            "dsl": request.toolchain.dsl_version,
            "python": request.toolchain.python_version,
            "interpreter": str(request.toolchain.python),
        }
    )


class Tracer:
    """Makes traces and keeps them.

    Args:
        root: The user's root folder: debug bundles go below it, and its Python files count as the user's.
        cache: Where traces are kept; None for the default.
        limits: What a worker may use.
        session: A name for this test run; within it a failed trace is reused too.
    """

    def __init__(
        self, *, root: Path, cache: TraceCache | None = None, limits: Limits | None = None, session: str | None = None
    ) -> None:
        self._root = root.resolve()
        self._cache = cache or TraceCache()
        self._limits = limits or Limits()
        self._session = session
        self._memory: dict[str, Trace] = {}

    def cached(self, request: TraceRequest) -> Trace | None:
        """The trace of a request if it is at hand; nothing is compiled."""
        key = cache_key(request)
        return self._memory.get(key) or self._cache.load(key, session=self._session)

    def compiled(self, files: Mapping[str, str], *, arch: str, options: Sequence[str]) -> list[Path]:
        """Folders of what this tracer's traces compiled of some files (see ``host.compile_cache``).

        Args:
            files: The SHA-256 of each of the kernel's files, by its path; a trace counts that knows no other content
                of any other file.
            arch: What the kernel is compiled for.
            options: Its compile options.
        """
        return [
            folder
            for trace in list(self._memory.values())
            if trace.folder is not None
            and (trace.arch, trace.options) == (arch, tuple(options))
            and trace.dependencies.items() <= files.items()
            and (folder := compile_cache.cache_folder(Path(trace.kernel), below=Path(trace.folder))).is_dir()
        ]

    def trace(self, request: TraceRequest) -> Trace:
        """The trace of a request; whatever the kernel does, the answer is a trace, with findings if it failed."""
        key = cache_key(request)
        if known := self._memory.get(key):
            return known
        found = self._cache.load(key, session=self._session) or self._hopeless(request)
        if found is None:
            try:
                with self._cache.locked(key):
                    found = self._cache.load(key, session=self._session) or self._make(request, key)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                found = self._no_room(request, error)
        self._memory[key] = found
        return found

    def _hopeless(self, request: TraceRequest) -> Trace | None:
        """The failed trace of a kernel that is missing, not Python or not CuTe DSL; no process is needed to say so."""
        for path in (request.kernel, *([request.entry.file] if request.entry else [])):
            if problem := syntax_problem(path):
                finding = Finding(
                    kind="import",
                    message=f"{path.name} is not valid Python: {problem.message}",
                    file=str(path),
                    line=problem.line,
                    text=problem.text,
                )
                return self._trace(request, _Events(findings=[finding]), ok=False)
        if request.entry is None and (source := read_source(request.kernel)) and source.other_means:
            finding = Finding(kind="no-compile", message=_made_otherwise(source), file=str(request.kernel))
            return self._trace(request, _Events(findings=[finding]), ok=False)
        return None

    def _no_room(self, request: TraceRequest, error: OSError) -> Trace:
        """The failed trace of a kernel for which the disk had no room; the kernel is not to blame."""
        message = (
            f"{request.kernel.name} was not compiled: {self._cache.root}, where traces are kept, cannot be written: "
            f"{error.strerror}; make room there, or name another folder with --nvfp4-cache-dir or {CACHE_VARIABLE}"
        )
        finding = Finding(kind="environment", message=message)
        return self._trace(request, _Events(findings=[finding]), ok=False)

    def _make(self, request: TraceRequest, key: str) -> Trace:
        with self._cache.building() as build:
            folder, scratch = build / "artifacts", build / "scratch"
            folder.mkdir()
            scratch.mkdir()
            job = build / "job.json"
            job.write_text(json.dumps(self._job(request, folder)), encoding="utf-8")
            environ = {
                **redirect.environment(folder, arch=request.arch),
                **{f"{prefix}_KEEP_IR": "1" for prefix in redirect.DSL_PREFIXES},
                **NO_GPU,
                **blas.variables(),
                "PYTHONFAULTHANDLER": "1",
                "PYTHONUNBUFFERED": "1",
            }
            preload = PRELOAD if uses_torch(request.kernel, request.entry.file if request.entry else None) else ()
            outcome = isolation.run(
                worker(_WORKER, job, python=request.toolchain.python, preload=preload),
                cwd=scratch,
                deadline_s=self._limits.deadline_s,
                environ=environ,
                memory_bytes=self._limits.memory_bytes,
                file_bytes=self._limits.file_bytes,
                output_bytes=self._limits.output_bytes,
            )
            trace = self._assemble(request, outcome, folder, scrubbed(os.environ, environ))
            return self._cache.store(key, trace, folder)

    def _job(self, request: TraceRequest, folder: Path) -> dict[str, Any]:
        return {
            "kernel": str(request.kernel),
            "entry": {"file": str(request.entry.file), "function": request.entry.function} if request.entry else None,
            "problem": {"name": request.problem.name, "sizes": request.problem.sizes, "seed": request.problem.seed},
            "arch": request.arch,
            "options": list(request.options),
            "roots": [str(root) for root in dict.fromkeys((self._root, *request.all_roots))],
            "package": str(PACKAGE),
            "artifacts": str(folder),
            "compiled": str(compile_cache.cache_folder(request.kernel, below=folder)),
            "capture": request.capture,
            "max_launches": _MAX_LAUNCHES,
        }

    def _assemble(self, request: TraceRequest, outcome: Outcome, folder: Path, environ: dict[str, str]) -> Trace:
        events = _Events()
        for line in (outcome.result or b"").splitlines():
            try:
                events.take(json.loads(line))
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                events.findings.append(Finding(kind="internal", message=f"the worker's answer is damaged: {error}"))
                break
        if not events.ended or outcome.returncode != 0:
            events.findings.append(self._ending(request, outcome, events))
        functions = _functions((request.kernel, *map(Path, events.dependencies)))
        code, files, more = artifacts.collect(folder, functions, library=events.dsl_folder)
        events.findings += more
        events.findings += _poisoned(events.values)
        if request.capture and not code and not any(finding.severity == "error" for finding in events.findings):
            events.findings.append(_nothing_compiled(request))
        events.findings = [_with_diagnostics(finding, outcome.stderr.text) for finding in events.findings]
        errors = [finding for finding in events.findings if finding.severity == "error"]
        place = None
        if errors:
            errors_name = f"{request.kernel.stem}-{request.problem.name}-{cache_key(request)[:8]}"
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
            except OSError as error:  # what is wrong with the kernel matters more
                message = f"there is no debug bundle, for {self._root} has no room for it: {error.strerror}"
                events.findings.append(Finding(kind="environment", message=message))
        return self._trace(request, events, ok=not errors, code=code, files=files, seconds=outcome.wall_s, place=place)

    def _trace(
        self,
        request: TraceRequest,
        events: _Events,
        *,
        ok: bool,
        code: tuple[Code, ...] = (),
        files: tuple[Artifact, ...] = (),
        seconds: float = 0.0,
        place: Path | None = None,
    ) -> Trace:
        known = {*events.dependencies, str(request.kernel), *([str(request.entry.file)] if request.entry else [])}
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
            stages=events.stages,
            seconds=round(seconds, 3),
            session=self._session,
            bundle=str(place) if place else None,
        )

    def _ending(self, request: TraceRequest, outcome: Outcome, events: _Events) -> Finding:
        """The finding for a worker that did not come to its end."""
        file, line = self._last_frame(outcome.stderr.text, request)
        stage = events.last_stage
        doing = {
            "import kernel": f"while {request.kernel.name} was imported",
            "compile": f"while {request.kernel.name} compiled",
            "run": f"while the host code of {request.kernel.name} ran",
        }.get(stage, f"in stage {stage!r}")
        said = outcome.stderr.text.strip()[-4000:]
        if outcome.timed_out:
            kind, message = (
                "timeout",
                f"the kernel {outcome.describe_end()}, {doing}; raise --nvfp4-timeout if it needs more",
            )
        elif outcome.result_overflow:
            kind, message = "internal", "the worker's answer was larger than is accepted"
        elif outcome.returncode < 0:
            kind, message = "crash", f"the process {outcome.describe_end()} {doing}"
        else:
            kind, message = (
                "vanished",
                f"the process {outcome.describe_end()} {doing}, before it had an answer (os._exit?)",
            )
        text = None
        if file and line:
            try:
                text = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[line - 1].strip()
            except (OSError, IndexError):
                text = None
        return Finding(kind=kind, message=message, file=file, line=line, text=text, detail=said)

    @staticmethod
    def _last_frame(stderr: str, request: TraceRequest) -> tuple[str | None, int | None]:
        """The innermost frame of the user's in what faulthandler printed (most recent call first)."""
        own = {str(request.kernel), str(request.entry.file) if request.entry else ""}
        for match in _FRAME.finditer(stderr):
            if match["file"] in own:
                return match["file"], int(match["line"])
        return None, None


def _with_diagnostics(finding: Finding, stderr: str) -> Finding:
    """A failed compile with what the compiler wrote and did not raise; 4.4 raises "Operation creation failed" alone."""
    if finding.kind != "compile" or finding.severity != "error":
        return finding
    said = [text for text in dict.fromkeys(_DIAGNOSTIC.findall(stderr)) if text not in finding.message]
    message = finding.message + "".join(f"\n  the compiler wrote: {text[:1000]}" for text in said[-3:])
    return replace(finding, message=message)


def _functions(files: Iterable[Path]) -> list[str]:
    """Names of the functions that the user's files define."""
    sources = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
    return [name for source in sources for name in re.findall(r"^\s*def\s+(\w+)", source, re.MULTILINE)]


def _poisoned(values: list[Value]) -> list[Finding]:
    """A layout that the DSL could not compute is the letter ``x``; using it is always wrong."""
    return [
        Finding(
            kind="poisoned",
            message=f"{value.name} has a poisoned layout ({value.type}): the DSL could not compute it and said nothing",
            file=value.file,
            line=value.line,
        )
        for value in values
        if re.search(r'"(?:[^"]*\bo )?x"', value.type)
    ]


def _made_otherwise(source: KernelSource) -> str:
    return (
        f"{source.path.name} makes its kernels with {' and '.join(source.other_means)}, not with CuTe DSL: it has no "
        "layouts, launches or code that a trace could show; checks that run it on a GPU still apply"
    )


def _nothing_compiled(request: TraceRequest) -> Finding:
    source = read_source(request.kernel)
    why = (
        "it does not use CuTe DSL"
        if source is None or not source.mentions_dsl
        else "neither its entry nor custom_kernel compiled or launched a @cute.jit function"
    )
    return Finding(
        kind="no-compile",
        message=f"{request.kernel.name} compiled no {DSL_DISTRIBUTION} kernel: {why}",
        file=str(request.kernel),
    )
