"""Remote ``wafer:TARGET``: a GPU that Wafer's command line reaches (wafer-ai, ``wafer sandbox``).

This package and the batch are synced into a sandbox, one command runs there, and its result comes back in the output
of the command. Wafer prints that output when the command has ended, so a program's output arrives at its end, in one
stream. Written for wafer-ai 0.0.85; the options of other versions are read from ``--help``. It has not been run
against Wafer's service.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.remote.base import (
    BatchResult,
    Cost,
    PythonProgram,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
)
from pytest_nvfp4.device.remote.bundle import source_files
from pytest_nvfp4.device.remote.pool import PooledRemote, PoolTask, WorkerStartError
from pytest_nvfp4.device.remote.program import pack_program
from pytest_nvfp4.device.remote.serialization import pack_batch, unpack_result
from pytest_nvfp4.device.remote.target import parse_price, split_target
from pytest_nvfp4.device.remote.tool import CommandLineTool, StartCallback, ToolOutput
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.isolation.launcher import PACKAGE
from pytest_nvfp4.temporary import temporary_folder

_INSTALL = "install or update it: uv tool install wafer-ai"
_REQUIRED = ("--target", "--sync", "--cd", "--timeout-sec")
_CREATED = re.compile(r"Sandbox (\S+) created")
_DELETE_S = 60.0
_GRACE_S = 120
"""Seconds for the transfer and the start, in addition to the deadlines of the jobs."""
# The output may contain lines of the tool and of the kernel, so the result has markers and a hash.
_BEGIN, _END = "-----BEGIN NVFP4 RESULT-----", "-----END NVFP4 RESULT-----"
_FRAMED = re.compile(rf"{_BEGIN} ([0-9a-f]{{64}})\s([A-Za-z0-9+/=\s]*+){_END}")
_RUN = f"""\
import base64, hashlib, pathlib, shutil, subprocess, sys
here = pathlib.Path(__file__).resolve().parent
try:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.device.remote.executor"],
        input=(here / "batch.json").read_bytes(), stdout=subprocess.PIPE, cwd=here,
    )
    print({_BEGIN!r}, hashlib.sha256(done.stdout).hexdigest())
    text = base64.b64encode(done.stdout).decode()
    for at in range(0, len(text), 120):
        print(text[at : at + 120])
    print({_END!r})
    sys.stdout.flush()
finally:
    shutil.rmtree(here, ignore_errors=True)
