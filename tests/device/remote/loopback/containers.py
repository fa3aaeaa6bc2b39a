"""Containers: processes of the client's own entrypoint, bound to the life of this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from modal_proto import api_pb2

from ..programs import children

_PR_SET_PDEATHSIG = 1
DEVICES = Path(__file__).parent / "devices"
"""Devices of tests, which a container finds by their name; nothing of the package is there."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass
class Container:
    """One process that takes inputs of one function."""

    task_id: str
    function_id: str
    process: subprocess.Popen[bytes]
    log: Path
    current: str | None = None
    cancel: list[str] = field(default_factory=list)
    inputs: int = 0

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it with everything in it, whatever session that is in, as the end of a sandbox does."""
        inside = children(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def start(
    *,
    task_id: str,
    function_id: str,
    arguments: api_pb2.ContainerArguments,
    server_url: str,
    root: Path,
    packages: Path,
    environ: dict[str, str],
    folder: Path,
) -> Container:
    """Start a container whose files are below ``root``."""
    path = folder / f"{task_id}.args"
    path.write_bytes(arguments.SerializeToString())
    log = folder / f"{task_id}.log"
    home = folder / f"{task_id}.home"
    home.mkdir()
    variables = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "PYTHONPATH": f"{root}:{packages}:{DEVICES}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MODAL_IS_REMOTE": "1",
        "MODAL_SERVER_URL": server_url,
        "MODAL_TASK_ID": task_id,
        "MODAL_IMAGE_ID": "im-loopback",
        "MODAL_CONTAINER_ARGUMENTS_PATH": str(path),
        "MODAL_CONFIG_PATH": os.devnull,
        "MODAL_OVERRIDE_HEADERS": f"x-loopback-task:{task_id}",
        "MODAL_DISABLE_API_PROXY": "1",
        "MODAL_HEARTBEAT_INTERVAL": "0.2",
        **environ,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-m", "modal._container_entrypoint"],
            env=variables,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - only a system call
        )
    return Container(task_id, function_id, process, log)
