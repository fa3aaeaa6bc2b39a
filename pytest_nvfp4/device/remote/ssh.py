"""``ssh:HOST``: a machine of yours with a GPU, over your own ssh.

ssh decides how to reach it and who you are: its config, agent, jump hosts and known hosts count, nothing is asked for
(``BatchMode``), and nothing of this machine's environment travels. One connection a lane stays open for a session.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
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
from pytest_nvfp4.device.remote.lanes import Lanes, OpeningError, Work
from pytest_nvfp4.device.remote.link.near import START, Line, Settings
from pytest_nvfp4.device.remote.ssh_errors import explain
from pytest_nvfp4.isolation import OnOutput

_CONNECT_S = 10
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6")
_NOTHING_ELSE = ("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "SendEnv=-*")
"""No tunnel and no agent for a machine that runs kernels nobody has reviewed; none of our variables."""
_NEEDED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "SYSTEMROOT"),
    *("SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "KRB5CCNAME"),  # to find the agent and a Kerberos ticket
)
_HOST = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:@\[\]]+)(?::(?P<port>\d{1,5}))?")
_BACKENDS = ("cuda", "sim", "host")
_FORM = "ssh:[USER@]HOST[:PORT][?python=PYTHON][&folder=FOLDER][&config=FILE][&price=USD_PER_HOUR]"


@dataclass(frozen=True, slots=True)
class SshTarget:
    """What ``ssh:...`` says.

    Attributes:
        host: The host, as ssh takes it (a name of ``~/.ssh/config`` too), with ``USER@``.
        port: The port; None for ssh's own choice.
        python: The Python to start there.
        folder: Where its files go; empty for its temporary folder.
        config: An ssh config file instead of the user's own.
        backend: What the device is: ``cuda``, or ``sim`` and ``host``, which run there on the CPU.
        price: US dollars an hour; None where it costs nothing that is known here.
    """

    host: str
    port: int | None = None
    python: str = "python3"
    folder: str = ""
    config: str = ""
    backend: str = "cuda"
    price: float | None = None

    @classmethod
    def parse(cls, text: str) -> SshTarget:
        """Read what follows ``ssh:``. Raises RemoteError."""
        address, _, query = text.partition("?")
        found = _HOST.fullmatch(address.removeprefix("//"))
        if found is None or address.removeprefix("//").startswith("-"):
            raise RemoteError("setup", f"{address!r} names no host", f"write it as {_FORM}")
        if found["host"].startswith("-"):
            raise RemoteError(
                "setup", f"the host {found['host']!r} begins like an option of ssh", f"write it as {_FORM}"
            )
        pairs = (part.partition("=") for part in query.split("&") if part)
        said = {name: unquote(value) for name, _, value in pairs}
        known = {"python", "folder", "config", "backend", "price"}
        if unknown := sorted(set(said) - known):
            raise RemoteError("setup", f"ssh knows no {unknown[0]!r}", f"it knows {', '.join(sorted(known))}: {_FORM}")
        backend = said.get("backend", "cuda")
        if backend not in _BACKENDS:
            raise RemoteError("setup", f"backend={backend!r}", f"it is one of {', '.join(_BACKENDS)}")
        try:
            price = float(said["price"]) if "price" in said else None
        except ValueError as error:
            raise RemoteError("setup", f"price={said['price']!r} is no number of US dollars an hour") from error
        host = found["host"].strip("[]")
        return cls(
            host=f"{found['user']}@{host}" if found["user"] else host,
            port=int(found["port"]) if found["port"] else None,
            python=said.get("python") or "python3",
            folder=said.get("folder", ""),
            config=said.get("config", ""),
            backend=backend,
            price=price,
        )

    def command(self, ssh: str = "ssh") -> list[str]:
        """The command that starts the far Python, with its standard streams on ours."""
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", *_ALIVE]
        for option in _NOTHING_ELSE:
            options += ["-o", option]
        if self.config:
            options += ["-F", str(Path(self.config).expanduser())]
        if self.port is not None:
            options += ["-p", str(self.port)]
        # A tilde is for the far shell; the rest of the path is quoted.
        python = self.python
        quoted = "~/" + shlex.quote(python[2:]) if python.startswith("~/") else shlex.quote(python)
        return [ssh, *options, "--", self.host, f'exec {quoted} -c "{START}"']


class SshRemote:
    """A machine reached by ssh.

    Args:
        options: ``target`` says which; ``containers`` is how many lanes it gets, dealt out over its GPUs.
    """

    name = "ssh"

    def __init__(self, options: RemoteOptions) -> None:
        if options.deployed_app:
            raise RemoteError("setup", "ssh has no deployed apps", "leave --nvfp4-deployed-app out")
        self._options = options
        self._target = SshTarget.parse(options.target)
        self._lanes = Lanes(max(1, options.containers), self._do)
        self._lines: dict[int, Line] = {}
        self._guard = threading.Lock()
        self._stopped = False
        self._extra_s = 0.0

    def describe(self) -> str:
        """What it is, in a line."""
        target = self._target
        port = f", port {target.port}" if target.port else ""
        device = "a GPU" if target.backend == "cuda" else f"the {target.backend} backend"
        return f"{device} of {target.host}{port} over ssh, with {target.python}"

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Queue batches; see ``Remote``."""
        return self._lanes.submit(batches)

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """Their ends; see ``Remote``."""
        return self._lanes.collect(handles, timeout_s=timeout_s)

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Stop batches; what runs there is killed with its line."""
        self._lanes.cancel(handles)

    def status(self) -> RemoteStatus:
        """Connect and ask what is there."""
        try:
            with self._line(0) as line:
                about = line.about
        except RemoteError as error:
            return RemoteStatus(False, str(error))
        assert about is not None
        place = about.place
        gpus = f"{about.gpus} GPU{'' if about.gpus == 1 else 's'}" if about.gpus else "no GPU"
        details = {"python": about.executable, **place.versions}
        if about.missing:
            details["missing"] = ", ".join(about.missing)
        return RemoteStatus(True, f"{place}: {gpus}", containers=len(self._lines), details=details)

    def warm(self) -> None:
        """Open the first lane's line. Raises RemoteError."""
        with self._guard:
            line = self._lines.get(0)
        if line is None or not line.alive:
            self._open(0)

    def stop(self) -> None:
        """Cancel everything and close the lines; nothing of ours is left there."""
        self._stopped = True
        self._lanes.close(wait_s=0)
        with self._guard:
            lines, self._lines = list(self._lines.values()), {}
        closing = [threading.Thread(target=line.close, daemon=True) for line in lines]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(timeout=30)
        self._lanes.close(wait_s=5)

    def cost(self) -> Cost:
        """Seconds that batches and programs ran there."""
        price = self._target.price
        note = "the price is the one you gave" if price is not None else "your own machine: no price is known (?price=)"
        return Cost(self._lanes.busy_s + self._extra_s, price, note)

    def execute(self, program: Execution, *, on_output: OnOutput) -> int:
        """Run a program there; see ``Executes``."""
        start = time.monotonic()
        try:
            with self._line(0) as line:

                def tell(state: str) -> None:
                    if state == "waiting":
                        on_output("stderr", b"nvfp4: another session uses the GPU; waiting for it\n")

                return line.execute(program, on_output=on_output, on_state=tell, wait_s=self._options.timeout_s)
        finally:
            self._extra_s += time.monotonic() - start

    # Lanes

    def _line(self, lane: int) -> Line:
        target = self._target
        ssh = shutil.which("ssh")
        if ssh is None:
            raise RemoteError("setup", "there is no ssh on PATH", "install OpenSSH's client")
        return Line(
            target.command(ssh),
            environ=_environment(),
            settings=Settings(
                backend=target.backend,
                folder=target.folder,
                lane=lane,
                where=target.host,
                python=target.python,
                hello_s=_CONNECT_S + 30,
            ),
            explain=lambda status, errors: explain(target.host, target.python, status, errors),
        )

    def _open(self, lane: int) -> Line:
        line = self._line(lane)
        with self._guard:
            if self._stopped:
                raise RemoteError("cancelled", "this remote was stopped")
            self._lines[lane] = line  # before it is open, so that `stop` can end the opening too
        try:
            line.open()
        except BaseException:
            with self._guard:
                self._lines.pop(lane, None)
            raise
        return line

    def _do(self, work: Work) -> Answer:
        with self._guard:
            line = self._lines.get(work.lane)
        if line is None or not line.alive:
            if line is not None:
                line.close()
            try:
                line = self._open(work.lane)
            except RemoteError as error:
                raise OpeningError(error) from error
        work.on_stop = threading.Thread(target=line.close, daemon=True).start
        if work.stopped.is_set():
            raise RemoteError("cancelled", "it was cancelled")
        try:
            return line.do_batch(work.batch, timeout_s=self._options.timeout_s, on_state=lambda _: None)
        except RemoteError as error:
            if error.trouble == "timeout":
                line.close()  # whatever hangs there is not to hold the GPU
            raise


def _environment() -> dict[str, str]:
    """What ssh itself needs of our environment, and no more: the user's config may say ``SendEnv *``."""
    return {name: os.environ[name] for name in _NEEDED if name in os.environ}
