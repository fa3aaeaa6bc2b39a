"""Remote ``popcorn:LEADERBOARD``: GPU MODE's own evaluation, through popcorn-cli.

popcorn-cli takes a single file and evaluates it on GPU MODE's problems and inputs. It returns neither outputs nor
single times, so this package can neither verify nor measure anything: it reports the verdict as GPU MODE's.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import BatchResult, Cost, Place, RemoteError, RemoteOptions, RemoteStatus
from pytest_nvfp4.device.remote.pool import PooledRemote, PoolTask
from pytest_nvfp4.device.remote.popcorn_output import MOST_BYTES, Submission, parse
from pytest_nvfp4.device.remote.target import split_target
from pytest_nvfp4.device.remote.tool import CommandLineTool, ToolOutput
from pytest_nvfp4.device.result import Result, Status
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.temporary import temporary_folder

LEADERBOARD = "nvfp4_group_gemm"
MODES = ("test", "benchmark", "leaderboard")
_INSTALL = "get popcorn-cli from github.com/gpu-mode/popcorn-cli and register it"
_REQUIRED = ("--gpu", "--leaderboard", "--mode")
_DIRECTIVE = re.compile(r"^(?:#|//)!POPCORN\s+gpus?\s+(\S+)", re.MULTILINE | re.IGNORECASE)
_LOGIN = re.compile(r"register|cli_id|unauthori[sz]ed|status 40[13]|invalid.*token", re.IGNORECASE)
_NETWORK = re.compile(r"POPCORN_API_URL|error sending request|connect|dns|timed out|status 5\d\d|stream ended", re.I)


@dataclass(frozen=True, slots=True)
class PopcornTarget:
    """Target ``popcorn:[LEADERBOARD][?mode=MODE][&gpu=GPU]``.

    Attributes:
        leaderboard: Name of the leaderboard.
        mode: ``test``, ``benchmark`` or ``leaderboard`` (public); None for the mode of the job (test or benchmark).
        gpu: The leaderboard's name of the GPU; empty for the file's own directive, or else the requested GPU.
    """

    leaderboard: str = LEADERBOARD
    mode: str | None = None
    gpu: str = ""

    @classmethod
    def parse(cls, text: str) -> PopcornTarget:
        """Parse the text after ``popcorn:``. Raises RemoteError."""
        name, values = split_target("popcorn", text, ("mode", "gpu"))
        mode = values.get("mode")
        if mode is not None and mode not in MODES:
            raise RemoteError("setup", f"popcorn:{text}: unknown mode={mode!r}", f"use one of {', '.join(MODES)}")
        if name and not re.fullmatch(r"[\w.-]+", name):
            raise RemoteError("setup", f"{name!r} is not a name of a leaderboard", "write popcorn:nvfp4_group_gemm")
        return cls(name or LEADERBOARD, mode, values.get("gpu", ""))


class PopcornRemote(PooledRemote):
    """GPU MODE's evaluation. A file is submitted once per mode, however many jobs need it.

    Args:
        options: Options; ``target`` names the leaderboard.
    """

    name = "popcorn"

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options, size=1)
        self._target = PopcornTarget.parse(options.target)
        self._tool = CommandLineTool(("popcorn-cli", "popcorn"), install=_INSTALL, environ=("POPCORN_API_URL",))
        self._submissions: dict[tuple[str, str], Submission] = {}
        """Submissions by the kernel's hash and the mode."""

    def describe(self) -> str:
        """Return a description of one line."""
        return f"GPU MODE's leaderboard {self._target.leaderboard} through popcorn-cli: the verdict is GPU MODE's"

    def status(self) -> RemoteStatus:
        """Report whether popcorn-cli is installed and has the required options; contacts no server."""
        try:
            self.warm()
        except RemoteError as error:
            return RemoteStatus(False, str(error))
        return RemoteStatus(True, f"{self._tool.path} is installed; its server was not contacted")

    def warm(self) -> None:
        """Check that popcorn-cli is usable; there is no machine to start. Raises RemoteError."""
        self._tool.require(["submit"], _REQUIRED)

    def stop(self) -> None:
        """Stop waiting for submissions; those that were sent continue at GPU MODE."""
        self._pool.close(wait_s=5)

    def cost(self) -> Cost:
        """Return the time; GPU MODE charges nothing."""
        return Cost(self._pool.busy_s, 0.0, "GPU MODE's evaluation is free of charge")

    def _run_batch(self, task: PoolTask) -> BatchResult:
        start = time.monotonic()
        results = tuple(self._run_job(job, task) for job in task.batch.jobs)
        return BatchResult(
            batch=task.batch.id,
            results=results,
            place=Place(container=f"GPU MODE, {self._target.leaderboard}"),
            busy_s=round(time.monotonic() - start, 3),
        )

    def _run_job(self, job: Job, task: PoolTask) -> Result:
        if job.kernel is None or job.action not in ("verify", "benchmark"):
            problem = "GPU MODE's evaluation only tests and times kernels"
            if job.action == "profile":
                problem += "; `popcorn submit FILE --profile` profiles one, and `nvfp4 profile show` reads the archive"
            return _result(job, "unavailable", problem)
        if len(job.kernel.files) != 1 or job.kernel.entry is not None:
            names = ", ".join(file.path for file in job.kernel.files)
            problem = f"popcorn takes one file that defines custom_kernel(data), and this kernel is {names}"
            return _result(job, "unsupported", problem)
        mode = self._target.mode or ("test" if job.action == "verify" else "benchmark")
        key = (job.kernel.sha256, mode)
        if key not in self._submissions:  # no lock: the pool has one worker
            name = Path(job.kernel.main).name
            self._submissions[key] = self._submit(job.kernel.files[0].data, name, mode, task)
        return _verdict(job, self._submissions[key], mode)

    def _submit(self, data: bytes, name: str, mode: str, task: PoolTask) -> Submission:
        options = self._tool.require(["submit"], _REQUIRED)
        directive = _DIRECTIVE.search(data.decode("utf-8", "replace"))
        gpu = self._target.gpu or (directive[1] if directive else self._options.gpu)
        with temporary_folder("popcorn") as folder:
            file, written = Path(folder) / name, Path(folder) / "result"
            file.write_bytes(data)
            arguments = ["submit", "--gpu", gpu, "--leaderboard", self._target.leaderboard, "--mode", mode]
            arguments += ["--no-tui"] if "--no-tui" in options else []
            arguments += ["--output", str(written)] if "--output" in options else []
            output = self._tool.run(
                [*arguments, str(file)],
                timeout_s=self._options.timeout_s,
                cwd=Path(folder),
                on_start=lambda kill: setattr(task, "on_stop", kill),
            )
            text = _report(written) or output.stdout
        if output.status and not text.strip():
            raise _error(output)
        try:
            return parse(text)
        except ValueError as error:
            if output.status:
                raise _error(output) from error
            raise RemoteError("version", f"the output of popcorn-cli cannot be read: {error}", _INSTALL) from error


