"""``wafer:TARGET``: a GPU that Wafer's command line reaches (wafer-ai, ``wafer sandbox``).

This package and the batch are synced into a sandbox, one command runs there, and its answer comes back in what the
command prints. Wafer prints that once the command has ended, so a program's output comes at its end, in one stream.
Written against wafer-ai 0.0.85; other versions are asked by ``--help`` what they know. It has not been run against
Wafer's service.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pytest_nvfp4.device.remote.base import (
    Answer,
    Arrival,
    Batch,
    Cost,
    Execution,
    Handle,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
)
from pytest_nvfp4.device.remote.bundle import source_files
from pytest_nvfp4.device.remote.lanes import Lanes, OpeningError, Work
from pytest_nvfp4.device.remote.program import pack_program
from pytest_nvfp4.device.remote.tool import Said, Tool, last_words
from pytest_nvfp4.device.remote.wire import pack_batch, unpack_answer
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.toolchain.launcher import PACKAGE

_GET = "install or update it: uv tool install wafer-ai"
_NEEDED = ("--target", "--sync", "--cd", "--timeout-sec")
_CREATED = re.compile(r"Sandbox (\S+) created")
_DELETE_S = 60.0
_GRACE_S = 120
_BEGIN, _END = "-----BEGIN NVFP4 ANSWER-----", "-----END NVFP4 ANSWER-----"
_FRAMED = re.compile(rf"{_BEGIN} ([0-9a-f]{{64}})\s+([A-Za-z0-9+/=\s]*?){_END}")
_RUN = f"""\
import base64, hashlib, pathlib, shutil, subprocess, sys
here = pathlib.Path(__file__).resolve().parent
try:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.device.remote.far"],
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

_EXIT = re.compile(r"\n?-----NVFP4 EXIT (\d+)-----\s*$")
_EXECUTE = """\
import pathlib, shutil, sys
here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
try:
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.remote.program import unpack_program
    def say(stream, piece):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    program, backend = unpack_program((here / "program.json").read_text())
    status = execute(program, backend=backend, on_output=say).exit_status
finally:
    shutil.rmtree(here, ignore_errors=True)
print(f"\\n-----NVFP4 EXIT {status}-----")
"""


@dataclass(frozen=True, slots=True)
class WaferTarget:
    """What ``wafer:...`` says: ``wafer:[TARGET][?sandbox=ID][&python=PYTHON][&price=USD_PER_HOUR]``."""

    target: str = ""
    sandbox: str = ""
    python: str = "python3"
    price: float | None = None

    @classmethod
    def parse(cls, text: str) -> WaferTarget:
        """Read what follows ``wafer:``. Raises RemoteError."""
        name, _, query = text.partition("?")
        said = {key: unquote(value) for key, _, value in (part.partition("=") for part in query.split("&") if part)}
        if unknown := sorted(set(said) - {"sandbox", "python", "price"}):
            raise RemoteError("setup", f"wafer knows no {unknown[0]!r}", "it knows sandbox, python and price")
        if name.startswith("-") or said.get("sandbox", "").startswith("-"):
            raise RemoteError(
                "setup", f"{text!r} begins like an option", "write wafer:TARGET, as `wafer target list` has it"
            )
        try:
            price = float(said["price"]) if "price" in said else None
        except ValueError as error:
            raise RemoteError("setup", f"price={said['price']!r} is no number of US dollars an hour") from error
        return cls(name, said.get("sandbox", ""), said.get("python") or "python3", price)


