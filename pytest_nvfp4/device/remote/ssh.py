"""Remote ``ssh:HOST``: the user's own machine with a GPU, through the user's own ssh.

ssh chooses route and identity: its config, agent, jump hosts and known hosts apply, it never prompts (``BatchMode``),
and no variable of this machine's environment is sent. Each worker keeps one connection open for the session.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_nvfp4.device.remote.base import (
    BatchResult,
    Cost,
    PythonProgram,
    RemoteError,
    RemoteOptions,
    RemoteStatus,
)
from pytest_nvfp4.device.remote.link.client import BOOTSTRAP, AgentConnection, AgentSettings
from pytest_nvfp4.device.remote.parts import simulator_scope
from pytest_nvfp4.device.remote.pool import PooledRemote, PoolTask, WorkerStartError
from pytest_nvfp4.device.remote.ssh_errors import explain
from pytest_nvfp4.device.remote.target import parse_price, split_target
from pytest_nvfp4.isolation import OnOutput

_CONNECT_S = 10
_KEEPALIVE = ("ServerAliveInterval=5", "ServerAliveCountMax=6")
"""Notice a dead connection after 30 s (ssh_config(5))."""
_ISOLATION = ("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "SendEnv=-*")
"""No tunnel and no agent for a machine that runs unreviewed kernels, and no variables (ssh_config(5))."""
_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "SYSTEMROOT"),
    *("SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "KRB5CCNAME"),  # to find the agent and a Kerberos ticket
)
"""Variables that ssh itself needs. It receives no others, because the user's config may contain ``SendEnv *``."""
_HOST = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:@\[\]]+)(?::(?P<port>\d{1,5}))?")
_BACKENDS = ("cuda", "sim", "host")
_SYNTAX = "write ssh:[USER@]HOST[:PORT][?python=PYTHON][&folder=FOLDER][&config=FILE][&price=USD_PER_HOUR]"


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Target ``ssh:...``.

    Attributes:
        host: Host as ssh accepts it (also an alias of ``~/.ssh/config``), with ``USER@``.
        port: Port; None for ssh's own choice.
        python: Python interpreter to start there.
        folder: Folder for its files; empty for its temporary folder.
        config: ssh config file to use instead of the user's own.
        backend: Device: ``cuda``, or ``sim`` and ``host``, which run on the CPU there.
        price: US dollars an hour; None if unknown.
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
        """Parse the text after ``ssh:``. Raises RemoteError."""
        address, values = split_target("ssh", text, ("python", "folder", "config", "backend", "price"))
        parts = _HOST.fullmatch(address.removeprefix("//"))
        if parts is None or address.removeprefix("//").startswith("-"):
            raise RemoteError("setup", f"{address!r} names no host", _SYNTAX)
        if parts["host"].startswith("-"):  # ssh would parse it as an option, such as -oProxyCommand=...
            raise RemoteError("setup", f"the host {parts['host']!r} starts like an option of ssh", _SYNTAX)
        backend = values.get("backend", "cuda")
        if backend not in _BACKENDS:
            raise RemoteError("setup", f"ssh:{text}: unknown backend={backend!r}", f"use one of {', '.join(_BACKENDS)}")
        host = parts["host"].strip("[]")
        return cls(
            host=f"{parts['user']}@{host}" if parts["user"] else host,
            port=int(parts["port"]) if parts["port"] else None,
            python=values.get("python") or "python3",
            folder=values.get("folder", ""),
            config=values.get("config", ""),
            backend=backend,
            price=parse_price(values),
        )

    def command(self, ssh: str = "ssh") -> list[str]:
        """Return the command that starts the remote Python, with its standard streams on those of the command."""
        options = ["-T"]
        for option in ("BatchMode=yes", f"ConnectTimeout={_CONNECT_S}", *_KEEPALIVE, *_ISOLATION):
            options += ["-o", option]
        if self.config:
            options += ["-F", str(Path(self.config).expanduser())]
        if self.port is not None:
            options += ["-p", str(self.port)]
        # The remote shell expands a tilde, so only the rest of the path is quoted.
        python = self.python
        quoted = "~/" + shlex.quote(python[2:]) if python.startswith("~/") else shlex.quote(python)
        return [ssh, *options, "--", self.host, f'exec {quoted} -c "{BOOTSTRAP}"']


