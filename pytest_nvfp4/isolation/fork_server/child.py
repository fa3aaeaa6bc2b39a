"""Turn a process that the fork server has just forked into the requested worker, and run it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import runpy
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, TOKEN_VARIABLE
from pytest_nvfp4.isolation.fork_server.messages import Descriptors, send_report
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.prctl import die_with_parent, set_dumpable
from pytest_nvfp4.isolation.process_tree import environment_of
from pytest_nvfp4.isolation.worker import Worker

TOKEN_PLACEHOLDER: Final = "-" * 32
"""Token of the server itself: as long as a real one."""
_ENV_START = 50 - 3
"""Index of ``env_start`` after the program's name: proc(5) counts fields from 1, and the third one follows the name."""


@dataclass(frozen=True, slots=True)
class ForkedChild:
    """A newly forked child process.

    Attributes:
        request: The request of the process that wants the child.
        descriptors: The descriptors that came with it.
        path: ``sys.path`` of the child.
        server: The fork server's process.
        library_descriptors: Descriptors that preloaded modules have opened and may still use.
    """

    request: Mapping[str, Any]
    descriptors: Descriptors
    path: list[str]
    server: int
    library_descriptors: frozenset[int]

    def run(self) -> None:
        """Set up this process and run the worker's module; its end is that of a process whose ``__main__`` it is."""
        with socket.socket(fileno=self.descriptors.reports) as reports:
            try:
                self._set_up()
            except BaseException as error:
                send_report(reports, refused=f"{type(error).__name__}: {error}")
                os._exit(1)
            send_report(reports, started=os.getpid())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)

    def _set_up(self) -> None:
        die_with_parent(self.server)
        self._close_other_descriptors()
        os.setsid()
        *standard, result, _ = self.descriptors
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(result, True)
        os.environ.clear()
        os.environ.update(self.request["environ"])
        os.environ[RESULT_VARIABLE] = str(result)
        os.environ[TOKEN_VARIABLE] = self.request["token"]
        os.environ[PARENT_VARIABLE] = str(self.server)
        os.chdir(self.request["cwd"])
        sys.path[:] = self.path
        worker = Worker(**self.request["worker"])
        sys.orig_argv[:] = worker.command
        sys.argv = [worker.module, *worker.arguments]
        _reseed()
        set_dumpable(True)
        _overwrite_token(self.request["token"])
        gc.enable()

    def _close_other_descriptors(self) -> None:
        """Close the descriptors of the server and of other jobs."""
        kept = {0, 1, 2, *self.descriptors, *self.library_descriptors}
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) not in kept:
                with contextlib.suppress(OSError):  # the descriptor by which the folder was listed
                    os.close(int(entry.name))


def _reseed() -> None:
    """Seed the generators that a process seeds at start; the module ``random`` does so by itself after a fork."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.current_process().authkey = os.urandom(32)


def _overwrite_token(token: str) -> None:
    """Write the token over the server's placeholder where other processes read it, in ``/proc/PID/environ``.

    That file shows the memory in which execve(2) placed the environment (``env_start`` in ``/proc/PID/stat``, proc(5)),
    whatever the process did to its environment since. A forked child inherits that memory copy-on-write. What the child
    forks has the token by the same memory, and what it executes has it by its environment.

    Raises:
        RuntimeError: The token does not show there. A process that cannot be found again must not run.
    """
    placeholder, entry = (f"{TOKEN_VARIABLE}={value}".encode() for value in (TOKEN_PLACEHOLDER, token))
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    block = ctypes.string_at(start, end - start) if start else b""
    offset = (b"\0" + block).find(b"\0" + placeholder + b"\0")
    if offset >= 0 and len(entry) == len(placeholder):
        ctypes.memmove(start + offset, entry, len(entry))
    if entry not in environment_of(os.getpid()):
        raise RuntimeError("the token of this process does not show in its environment")