class WaferRemote:
    """A sandbox on a target of Wafer's. It makes one if none is named, and deletes what it made.

    Args:
        options: ``target`` names the target.
    """

    name = "wafer"

    def __init__(self, options: RemoteOptions) -> None:
        if options.deployed_app:
            raise RemoteError("setup", "wafer has no deployed apps", "leave --nvfp4-deployed-app out")
        self._options = options
        self._target = WaferTarget.parse(options.target)
        self._tool = Tool(("wafer", "wafer-ai"), get=_GET, environ=("SSH_AUTH_SOCK", "WAFER_API_URL"))
        self._lanes = Lanes(1, self._do)
        self._made: str | None = None
        self._held_since: float | None = None
        self._held_s = 0.0
        self._extra_s = 0.0
        self._deleting: list[threading.Thread] = []
        self._guard = threading.Lock()

    def describe(self) -> str:
        """What it is, in a line."""
        return f"a sandbox on {self._target.target or 'the default target'} of wafer, with {self._target.python}"

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Queue batches; see ``Remote``."""
        return self._lanes.submit(batches)

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """Their ends; see ``Remote``."""
        return self._lanes.collect(handles, timeout_s=timeout_s)

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Stop batches; a sandbox that was made here goes with what runs in it, in another it ends by its deadline."""
        self._lanes.cancel(handles)

    def status(self) -> RemoteStatus:
        """Whether wafer is here, knows what is needed, and what it says of the target."""
        try:
            self._check()
            target = ["target", "show", self._target.target] if self._target.target else ["target", "list"]
            said = self._tool.run(target, timeout_s=60)
        except RemoteError as error:
            return RemoteStatus(False, str(error))
        if said.status:
            return RemoteStatus(False, str(_trouble(said)))
        return RemoteStatus(
            True, f"{self._tool.path} is here and knows the target", details={"wafer": last_words(said)}
        )

    def warm(self) -> None:
        """Make the sandbox. Raises RemoteError."""
        self._sandbox()

    def stop(self) -> None:
        """Delete the sandbox that was made here, and wait until that is done: it would go on costing."""
        self._lanes.close(wait_s=5)
        self._delete()
        with self._guard:
            deleting, self._deleting = self._deleting, []
        for thread in deleting:
            thread.join(_DELETE_S + 1)

    def cost(self) -> Cost:
        """Seconds that a sandbox of ours was held, or that batches ran in one of yours."""
        with self._guard:
            held = self._held_s + (time.monotonic() - self._held_since if self._held_since is not None else 0.0)
        note = (
            "wafer's prices are not known here (?price=)"
            if self._target.price is None
            else "the price is the one you gave"
        )
        return Cost(max(held, self._lanes.busy_s + self._extra_s), self._target.price, note)

    def execute(self, program: Execution, *, on_output: OnOutput) -> int:
        """Run a program in a sandbox; see ``Executes``. Its output comes once it has ended, both streams as one."""
        start = time.monotonic()
        deadline = int(program.deadline_s + _GRACE_S)
        try:
            text = {"program.json": pack_program(program), "run.py": _EXECUTE}
            # It may wait for a machine as long as was given for that, and has its own time then.
            said = self._run(text, deadline, longest_s=self._options.timeout_s + deadline + _GRACE_S, on_start=None)
        except OpeningError as opening:
            raise opening.error from opening
        finally:
            self._extra_s += time.monotonic() - start
        ended = _EXIT.search(said.stdout)
        if ended is None:
            raise _missing(said, self._target.python) or _trouble(said)
        on_output("stdout", said.stdout[: ended.start()].encode())
        return int(ended[1])

    # Sandboxes

    def _check(self) -> frozenset[str]:
        return self._tool.require(["sandbox", "run"], _NEEDED)

    def _sandbox(self) -> str:
        """The sandbox to run in; made if none was named and this version can make one. Empty: wafer chooses."""
        if self._target.sandbox or self._made:
            return self._target.sandbox or self._made or ""
        if "--sandbox" not in self._check():
            return ""
        try:
            self._tool.options("sandbox", "create")
        except RemoteError:
            return ""  # `run` makes one itself
        said = self._tool.run(["sandbox", "create", *self._at()], timeout_s=self._options.timeout_s)
        if said.status:
            raise _trouble(said)
        found = _CREATED.search(said.stdout)
        with self._guard:
            self._made = found[1] if found else None
            self._held_since = time.monotonic() if found else None
        return self._made or ""

    def _delete(self) -> None:
        with self._guard:
            made, self._made = self._made, None
            if self._held_since is not None:
                self._held_s += time.monotonic() - self._held_since
                self._held_since = None
        if made is not None:
            try:
                self._tool.run(["sandbox", "delete", made, *self._at()], timeout_s=_DELETE_S)
            except RemoteError:
                return  # it destroys itself after the hours that `wafer sandbox create` gave it

    def _at(self) -> list[str]:
        return ["--target", self._target.target] if self._target.target else []

    def _run(
        self,
        texts: dict[str, str],
        deadline: int,
        *,
        longest_s: float,
        on_start: Callable[[Callable[[], None]], None] | None,
    ) -> Said:
        """Sync a folder with this package and some files, and run its ``run.py``. Raises RemoteError.

        The sandbox ends it after ``deadline`` seconds, and this side after ``longest_s``.
        """
        try:
            has, sandbox = self._check(), self._sandbox()
        except RemoteError as error:
            raise OpeningError(error) from error
        name = f"nvfp4-{uuid.uuid4().hex[:12]}"
        with tempfile.TemporaryDirectory(prefix="nvfp4-wafer-") as parent:
            folder = Path(parent) / name
            _lay_out(folder, texts)
            arguments = ["sandbox", "run", *self._at(), *(["--sandbox", sandbox] if sandbox else [])]
            arguments += ["--sync", str(folder), "--cd", f"/tmp/{name}", "--timeout-sec", str(deadline)]
            if "--idle-timeout-sec" in has:
                arguments += ["--idle-timeout-sec", str(deadline)]  # a batch prints nothing before its end
            return self._tool.run(
                [*arguments, "--", self._target.python, "run.py"],
                timeout_s=longest_s,
                on_start=on_start,
            )

    def _do(self, work: Work) -> Answer:
        def started(kill: Callable[[], None]) -> None:
            def stop() -> None:
                kill()
                deleting = threading.Thread(target=self._delete, daemon=True)
                with self._guard:
                    self._deleting.append(deleting)
                deleting.start()

            work.on_stop = stop

        texts = {"batch.json": pack_batch(work.batch), "run.py": _RUN}
        deadline = int(work.batch.deadline_s + _GRACE_S)
        longest_s = min(self._options.timeout_s, deadline + _GRACE_S)
        said = self._run(texts, deadline, longest_s=longest_s, on_start=started)
        return _answer(said, self._target.python)


