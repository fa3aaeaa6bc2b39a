"""Compile one kernel on one problem: read a job, return events, one JSON object a line, on the result pipe."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.limits import apply as apply_limits
from pytest_nvfp4.toolchain.worker import contract, options
from pytest_nvfp4.toolchain.worker.capture import Capture
from pytest_nvfp4.toolchain.worker.findings import described, from_exception, in_compile
from pytest_nvfp4.toolchain.worker.loading import load
from pytest_nvfp4.toolchain.worker.startup import begin_imports, end_imports

if TYPE_CHECKING:
    from pytest_nvfp4.host import redirect

_RESULT_VARIABLE = "NVFP4_RESULT_FD"
_CAPTURE_ERRORS = 5
"""How many of the values that could not be captured are reported."""
_WITHOUT_TVM_FFI = (
    "it asks for TVM-FFI and was compiled without, since its calls cannot be followed on a machine without a GPU; "
    "layouts, code and launches are the same"
)


class _Reporter:
    """Sends events to the parent, each whole, so that a crash loses nothing that was said before it."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # children of the kernel have no business with it
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: str, **data: Any) -> None:
        line = (json.dumps({"event": event, **data}) + "\n").encode()
        with self._lock:
            view = memoryview(line)
            while view:
                view = view[os.write(self._descriptor, view) :]


class _Session:
    """One job, from the kernel's import to its launches."""

    def __init__(self, job: dict[str, Any], reporter: _Reporter) -> None:
        self.job = job
        self.reporter = reporter
        self.kernel = Path(job["kernel"])
        self.entry = (Path(job["entry"]["file"]), job["entry"]["function"]) if job.get("entry") else None
        self.sizes = [tuple(size) for size in job["problem"]["sizes"]]
        self.failed = False
        self.kept: list[object] = []
        self.roots = [Path(root) for root in job["roots"]]
        self._libraries = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
        self._known: dict[str, bool] = {}
        self.capture = Capture(self.watched)

    def watched(self, file: str) -> bool:
        """Whether a file is the user's: below the roots of the job and not of an installed library."""
        known = self._known.get(file)
        if known is None:
            path = Path(file)
            own = {str(self.kernel), str(self.entry[0]) if self.entry else ""}
            known = file in own or (
                path.is_absolute()
                and not file.startswith(self._libraries)
                and "site-packages" not in path.parts
                and any(path.is_relative_to(root) for root in self.roots)
                and not path.is_relative_to(self.job["package"])
            )
            self._known[file] = known
        return known

    def report(self, finding: Finding) -> None:
        self.failed |= finding.severity == "error"
        self.reporter.send("finding", **finding.to_dict())

    def fail(self, kind: str, what: str, error: BaseException) -> None:
        self.report(from_exception(kind, what, error, self.watched, hint=self._hint(kind, error)))

    def _hint(self, kind: str, error: BaseException) -> str:
        said = described(error)  # a kernel's own error may not be able to say anything
        if "expects arch to be" in said:
            return (
                f"it was compiled for {self.job['arch']}: name another architecture with --nvfp4-arch, "
                "or `arch` in [tool.pytest_nvfp4]"
            )
        if not self.entry and isinstance(error, ValueError) and "values to unpack" in said:
            return (
                "custom_kernel is given the data of nvfp4_group_gemm: (abc, scales, reordered scales, sizes); a kernel "
                "of another task is checked through --nvfp4-entry"
            )
        if kind == "run" and self.entry and not type(error).__module__.startswith(__package__.partition(".")[0]):
            return "kernels are compiled and launched here but not executed: an entry must not look at their results"
        return ""

    def stage(self, name: str) -> None:
        self.reporter.send("stage", name=name, seconds=round(time.monotonic() - _START, 3))


_START = time.monotonic()


def _leave_alone(watched: Callable[[str], bool]) -> None:
    """Write no bytecode beside the user's files; libraries keep theirs, or every trace would compile them anew."""
    write: Any = SourceFileLoader.set_data

    def set_data(self: SourceFileLoader, path: str, data: bytes, **kwargs: Any) -> None:
        if not watched(str(self.path)):
            write(self, path, data, **kwargs)

    setattr(SourceFileLoader, write.__name__, set_data)


def _call_entry(session: _Session, module: ModuleType, name: str) -> object:
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        session.report(
            Finding(
                "entry",
                f"entry {session.entry[0] if session.entry else module.__file__}::{name} is not a function there; "
                f"the file defines {', '.join(known) or 'no function'}",
            )
        )
        return None
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if len(required) > 1:
        names = ", ".join(parameter.name for parameter in required)
        session.report(
            Finding(
                "entry",
                f"entry {name}({names}) cannot be called: an entry takes no argument, or one, the problem as a list "
                "of (m, n, k, l); wrap it in a function that fills in the rest",
            )
        )
        return None
    if not required:
        return function()
    if required[0].kind is required[0].KEYWORD_ONLY:
        return function(**{required[0].name: session.sizes})
    return function(session.sizes)


