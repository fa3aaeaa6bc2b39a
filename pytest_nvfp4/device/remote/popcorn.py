"""``popcorn:LEADERBOARD``: GPU MODE's own evaluation, by its popcorn-cli.

It takes a single file and judges it itself, on its own problems and inputs. Neither outputs nor single times come back,
so nothing here can be proved or measured by this package: what GPU MODE says is passed on as its word.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import (
    Answer,
    Arrival,
    Batch,
    Cost,
    Handle,
    Place,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
)
from pytest_nvfp4.device.remote.lanes import Lanes, Work
from pytest_nvfp4.device.remote.popcorn_output import Submission, parse
from pytest_nvfp4.device.remote.tool import Said, Tool, last_words
from pytest_nvfp4.device.result import Result, Status
from pytest_nvfp4.finding import Finding

LEADERBOARD = "nvfp4_group_gemm"
MODES = ("test", "benchmark", "leaderboard")
_GET = "get popcorn-cli from github.com/gpu-mode/popcorn-cli and register it"
_NEEDED = ("--gpu", "--leaderboard", "--mode")
_DIRECTIVE = re.compile(r"^(?:#|//)!POPCORN\s+gpus?\s+(\S+)", re.MULTILINE | re.IGNORECASE)
_LOGIN = re.compile(r"register|cli_id|unauthori[sz]ed|status 40[13]|invalid.*token", re.IGNORECASE)
_NETWORK = re.compile(r"POPCORN_API_URL|error sending request|connect|dns|timed out|status 5\d\d|stream ended", re.I)


@dataclass(frozen=True, slots=True)
class PopcornTarget:
    """What ``popcorn:...`` says: ``popcorn:[LEADERBOARD][?mode=MODE][&gpu=GPU]``.

    Attributes:
        leaderboard: Name of the leaderboard.
        mode: ``test``, ``benchmark`` or ``leaderboard``, which is public; None for what a job asks (test or benchmark).
        gpu: The leaderboard's name for the GPU; empty for the file's own directive, else the one that was asked for.
    """

    leaderboard: str = LEADERBOARD
    mode: str | None = None
    gpu: str = ""

    @classmethod
    def parse(cls, text: str) -> PopcornTarget:
        """Read what follows ``popcorn:``. Raises RemoteError."""
        name, _, query = text.partition("?")
        said = {key: unquote(value) for key, _, value in (part.partition("=") for part in query.split("&") if part)}
        if unknown := sorted(set(said) - {"mode", "gpu"}):
            raise RemoteError("setup", f"popcorn knows no {unknown[0]!r}", "it knows mode and gpu")
        mode = said.get("mode")
        if mode is not None and mode not in MODES:
            raise RemoteError("setup", f"mode={mode!r}", f"it is one of {', '.join(MODES)}")
        if name and not re.fullmatch(r"[\w.-]+", name):
            raise RemoteError("setup", f"{name!r} is no name of a leaderboard", "write popcorn:nvfp4_group_gemm")
        return cls(name or LEADERBOARD, mode, said.get("gpu", ""))


class PopcornRemote:
    """GPU MODE's evaluation. A file is submitted once a mode, however many jobs ask about it.

    Args:
        options: ``target`` names the leaderboard.
    """

    name = "popcorn"

    def __init__(self, options: RemoteOptions) -> None:
        if options.deployed_app:
            raise RemoteError("setup", "popcorn has no deployed apps", "leave --nvfp4-deployed-app out")
        self._options = options
        self._target = PopcornTarget.parse(options.target)
        self._tool = Tool(("popcorn-cli", "popcorn"), get=_GET, environ=("POPCORN_API_URL",))
        self._lanes = Lanes(1, self._do)
        self._said: dict[tuple[str, str], Submission] = {}
        self._guard = threading.Lock()

    def describe(self) -> str:
        """What it is, in a line."""
        return f"GPU MODE's leaderboard {self._target.leaderboard} by popcorn-cli: the verdict is theirs"

    @property
    def submissions(self) -> dict[tuple[str, str], Submission]:
        """What was said of each submission, by the kernel's hash and the mode."""
        with self._guard:
            return dict(self._said)

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Queue batches; see ``Remote``."""
        return self._lanes.submit(batches)

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """Their ends; see ``Remote``."""
        return self._lanes.collect(handles, timeout_s=timeout_s)

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Wait for them no longer; what was submitted already runs on at GPU MODE."""
        self._lanes.cancel(handles)

    def status(self) -> RemoteStatus:
        """Whether popcorn-cli is here and knows what is needed; GPU MODE's server is not asked."""
        try:
            self._tool.require(["submit"], _NEEDED)
        except RemoteError as error:
            return RemoteStatus(False, str(error))
        return RemoteStatus(True, f"{self._tool.path} is here; its server was not asked")

    def warm(self) -> None:
        """See that popcorn-cli can be used; there is nothing to make ready. Raises RemoteError."""
        self._tool.require(["submit"], _NEEDED)

    def stop(self) -> None:
        """Wait for nothing any longer."""
        self._lanes.close(wait_s=5)

    def cost(self) -> Cost:
        """GPU MODE takes no money."""
        return Cost(self._lanes.busy_s, 0.0, "GPU MODE's evaluation is free of charge")

    # Jobs

    def _do(self, work: Work) -> Answer:
        start = time.monotonic()
        results = [self._job(job, work) for job in work.batch.jobs]
        return Answer(
            batch=work.batch.id,
            results=tuple(results),
            place=Place(container=f"GPU MODE, {self._target.leaderboard}"),
            busy_s=round(time.monotonic() - start, 3),
        )

    def _job(self, job: Job, work: Work) -> Result:
        if job.kernel is None or job.action not in ("verify", "benchmark"):
            return _result(job, "unavailable", "GPU MODE's evaluation tests and times kernels, and nothing else")
        if len(job.kernel.files) != 1 or job.kernel.entry is not None:
            names = ", ".join(file.path for file in job.kernel.files)
            return _result(
                job,
                "unsupported",
                f"popcorn takes one file that defines custom_kernel(data), and this kernel is {names}",
            )
        mode = self._target.mode or ("test" if job.action == "verify" else "benchmark")
        key = (job.kernel.sha256, mode)
        with self._guard:
            said = self._said.get(key)
        if said is None:
            said = self._submit(job.kernel.files[0].data, Path(job.kernel.main).name, mode, work)
            with self._guard:
                self._said[key] = said
        return _told(job, said, mode)

    def _submit(self, data: bytes, name: str, mode: str, work: Work) -> Submission:
        has = self._tool.require(["submit"], _NEEDED)
        directive = _DIRECTIVE.search(data.decode("utf-8", "replace"))
        gpu = self._target.gpu or (directive[1] if directive else self._options.gpu)
        with tempfile.TemporaryDirectory(prefix="nvfp4-popcorn-") as folder:
            file, written = Path(folder) / name, Path(folder) / "result"
            file.write_bytes(data)
            arguments = ["submit", "--gpu", gpu, "--leaderboard", self._target.leaderboard, "--mode", mode]
            arguments += ["--no-tui"] if "--no-tui" in has else []
            arguments += ["--output", str(written)] if "--output" in has else []
            said = self._tool.run(
                [*arguments, str(file)],
                timeout_s=self._options.timeout_s,
                cwd=Path(folder),
                on_start=lambda kill: setattr(work, "on_stop", kill),
            )
            text = written.read_text("utf-8", "replace") if written.is_file() else said.stdout
        if said.status and not text.strip():
            raise _trouble(said)
        try:
            return parse(text)
        except ValueError as error:
            if said.status:
                raise _trouble(said) from error
            raise RemoteError("version", f"what popcorn-cli wrote cannot be read: {error}", _GET) from error


