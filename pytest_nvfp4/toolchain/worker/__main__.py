"""Worker that compiles one kernel on one problem: reads a job and writes events as JSON lines to the result pipe."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_nvfp4.profiler  # noqa: F401 - before the kernel, which may import it and may not read files of this package
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.event_sender import EventSender
from pytest_nvfp4.isolation.limits import write_stack_in_time
from pytest_nvfp4.isolation.seal.audit import KernelAudit
from pytest_nvfp4.isolation.seal.keeper import Sealed, keep
from pytest_nvfp4.isolation.wall import enter_from_environment
from pytest_nvfp4.toolchain.torch_compiler import torch_compiler_findings
from pytest_nvfp4.toolchain.worker import contract, options
from pytest_nvfp4.toolchain.worker.calls import call_contract, call_entry
from pytest_nvfp4.toolchain.worker.findings import in_compile
from pytest_nvfp4.toolchain.worker.loading import begin_imports, end_imports, load
from pytest_nvfp4.toolchain.worker.session import TraceSession
from pytest_nvfp4.toolchain.worker.triton_layouts import layouts

if TYPE_CHECKING:
    from pytest_nvfp4.host import redirect
    from pytest_nvfp4.host.triton_pick import Picks

_ACCESSES = 5
"""Number of accesses that are reported."""
_CAPTURE_ERRORS = 5
"""Number of capture errors that are reported."""
_UNTRACED = (
    "the trace that records layouts was removed while the kernel compiled (sys.settrace), so that layouts are missing; "
    "remove the call that replaces the trace function"
)
_WITHOUT_TVM_FFI = (
    "it requests TVM-FFI and was compiled without it, because its calls cannot be recorded without a GPU; layouts, "
    "code and launches are the same"
)


def _suppress_bytecode(watched: Callable[[str], bool]) -> None:
    """Write no bytecode beside the user's files; libraries still write theirs, or every trace would recompile them."""
    write: Any = SourceFileLoader.set_data

    def set_data(self: SourceFileLoader, path: str, data: bytes, **kwargs: Any) -> None:
        if not watched(str(self.path)):
            write(self, path, data, **kwargs)

    setattr(SourceFileLoader, write.__name__, set_data)


def _untouched(session: TraceSession) -> Finding:
    name = f"{session.entry[0].name}::{session.entry[1]}" if session.entry else "custom_kernel"
    return Finding(
        "entry",
        f"entry {name} never imported {session.kernel.name}, so that file was not checked: import the kernel in the "
        "entry, or configure the entry of another kernel",
        file=str(session.entry[0]) if session.entry else None,
    )


def _launch_record(launch: Any, problem: str) -> dict[str, Any]:
    from pytest_nvfp4.driver import tensormap

    maps = []
    for index, data in enumerate(launch.params):
        for offset in range(0, len(data) - 127, 64):
            chunk = data[offset : offset + 128]
            if tensormap.looks_like_tensormap(chunk):
                with contextlib.suppress(tensormap.TensorMapError):
                    maps.append({"parameter": index, "offset": offset, "text": tensormap.decode(chunk).describe()})
    return {
        "problem": problem,
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "smem_bytes": launch.dynamic_smem,
        "cooperative": launch.cooperative,
        "pdl": launch.programmatic_dependent_launch,
        "parameter_bytes": [len(data) for data in launch.params],
        "tensormaps": maps,
    }


class _Launches:
    """Counter of launches; the first ``max_launches`` are reported."""

    def __init__(self, session: TraceSession) -> None:
        self._session = session
        self.count = 0

    def record(self, launch: Any) -> None:
        self.count += 1
        job = self._session.job
        if self.count <= job["max_launches"]:
            self._session.reporter.send("launch", **_launch_record(launch, job["problem"]["name"]))


def _work(session: TraceSession, sealed: Sealed, stack: contextlib.ExitStack) -> None:
    job = session.job
    begin_imports()
    if not _import_dsl(session):
        return
    launches = _Launches(session)
    side = _stand_in(session, launches, stack)
    try:
        options.check_arch(job["arch"])
        picks = options.install(job["options"])
    except options.OptionError as error:
        session.report(Finding("options", str(error)))
        return
    end_imports()
    _suppress_bytecode(session.watched)
    contract.provide_task()
    audit = _audit(session)
    roots = {"the tracer": session, "its launches": launches, "its audit": audit, "__main__": globals()}
    sealed.seal("pytest_nvfp4", roots)
    audit.start()
    if job["capture"]:
        session.capture.start()
    try:
        imported = _import_and_compile(session, launches)
    finally:
        _report_capture(session, launches, side, picks)
        for message in audit.messages[:_ACCESSES]:
            session.report(Finding("cheat", message))
    if not imported:
        return
    if job["capture"] and not session.failed and not session.capture.entered(session.kernel):
        session.report(_untouched(session))
    if side.without_tvm_ffi:
        session.report(Finding("environment", _WITHOUT_TVM_FFI, severity="warning", file=str(session.kernel)))
    session.stage("done")


def _audit(session: TraceSession) -> KernelAudit:
    """Return the audit of changes of code, traces and compiled files; frames and the heap are the user's own."""
    artifacts = Path(session.job["artifacts"])
    return KernelAudit(
        own=session.watched,
        folder=artifacts.parent,
        allowed=(Path.cwd(),),
        read_only=(Path(session.job["package"]), Path(session.job["cache"])),
        objects=False,
        opened=session.opened.add,
    )