def _lay_out(folder: Path, texts: dict[str, str]) -> None:
    """What is synced: this package's source, what is to be done, and a script that does it. No variable of ours."""
    for path in source_files():
        target = folder / PACKAGE.name / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _answer(said: Said, python: str) -> Answer:
    found = _FRAMED.search(said.stdout)
    if found is None:
        if _BEGIN in said.stdout:
            raise RemoteError("lost", "wafer did not pass the whole answer on", "run it again with fewer cases at once")
        raise _missing(said, python) or _trouble(said)
    try:
        data = base64.b64decode("".join(found[2].split()), validate=True)
    except binascii.Error as error:
        raise RemoteError("lost", "the answer that wafer passed on is damaged", "run it again") from error
    if hashlib.sha256(data).hexdigest() != found[1]:
        raise RemoteError("lost", "the answer that wafer passed on is not the one that was sent", "run it again")
    if said.status:
        if lacking := _missing(said, python):
            raise lacking
        raise RemoteError("far", f"the batch ended with status {said.status} in the sandbox: {last_words(said)}")
    return unpack_answer(data.decode())


def _missing(said: Said, python: str) -> RemoteError | None:
    """That the sandbox lacks the Python or a module of it; None where it is something else."""
    text = said.stdout + said.stderr
    if module := re.search(r"No module named '?([\w.]+)", text):
        what = f"{python} of the sandbox lacks {module[1]}"
        return RemoteError("setup", what, "install pytest-nvfp4 there for what it needs, or name another by ?python=")
    if "not found" in text and python in text:
        return RemoteError("setup", f"the sandbox has no {python}", "name another by ?python=")
    return None


def _trouble(said: Said) -> RemoteError:
    words = last_words(said) or "it said nothing"
    low = words.lower()
    if "login" in low or "logged in" in low or "auth" in low or "401" in low or "403" in low:
        return RemoteError("login", f"wafer: {words}", "run `wafer login`")
    if "target" in low and ("not found" in low or "no " in low or "set" in low):
        return RemoteError("setup", f"wafer: {words}", "see `wafer target list`, and name one: wafer:TARGET")
    if "connect" in low or "timed out" in low or "unreachable" in low:
        return RemoteError("network", f"wafer: {words}", "check the network and `wafer target verify`")
    return RemoteError("far", f"wafer ended with status {said.status}: {words}")