def _call_contract(session: _Session, module: ModuleType) -> object:
    custom = getattr(module, "custom_kernel", None)
    if not callable(custom):
        session.report(
            Finding(
                "contract",
                f"{session.kernel.name} defines no custom_kernel(data) and no entry is configured: add "
                '`entry = "FILE::FUNCTION"` for it to [tool.pytest_nvfp4] in pyproject.toml, or pass --nvfp4-entry',
            )
        )
        return None
    kept: list[object] = []
    if callable(prepare := getattr(module, "compile_kernel", None)):
        kept.append(contract.prepare(prepare, session.sizes))
    session.stage("run")
    kept.append(custom(contract.make_data(session.sizes)))
    return kept


def _untouched(session: _Session) -> Finding:
    name = f"{session.entry[0].name}::{session.entry[1]}" if session.entry else "custom_kernel"
    return Finding(
        "entry",
        f"entry {name} never imported {session.kernel.name}, so nothing of that file was checked: import the kernel in "
        "the entry, or name the entry of another kernel",
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
    """Counts launches, and reports the first of them."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self.count = 0

    def note(self, launch: Any) -> None:
        self.count += 1
        job = self._session.job
        if self.count <= job["max_launches"]:
            self._session.reporter.send("launch", **_launch_record(launch, job["problem"]["name"]))


def _work(session: _Session) -> None:
    job = session.job
    begin_imports()
    if not _import_dsl(session):
        return
    launches = _Launches(session)
    with contextlib.ExitStack() as stack:
        side = _stand_in(session, launches, stack)
        try:
            options.check_arch(job["arch"])
            options.install(job["options"], dump_dir=Path(job["artifacts"]))
        except options.OptionError as error:
            session.report(Finding("options", str(error)))
            return
        end_imports()
        _leave_alone(session.watched)
        contract.provide_task(beside=session.kernel.parent)
        if job["capture"]:
            session.capture.start()
        try:
            imported = _import_and_compile(session, launches)
        finally:
            _report_capture(session, launches)
        if not imported:
            return
        if job["capture"] and not session.failed and not session.capture.entered(session.kernel):
            session.report(_untouched(session))
        if side.without_tvm_ffi:
            session.report(Finding("environment", _WITHOUT_TVM_FFI, severity="warning", file=str(session.kernel)))
        session.stage("done")


def _import_dsl(session: _Session) -> bool:
    """Import it and say which it is; whether that went well."""
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


def _stand_in(session: _Session, launches: _Launches, stack: contextlib.ExitStack) -> redirect.HostSide:
    """Put a device that is not there behind the driver, and behind torch where the kernel uses it."""
    from pytest_nvfp4.driver import device_model
    from pytest_nvfp4.host import redirect
    from pytest_nvfp4.host.compile_cache import CompileCache

    job = session.job
    device = device_model.for_arch(job["arch"])
    modules = CompileCache(keep=Path(job["compiled"])) if job.get("compiled") else None
    side = stack.enter_context(redirect.install(launches.note, device=device, compiled=modules))
    if contract.uses_torch(session.kernel, session.entry[0] if session.entry else None):
        session.stage("import torch")
        from pytest_nvfp4.host import torch_cuda

        stack.enter_context(torch_cuda.install(device=device, launches=side.launches))
    return side


def _import_and_compile(session: _Session, launches: _Launches) -> bool:
    """Import the kernel, or what is configured in its place, and have it compile; False where it is not imported."""
    session.stage("import kernel")
    first = session.entry[0] if session.entry else session.kernel
    try:
        module = load(first, beside=(session.kernel.parent, *session.roots))
    except BaseException as error:
        session.fail("import", f"{first.name} could not be imported", error)
        return False
    session.stage("compile")
    # Objects of the DSL must not be touched, not even destroyed, once their compile is over: kept until the exit.
    session.kept.append(module)
    try:
        session.kept.append(
            _call_entry(session, module, session.entry[1]) if session.entry else _call_contract(session, module)
        )
    except BaseException as error:
        compiled = launches.count > 0 or any(Path(session.job["artifacts"]).glob("*.ptx"))
        if compiled and not in_compile(error):
            session.fail("run", f"{session.kernel.name}: its host code failed after a compile", error)
        else:
            session.fail("compile", f"{session.kernel.name} did not compile", error)
    return True


def _report_capture(session: _Session, launches: _Launches) -> None:
    session.capture.stop()
    session.reporter.send(
        "values",
        values=[[v.name, v.type, v.file, v.line] for v in session.capture.values()],
        launches=launches.count,
    )
    for (file, line), message in list(session.capture.errors.items())[:_CAPTURE_ERRORS]:
        session.report(Finding("capture", message, severity="warning", file=file, line=line))


def _dependencies(session: _Session) -> list[str]:
    files = {str(session.kernel)} | ({str(session.entry[0])} if session.entry else set())
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and session.watched(file):
            files.add(file)
    return sorted(files)


def main() -> None:
    """Read the job named on the command line, do it, and leave without running any of the kernel's exit handlers."""
    reporter = _Reporter(int(os.environ.pop(_RESULT_VARIABLE)))
    apply_limits(dict(os.environ))
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    session = _Session(job, reporter)
    exit_now: Callable[[int], Any] = os._exit
    flush = [stream.flush for stream in (sys.stdout, sys.stderr)]
    try:
        _work(session)
    except BaseException as error:
        session.fail("internal", "the trace itself failed", error)
    reporter.send("dependencies", files=_dependencies(session))
    reporter.send("end", ok=not session.failed)
    for one in flush:
        with contextlib.suppress(Exception):
            one()
    exit_now(0)


if __name__ == "__main__":
    main()