def _report(file: Path) -> str:
    """Return the report that popcorn-cli wrote; empty if it wrote none. Raises RemoteError."""
    try:
        return read_file(file, source="the output of popcorn-cli", most=MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except (DoorError, OSError) as error:
        raise RemoteError("remote", f"{error}: it is not read") from error


def _error(output: ToolOutput) -> RemoteError:
    line = output.last_line
    if _LOGIN.search(line):
        return RemoteError("login", f"popcorn-cli: {line}", "run `popcorn-cli register` once")
    if _NETWORK.search(line):
        return RemoteError("network", f"popcorn-cli: {line}", "check POPCORN_API_URL and the network")
    return RemoteError("remote", f"popcorn-cli ended with status {output.status}: {line}")


def _result(job: Job, status: Status, message: str, detail: str = "") -> Result:
    return Result(job=job.id, status=status, findings=(Finding(kind="popcorn", message=message, detail=detail),))


def _verdict(job: Job, submission: Submission, mode: str) -> Result:
    """Return GPU MODE's verdict as a result; never "passed", because no output came back that could be verified."""
    where = f" on {submission.runner}" if submission.runner else ""
    summary = submission.summary()
    if submission.passed is None:
        problem = f"GPU MODE's {mode} has not ended or reports no verdict: {summary}"
        return _result(job, "unavailable", problem)
    if not submission.passed:
        status: Status = "failed"
        if submission.exit_code == "timeout":
            status = "timeout"
        elif submission.failure == "Running":
            status = "error"
        failed = [f"{test.spec}: {test.message or 'failed'}" for test in submission.tests if not test.passed]
        return _result(job, status, f"GPU MODE's {mode}{where} failed: {summary}", "\n".join(failed))
    missing = (
        "it returns no outputs, so the exact oracle has not verified them"
        if job.action == "verify"
        else "it returns no single times, so nothing is compared here"
    )
    return _result(job, "unavailable", f"GPU MODE's own {mode}{where} passed ({summary}); {missing}")