sys.exit(done.returncode)
"""

_EXIT = re.compile(r"\n?-----NVFP4 EXIT (\d{1,4})-----\s*$")
_EXECUTE = """\
import pathlib, shutil, sys
here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
try:
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.remote.program import unpack_program
    def write(stream, data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    program, backend = unpack_program((here / "program.json").read_text())
    status = execute(program, backend=backend, on_output=write).exit_status
finally:
    shutil.rmtree(here, ignore_errors=True)
print(f"\\n-----NVFP4 EXIT {status}-----")
"""


@dataclass(frozen=True, slots=True)
class WaferTarget:
    """Target ``wafer:[TARGET][?sandbox=ID][&python=PYTHON][&price=USD_PER_HOUR]``."""

    target: str = ""
    sandbox: str = ""
    python: str = "python3"
    price: float | None = None

    @classmethod
    def parse(cls, text: str) -> WaferTarget:
        """Parse the text after ``wafer:``. Raises RemoteError."""
        name, values = split_target("wafer", text, ("sandbox", "python", "price"))
        if name.startswith("-") or values.get("sandbox", "").startswith("-"):
            remedy = "write wafer:TARGET, with a name of `wafer target list`"
            raise RemoteError("setup", f"{text!r} starts like an option", remedy)
        return cls(name, values.get("sandbox", ""), values.get("python") or "python3", parse_price(values))


class WaferRemote(PooledRemote):
    """A sandbox on a target of Wafer's; creates one if none is named, and deletes what it created.

    Args:
        options: Options; ``target`` names the target.
    """

    name = "wafer"

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options, size=1)
        self._target = WaferTarget.parse(options.target)
        variables = ("SSH_AUTH_SOCK", "WAFER_API_URL")
        self._tool = CommandLineTool(("wafer", "wafer-ai"), install=_INSTALL, environ=variables)
        self._created: str | None = None
        self._held_since: float | None = None
        self._held_s = 0.0
        self._deletions: list[threading.Thread] = []

    def describe(self) -> str:
        """Return a description of one line."""
        return f"a sandbox on {self._target.target or 'the default target'} of wafer, with {self._target.python}"

    def status(self) -> RemoteStatus:
        """Report whether wafer is installed with the required options, and its line about the target."""
        try:
            self._check()
            target = ["target", "show", self._target.target] if self._target.target else ["target", "list"]
            output = self._tool.run(target, timeout_s=60)
        except RemoteError as error:
            return RemoteStatus(False, str(error))
        if output.status:
            return RemoteStatus(False, str(_error(output)))
        details = {"wafer": output.last_line}
        return RemoteStatus(True, f"{self._tool.path} is installed and lists the target", details=details)

    def warm(self) -> None:
        """Create the sandbox. Raises RemoteError."""
        self._sandbox()

    def stop(self) -> None:
        """Delete the created sandbox and wait for the deletion, because the sandbox would continue to cost money."""
        self._pool.close(wait_s=5)
        self._delete()
        with self._guard:
            deletions, self._deletions = self._deletions, []
        for thread in deletions:
            thread.join(_DELETE_S + 1)

    def cost(self) -> Cost:
        """Return the seconds that a created sandbox was held, or that batches ran in the user's own."""
        with self._guard:
            held = self._held_s + (time.monotonic() - self._held_since if self._held_since is not None else 0.0)
        return self._cost(max(held, self._pool.busy_s + self._programs_s), self._target.price)

    def execute(self, program: PythonProgram, *, on_output: OnOutput) -> int:
        """Run a program in a sandbox; see `ProgramRemote`. Its output arrives at its end, both streams as one."""
        start = time.monotonic()
        deadline = int(program.deadline_s + _GRACE_S)
        try:
            files = {"program.json": pack_program(program), "run.py": _EXECUTE}
            # The wait for a machine has a timeout of its own, in addition to the program's.
            output = self._run(files, deadline, timeout_s=self._options.timeout_s + deadline + _GRACE_S, on_start=None)
        except WorkerStartError as start_error:
            raise start_error.error from start_error
        finally:
            self._programs_s += time.monotonic() - start
        end = _EXIT.search(output.stdout)
        if end is None:
            raise _missing(output, self._target.python) or _error(output)
        on_output("stdout", output.stdout[: end.start()].encode())
        return int(end[1])

    def _check(self) -> frozenset[str]:
        return self._tool.require(["sandbox", "run"], _REQUIRED)

    def _sandbox(self) -> str:
        """Return the sandbox to run in; create one if none is named. Empty if `wafer sandbox run` creates it."""
        if self._target.sandbox or self._created:
            return self._target.sandbox or self._created or ""
        if "--sandbox" not in self._check():
            return ""
        try:
            self._tool.options("sandbox", "create")
        except RemoteError:
            return ""
        output = self._tool.run(["sandbox", "create", *self._target_option()], timeout_s=self._options.timeout_s)
        if output.status:
            raise _error(output)
        created = _CREATED.search(output.stdout)
        with self._guard:
            self._created = created[1] if created else None
            self._held_since = time.monotonic() if created else None
        return self._created or ""

    def _delete(self) -> None:
        with self._guard:
            created, self._created = self._created, None
            if self._held_since is not None:
                self._held_s += time.monotonic() - self._held_since
                self._held_since = None
        if created is not None:
            try:
                self._tool.run(["sandbox", "delete", created, *self._target_option()], timeout_s=_DELETE_S)
            except RemoteError:
                return  # `wafer sandbox create` gave it a limit of hours, after which it deletes itself

    def _target_option(self) -> list[str]:
        return ["--target", self._target.target] if self._target.target else []

    def _run(
        self, files: dict[str, str], deadline: int, *, timeout_s: float, on_start: StartCallback | None
    ) -> ToolOutput:
        """Sync a folder with this package and ``files``, and run its ``run.py``. Raises RemoteError.

        The sandbox stops it after ``deadline`` seconds, and this side after ``timeout_s``.
        """
        try:
            options, sandbox = self._check(), self._sandbox()
        except RemoteError as error:
            raise WorkerStartError(error) from error
        name = f"nvfp4-{uuid.uuid4().hex[:12]}"
        with temporary_folder("wafer") as parent:
            folder = Path(parent) / name
            _write_folder(folder, files)
            arguments = ["sandbox", "run", *self._target_option(), *(["--sandbox", sandbox] if sandbox else [])]
            arguments += ["--sync", str(folder), "--cd", f"/tmp/{name}", "--timeout-sec", str(deadline)]
            if "--idle-timeout-sec" in options:
                arguments += ["--idle-timeout-sec", str(deadline)]  # a batch prints nothing before its end
            arguments += ["--", self._target.python, "run.py"]
            return self._tool.run(arguments, timeout_s=timeout_s, on_start=on_start)

    def _run_batch(self, task: PoolTask) -> BatchResult:
        def on_start(kill: Callable[[], None]) -> None:
            def stop() -> None:
                kill()
                # The kernel would continue in the sandbox. In a thread, because `on_stop` must not block.
                deletion = threading.Thread(target=self._delete, daemon=True)
                with self._guard:
                    self._deletions.append(deletion)
                deletion.start()

            task.on_stop = stop

        files = {"batch.json": pack_batch(task.batch), "run.py": _RUN}
        deadline = int(task.batch.deadline_s + _GRACE_S)
        timeout_s = min(self._options.timeout_s, deadline + _GRACE_S)
        return _parse_result(self._run(files, deadline, timeout_s=timeout_s, on_start=on_start), self._target.python)


def _write_folder(folder: Path, files: dict[str, str]) -> None:
    """Write what is synced: this package's source and the given files. No variable of this machine is sent."""
    for path in source_files():
        target = folder / PACKAGE.name / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _parse_result(output: ToolOutput, python: str) -> BatchResult:
    framed = _FRAMED.search(output.stdout)
    if framed is None:
        if _BEGIN in output.stdout:
            raise RemoteError("lost", "wafer returned only a part of the result", "run it again with fewer cases")
        raise _missing(output, python) or _error(output)
    try:
        data = base64.b64decode("".join(framed[2].split()), validate=True)
    except binascii.Error as error:
        raise RemoteError("lost", "the result that wafer returned is damaged", "run it again") from error
    if hashlib.sha256(data).hexdigest() != framed[1]:
        raise RemoteError("lost", "the result that wafer returned does not match its hash", "run it again")
    if output.status:
        if missing := _missing(output, python):
            raise missing
        raise RemoteError("remote", f"the batch ended with status {output.status} in the sandbox: {output.last_line}")
    return unpack_result(data)


def _missing(output: ToolOutput, python: str) -> RemoteError | None:
    """Return the error of a sandbox without the Python or a module of it; None for another failure."""
    text = output.stdout + output.stderr
    if module := re.search(r"No module named '?([\w.]+)", text):
        problem = f"{python} of the sandbox lacks {module[1]}"
        remedy = "install the requirements of pytest-nvfp4 there, or name another Python with ?python="
        return RemoteError("setup", problem, remedy)
    if "not found" in text and python in text:
        return RemoteError("setup", f"the sandbox has no {python}", "name another Python with ?python=")
    return None


def _error(output: ToolOutput) -> RemoteError:
    line = output.last_line or "no output"
    low = line.lower()
    if "login" in low or "logged in" in low or "auth" in low or "401" in low or "403" in low:
        return RemoteError("login", f"wafer: {line}", "run `wafer login`")
    if "target" in low and ("not found" in low or "no " in low or "set" in low):
        return RemoteError("setup", f"wafer: {line}", "see `wafer target list`, and name one: wafer:TARGET")
    if "connect" in low or "timed out" in low or "unreachable" in low:
        return RemoteError("network", f"wafer: {line}", "check the network and `wafer target verify`")
    return RemoteError("remote", f"wafer ended with status {output.status}: {line}")
