"""Run another program's command line: found on PATH, asked what it knows, ended with its deadline or when cancelled."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.isolation.environment import scrubbed

_HELP_S = 60.0
_OPTION = re.compile(r"--[a-z][a-z-]+")
_KEPT = 64 << 20


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


class Tool:
    """A command of another package.

    Args:
        names: What it may be called; the first that is on PATH is taken.
        get: How to get it, for the message.
        environ: Variables that it needs on top of the scrubbed environment, by name.
    """

    def __init__(self, names: Sequence[str], *, get: str, environ: Sequence[str] = ()) -> None:
        self._names = list(names)
        self._get = get
        self._environ = list(environ)
        self._help: dict[tuple[str, ...], str] = {}
        self._guard = threading.Lock()

    @property
    def path(self) -> str:
        """Where it is. Raises RemoteError."""
        for name in self._names:
            if found := shutil.which(name):
                return found
        raise RemoteError("setup", f"there is no {' or '.join(self._names)} on PATH", self._get)

    def options(self, *verb: str) -> frozenset[str]:
        """The options that ``VERB --help`` names; asked once. Raises RemoteError where it does not know the verb."""
        with self._guard:
            if verb not in self._help:
                said = self.run([*verb, "--help"], timeout_s=_HELP_S)
                if said.status:
                    raise RemoteError("version", f"{self._command(verb)} is not known to it{_last(said)}", self._get)
                self._help[verb] = said.stdout + said.stderr
        return frozenset(_OPTION.findall(self._help[verb]))

    def require(self, verb: Sequence[str], options: Sequence[str]) -> frozenset[str]:
        """The options of a verb; those named have to be among them. Raises RemoteError that says what is missing."""
        has = self.options(*verb)
        if missing := [option for option in options if option not in has]:
            raise RemoteError(
                "version",
                f"{self._command(verb)} knows no {', '.join(missing)}: this version of it works in another way",
                self._get,
            )
        return has

    def run(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float,
        cwd: Path | None = None,
        on_start: Callable[[Callable[[], None]], None] | None = None,
    ) -> Said:
        """Run it to its end, without a terminal.

        Args:
            arguments: Its arguments.
            timeout_s: Seconds after which it is killed.
            cwd: Its working directory.
            on_start: Gets a function that kills it.

        Raises:
            RemoteError: it cannot be started, or its time passed.
        """
        environ = scrubbed(os.environ, {name: os.environ[name] for name in self._environ if name in os.environ})
        try:
            process = subprocess.Popen(
                [self.path, *arguments],
                cwd=cwd,
                env={**environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RemoteError(
                "setup", f"{self.path} cannot be started: {error.strerror or error}", self._get
            ) from error

        def kill() -> None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

        if on_start is not None:
            on_start(kill)
        try:
            out, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            what = f"{self._command(arguments[:2])} did not end within {timeout_s:.0f} s"
            raise RemoteError(
                "timeout", what, "give it more (--nvfp4-remote-timeout), or look at its own status"
            ) from error
        finally:
            kill()
            process.wait()
        return Said(process.returncode, out[-_KEPT:].decode("utf-8", "replace"), errors.decode("utf-8", "replace"))

    def _command(self, verb: Sequence[str]) -> str:
        return " ".join([Path(self.path).name, *verb])


def _last(said: Said) -> str:
    lines = [line.strip() for line in (said.stderr or said.stdout).splitlines() if line.strip()]
    return f" ({lines[-1][:300]})" if lines else ""


def last_words(said: Said) -> str:
    """The end of what a command said, in one line."""
    return _last(said).strip(" ()")
