"""State of one tracing job in its worker, and the events it sends to the parent process."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.event_sender import EventSender
from pytest_nvfp4.toolchain.worker.capture import Capture
from pytest_nvfp4.toolchain.worker.findings import described, from_exception
from pytest_nvfp4.toolchain.worker.opened_files import OpenedFiles


class TraceSession:
    """State of one job, from the kernel's import to its launches."""

    def __init__(self, job: dict[str, Any], reporter: EventSender) -> None:
        self.job = job
        self.reporter = reporter
        self.kernel = Path(job["kernel"])
        self.entry = (Path(job["entry"]["file"]), job["entry"]["function"]) if job.get("entry") else None
        self.sizes = [tuple(size) for size in job["problem"]["sizes"]]
        self.call: dict[str, Any] | None = job["call"]
        self.failed = False
        self.results: list[object] = []
        self.roots = [Path(root) for root in job["roots"]]
        self._libraries = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
        self._known: dict[str, bool] = {}
        self.capture = Capture(self.watched)
        self.opened = OpenedFiles(self.watched)

    def watched(self, file: str) -> bool:
        """Return whether a file belongs to the user: below the roots of the job, not in an installed library."""
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
        """Send a finding; an error fails the job."""
        self.failed |= finding.severity == "error"
        self.reporter.send("finding", **finding.to_dict())

    def fail(self, kind: str, what: str, error: BaseException) -> None:
        """Report an exception of the kernel."""
        self.report(from_exception(kind, what, error, self.watched, hint=self._hint(kind, error)))

    def _hint(self, kind: str, error: BaseException) -> str:
        if kind == "environment" and isinstance(error, ModuleNotFoundError):
            return (
                "pip install nvidia-cutlass-dsl (Linux), or compile on another machine: `nvfp4 ... --remote modal` or "
                "ssh:HOST, pytest --nvfp4-remote=... --nvfp4-trace-remote (`nvfp4 guide remotes`)"
            )
        message = described(error)  # not str(error): the __str__ of a kernel's own error may fail
        if "expects arch to be" in message:
            return (
                f"it was compiled for {self.job['arch']}: choose another architecture with --nvfp4-arch, "
                "or `arch` in [tool.pytest_nvfp4]"
            )
        if not self.entry and isinstance(error, ValueError) and "values to unpack" in message:
            return (
                "custom_kernel receives the data of nvfp4_group_gemm: (abc, scales, reordered scales, sizes); check a "
                "kernel of another task with --nvfp4-entry"
            )
        if kind == "run" and self.entry and not type(error).__module__.startswith(__package__.partition(".")[0]):
            return "kernels are compiled and launched here but not executed: an entry must not use their results"
        return ""

    def stage(self, name: str) -> None:
        """Report the beginning of a stage."""
        self.reporter.stage(name)