def _trouble(said: Said) -> RemoteError:
    words = last_words(said)
    if _LOGIN.search(words):
        return RemoteError("login", f"popcorn-cli: {words}", "run `popcorn-cli register` once")
    if _NETWORK.search(words):
        return RemoteError("network", f"popcorn-cli: {words}", "check POPCORN_API_URL and the network")
    return RemoteError("far", f"popcorn-cli ended with status {said.status}: {words}")


def _result(job: Job, status: Status, message: str, detail: str = "") -> Result:
    return Result(job=job.id, status=status, findings=(Finding(kind="popcorn", message=message, detail=detail),))


def _told(job: Job, said: Submission, mode: str) -> Result:
    """GPU MODE's word as a result. A pass of theirs is no pass of ours: no output came back that could be judged."""
    failed = [f"{test.spec}: {test.message or 'failed'}" for test in said.tests if not test.passed]
    where = f" on {said.runner}" if said.runner else ""
    if said.passed is None:
        return _result(job, "unavailable", f"GPU MODE's {mode} has not ended, or does not say how: {said.words()}")
    if not said.passed:
        status: Status = (
            "timeout" if said.exit_code == "timeout" else "error" if said.failure == "Running" else "failed"
        )
        return _result(job, status, f"GPU MODE's {mode}{where} failed: {said.words()}", "\n".join(failed))
    lacking = (
        "it returns no outputs, so the exact oracle has not judged them"
        if job.action == "verify"
        else "it returns no single times, so nothing is compared here"
    )
    return _result(job, "unavailable", f"GPU MODE's own {mode}{where} passed ({said.words()}); {lacking}")