class SshRemote(PooledRemote):
    """A machine reached by ssh.

    Args:
        options: Options; ``target`` names the machine, and ``containers`` is the number of workers, which are
            distributed over its GPUs.
    """

    name = "ssh"
    simulates = True

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options, size=max(1, options.containers))
        target = SshTarget.parse(options.target)
        self._target = replace(target, backend="sim") if options.simulates else target
        self._connections: dict[int, AgentConnection] = {}
        self._stopped = False

    @property
    def cache_scope(self) -> str:
        """Suffix of the cache's name, so that a simulator's result is never reused as a GPU's."""
        return simulator_scope() if self._target.backend == "sim" else ""

    def describe(self) -> str:
        """Return a description of one line."""
        target = self._target
        port = f", port {target.port}" if target.port else ""
        device = "a GPU" if target.backend == "cuda" else f"the {target.backend} backend"
        return f"{device} of {target.host}{port} over ssh, with {target.python}"

    def status(self) -> RemoteStatus:
        """Connect and describe the machine."""
        try:
            with self._connection(0) as connection:
                agent = connection.agent
        except RemoteError as error:
            return RemoteStatus(False, str(error))
        assert agent is not None
        gpus = f"{agent.gpus} GPU{'' if agent.gpus == 1 else 's'}" if agent.gpus else "no GPU"
        details = {"python": agent.executable, **agent.place.versions}
        if agent.missing:
            details["missing"] = ", ".join(agent.missing)
        return RemoteStatus(True, f"{agent.place}: {gpus}", containers=len(self._connections), details=details)

    def warm(self) -> None:
        """Open the first worker's connection. Raises RemoteError."""
        with self._guard:
            connection = self._connections.get(0)
        if connection is None or not connection.alive:
            self._open(0)

    def stop(self) -> None:
        """Cancel everything and close the connections; the agents remove their files and processes."""
        self._stopped = True
        self._pool.close(wait_s=0)
        with self._guard:
            connections, self._connections = list(self._connections.values()), {}
        closing = [threading.Thread(target=connection.close, daemon=True) for connection in connections]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(timeout=30)
        self._pool.close(wait_s=5)

    def end_all(self) -> list[str]:
        """End nothing: processes there end with their connection. Raises RemoteError if that cannot be known."""
        status = self.status()
        if not status.reachable:
            raise RemoteError("network", status.summary, "its processes end 120 s after their connection was lost")
        return []

    def cost(self) -> Cost:
        """Return the seconds that batches and programs ran there."""
        return self._cost(self._pool.busy_s + self._programs_s, self._target.price)

    def execute(self, program: PythonProgram, *, on_output: OnOutput) -> int:
        """Run a program there; see `ProgramRemote`."""
        start = time.monotonic()
        try:
            with self._connection(0) as connection:

                def on_state(state: str) -> None:
                    if state == "waiting":
                        on_output("stderr", b"nvfp4: waiting for the GPU, which another session uses\n")

                return connection.execute(
                    program, on_output=on_output, on_state=on_state, wait_s=self._options.timeout_s
                )
        finally:
            self._programs_s += time.monotonic() - start

    def _connection(self, worker: int) -> AgentConnection:
        target = self._target
        ssh = shutil.which("ssh")
        if ssh is None:
            raise RemoteError("setup", "ssh is not on PATH", "install the OpenSSH client")
        return AgentConnection(
            target.command(ssh),
            environ={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            settings=AgentSettings(
                backend=target.backend,
                folder=target.folder,
                worker=worker,
                host=target.host,
                python=target.python,
                hello_s=_CONNECT_S + 30,
            ),
            explain=lambda status, errors: explain(target.host, target.python, status, errors),
        )

    def _open(self, worker: int) -> AgentConnection:
        connection = self._connection(worker)
        with self._guard:
            if self._stopped:
                raise RemoteError("cancelled", "the remote was stopped")
            self._connections[worker] = connection  # before it opens, so that `stop` can interrupt that
        try:
            connection.open()
        except BaseException:
            with self._guard:
                self._connections.pop(worker, None)
            raise
        return connection

    def _run_batch(self, task: PoolTask) -> BatchResult:
        with self._guard:
            connection = self._connections.get(task.worker)
        if connection is None or not connection.alive:
            if connection is not None:
                connection.close()
            try:
                connection = self._open(task.worker)
            except RemoteError as error:
                raise WorkerStartError(error) from error
        # In a thread, because `on_stop` must not block.
        task.on_stop = threading.Thread(target=connection.close, daemon=True).start
        if task.stopped.is_set():
            raise RemoteError("cancelled", "the batch was cancelled")
        try:
            return connection.execute_batch(task.batch, timeout_s=self._options.timeout_s, on_state=lambda _: None)
        except RemoteError as error:
            if error.kind == "timeout":
                connection.close()  # stops a hanging kernel, which would otherwise occupy the GPU
            raise