def _import_dsl(session: TraceSession) -> bool:
    """Import the DSL and report its version; False if it cannot be imported."""
    session.stage("import cutlass")
    try:
        import cutlass
        import cutlass.cute
    except Exception as error:
        session.fail("environment", "nvidia-cutlass-dsl cannot be imported", error)
        return False
    folder = str(Path(cutlass.__file__ or "").parent)
    session.reporter.send("dsl", version=getattr(cutlass, "__version__", "unknown"), folder=folder)
    return True


def _stand_in(session: TraceSession, launches: _Launches, stack: contextlib.ExitStack) -> redirect.HostSide:
    """Install the stand-ins of the driver and, if the kernel uses it, of torch's CUDA."""
    from pytest_nvfp4.driver import device_model, tensormap  # noqa: F401 - before the kernel, for `_launch_record`
    from pytest_nvfp4.host import redirect
    from pytest_nvfp4.host.compile_cache import CompileCache

    job = session.job
    device = device_model.for_arch(job["arch"])
    known = [Path(job["built"])] if job.get("built") else []
    modules = CompileCache(known, keep=Path(job["compiled"])) if job.get("compiled") else None
    side = stack.enter_context(redirect.install(launches.record, device=device, compiled=modules))
    if contract.uses_torch([Path(file) for file in job["sources"]], entry=session.entry is not None):
        session.stage("import torch")
        from pytest_nvfp4.host import torch_cuda

        stack.enter_context(torch_cuda.install(device=device, side=side.device))
    return side


def _import_and_compile(session: TraceSession, launches: _Launches) -> bool:
    """Import the kernel, or its entry, and compile it; False if the import failed."""
    session.stage("import kernel")
    first, function = session.entry or (session.kernel, "custom_kernel")
    if refused := torch_compiler_findings(map(Path, session.job["sources"]), first=first, function=function):
        for finding in refused:
            session.report(finding)
        return False
    try:
        module = load(first, beside=(session.kernel.parent, *session.roots))
    except BaseException as error:
        session.fail("import", f"{first.name} could not be imported", error)
        return False
    session.stage("compile")
    # Objects of the DSL must not be used after their compile, not even destroyed (it segfaults): hold them until exit.
    session.results.append(module)
    try:
        session.results.append(
            call_entry(session, module, session.entry[1]) if session.entry else call_contract(session, module)
        )
    except BaseException as error:
        compiled = launches.count > 0 or any(Path(session.job["artifacts"]).glob("*.ptx"))
        if compiled and not in_compile(error):
            session.fail("run", f"{session.kernel.name}: its host code failed after a compile", error)
        else:
            session.fail("compile", f"{session.kernel.name} did not compile", error)
    return True


def _report_capture(session: TraceSession, launches: _Launches, side: redirect.HostSide, picks: Picks) -> None:
    if session.job["capture"] and not session.capture.running:
        session.report(Finding("cheat", _UNTRACED, file=str(session.kernel)))
    session.capture.stop()
    of_triton = layouts(side.triton.driver.intermediate, own=session.watched)
    session.reporter.send(
        "values",
        values=[[v.name, v.type, v.file, v.line] for v in session.capture.values() + of_triton],
        captured=session.capture.count + len(of_triton),
        launches=launches.count,
    )
    for (file, line), message in list(session.capture.errors.items())[:_CAPTURE_ERRORS]:
        session.report(Finding("capture", message, severity="warning", file=file, line=line))
    for chosen in side.triton.driver.tuning.chosen:
        message = chosen.described(picks.of(chosen.kernel))
        session.report(Finding("autotune", message, severity="warning", file=chosen.file, line=chosen.line))
    for file, line, message in side.triton.driver.tuning.unrestored:
        session.report(Finding("autotune", message, severity="warning", file=file, line=line))
    if not session.failed:
        for message in picks.unused():
            session.report(Finding("options", message, file=str(session.kernel)))


def _dependencies(session: TraceSession) -> list[str]:
    files = {str(session.kernel)} | ({str(session.entry[0])} if session.entry else set())
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and session.watched(file):
            files.add(file)
    return sorted(files)


def main() -> None:
    """Run the job named on the command line and exit without running the kernel's exit handlers."""
    sealed = keep(int(taken(RESULT_VARIABLE)))
    enter_from_environment(keep=sealed.descriptors, first=sealed.open_memory)
    reporter = EventSender(sealed.result)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write_stack_in_time(sys.stderr)
    session = TraceSession(job, reporter)
    exit_now: Callable[[int], Any] = os._exit
    flush = [stream.flush for stream in (sys.stdout, sys.stderr)]
    try:
        # Never unwound: the stand-ins must be in place when the keeper compares them with what was installed.
        _work(session, sealed, contextlib.ExitStack())
    except BaseException as error:
        session.fail("internal", "the trace itself failed", error)
    reporter.send("dependencies", files=_dependencies(session), read=session.opened.names())
    reporter.end(ok=not session.failed)
    sealed.wait()
    for flush_stream in flush:
        with contextlib.suppress(Exception):
            flush_stream()
    exit_now(0)


if __name__ == "__main__":
    main()
