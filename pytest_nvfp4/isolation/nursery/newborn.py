"""What a child does to itself before it is the process that was asked for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.nursery import mark

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def readable(yes: bool) -> None:
    """Let other processes of this user look into this one, or not (``PR_SET_DUMPABLE``; root may in any case)."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(yes), 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Newborn:
    """A child that was just forked.

    Attributes:
        request: What it is to be.
        streams: Its standard input, output and error, and the descriptor on which it returns its result.
        asker: Where it says that it is ready.
        path: Its ``sys.path``.
        parent: The nursery.
        keep: Descriptors that belong to what the nursery imported.
    """

    request: Mapping[str, Any]
    streams: Sequence[int]
    asker: socket.socket
    path: Sequence[str]
    parent: int
    keep: frozenset[int]

    def run(self) -> None:
        """Become what was asked for, and run it. It ends as a process does whose ``__main__`` it is."""
        try:
            arguments = self._settle()
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.asker.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
            os._exit(1)
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=False)

    def _settle(self) -> list[str]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.parent:
            os._exit(1)  # it ended before the line above could bind this process to it
        *standard, result = self.streams
        self._close_others({*standard, result, self.asker.fileno()})
        os.setsid()
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(result, True)
        self._set_environment(result)
        os.chdir(self.request["cwd"])
        sys.path[:] = self.path
        sys.orig_argv[:] = self.request["command"]
        _draw_anew()
        readable(True)
        mark.overwrite(self.request["token"])
        gc.enable()
        self.asker.send(json.dumps({"started": os.getpid()}).encode())
        self.asker.close()
        return [self.request["module"], *self.request["arguments"]]

    def _close_others(self, own: set[int]) -> None:
        """Nothing of the nursery's, and nothing of another job's, is reached from here."""
        for entry in list(Path("/proc/self/fd").iterdir()):
            number = int(entry.name)
            if number > 2 and number not in own and number not in self.keep:
                with contextlib.suppress(OSError):  # the one that lists them
                    os.close(number)

    def _set_environment(self, result: int) -> None:
        os.environ.clear()
        os.environ.update(self.request["environ"])
        os.environ[self.request["result_variable"]] = str(result)
        os.environ[TOKEN_VARIABLE] = self.request["token"]
        os.environ[PARENT_VARIABLE] = str(self.parent)


def _draw_anew() -> None:
    """Seed what a process seeds by itself when it starts; ``random`` does so in every child."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
