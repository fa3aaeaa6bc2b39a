"""Run a program that is not trusted, a worker or a reviewer, behind the wall: what it may reach, and what is kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation import ProcessEnd, forward_output, streamed
from pytest_nvfp4.isolation.launcher import PACKAGE, worker
from pytest_nvfp4.isolation.wall import Part, Wall
from pytest_nvfp4.loop.configuration.config import CommandSection
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.work.output_log import OutputLog
from pytest_nvfp4.loop.work.template import CommandTemplate
from pytest_nvfp4.sandbox_mode import Mode, mode_from
from pytest_nvfp4.toolchain.sandbox import PURPOSES, Sandbox, remedy

_MODULE: Final = "pytest_nvfp4.isolation.wall.command"
_MOST_FILE_BYTES: Final = 4 << 30
_MEANWHILE_S: Final = 1.0
_NOT_RUN: Final = (
    ", as a shell does where a program does not exist or may not be read; its standard error names it, and `readable` "
    "gives the sandbox programs below your home folder"
)
_ENVIRONMENT: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    # A file of settings that exists and cannot be read ends git.
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program.

    Attributes:
        values: Values of the keys of its command.
        cwd: Its working folder.
        box: Folder for its home directory and temporary files.
        readable: What it may read, beside the system and what the configuration names.
        writable: What it may write, beside ``box`` and what the configuration names.
        environ: Variables for it.
        stdin: File that is its standard input; None for an empty one.
        logs: Names of the files for its standard output and standard error.
        timeout_s: Seconds until it is ended.
        meanwhile: Called about once a second while it runs; an exception from it ends the program.
    """

    values: Mapping[str, str]
    cwd: Path
    box: Path
    readable: Sequence[Path]
    writable: Sequence[Path]
    environ: Mapping[str, str]
    stdin: Path | None
    logs: tuple[Path, Path]
    timeout_s: float
    meanwhile: Callable[[], None] | None = None


class ConfinedCommand:
    """A user's command for a program that is not trusted.

    Args:
        section: Its table in the configuration.
        option: Name of the command in the configuration, for errors.
        keys: Keys of its command line.
        root: Folder that relative paths refer to: the top of the repository.
        closed: Folders of which it may write no part, whatever the configuration says.

    Raises:
        ConfigError: The command has an unknown key, its program or a file that it may read does not exist, or the
            sandbox is required and not complete here.
    """

    def __init__(
        self, section: CommandSection, *, option: str, keys: Sequence[str], root: Path, closed: Sequence[Path] = ()
    ) -> None:
        self._section = section
        self._root = root
        self._template = CommandTemplate(section.command, keys=keys, option=f"{option}.command")
        self._search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.program = self._program(f"{option}.command")
        self.name = self.program.name
        self._readable = [self._place(text, f"{option}.readable") for text in section.readable]
        self._writable = [self._place(text, f"{option}.writable", closed) for text in section.writable]
        self._check_sandbox()

    @cached_property
    def sandbox(self) -> Sandbox:
        """The parts of the sandbox on this machine."""
        return Sandbox.probe()

    def _check_sandbox(self) -> None:
        """Raise ConfigError if the sandbox is required, and this machine lacks parts of it."""
        if self._mode() == "require" and (missing := self._missing()):
            lines = [f"{part} ({reason}): {remedy(part)}" for part, reason in missing.items()]
            raise ConfigError(["the sandbox is required, and this machine lacks parts of it: " + "; ".join(lines)])

    def lost(self) -> tuple[str, ...]:
        """Return what does not protect this machine from the program, a line each; empty if all of the sandbox does."""
        if self._mode() == "off":
            return (
                "the sandbox is off: the program can read and write what you can, your keys, branches and the loop's "
                "state among it, and use the network",
            )
        lines = [f"no {part} ({reason}), which protects {PURPOSES[part]}" for part, reason in self._missing().items()]
        if self._section.network:
            lines.append("it may use the network and local sockets, such as those of an agent for keys or of Docker")
        return tuple(lines)

    def run(self, asked: Run) -> ProcessEnd:
        """Run the program to its end; nothing that it has started outlives it.

        Raises:
            OSError: It could not be started, or its output could not be written.
            StoppedError: The loop is stopped.
        """
        section = self._section
        wall = Wall(
            folder=str(asked.box),
            readable=tuple(map(str, [*asked.readable, *self._readable, self.program, self.program.resolve()])),
            writable=tuple(map(str, [*asked.writable, *self._writable])),
            listed=(str(PACKAGE.parent),),  # so that `nvfp4` is found there if it is installed as editable
            network=section.network,
            file_bytes=_MOST_FILE_BYTES,
            mode=self._mode(),
        )
        kept = [name for name in section.environment if name in os.environ]
        environ = {**_ENVIRONMENT, **{name: os.environ[name] for name in kept}, "PATH": self._path(), **asked.environ}
        command = [str(self.program), *self._template.filled(asked.values)[1:]]
        module = worker(_MODULE, json.dumps([command, kept]))
        most = int(section.output_mb * 1e6)
        asked.box.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            logs = {}
            for stream, path in zip(("stdout", "stderr"), asked.logs, strict=True):
                logs[stream] = OutputLog(path, most=most)
                stack.callback(logs[stream].close)
            chunks = streamed(
                module,
                cwd=asked.cwd,
                deadline_s=asked.timeout_s,
                environ=environ,
                stdin=asked.stdin,
                wall=wall,
                meanwhile=_Pace(asked.meanwhile),
            )
            return forward_output(chunks, lambda stream, data: logs[stream].write(data))

    @staticmethod
    def failure(who: str, end: ProcessEnd) -> str | None:
        """Return how a program has failed, as a sentence; None if it has not."""
        if not end.timed_out and end.returncode == 0:
            return None
        hint = _NOT_RUN if end.exit_status in (126, 127) else ""
        return f"the {who} {end.describe_end()}{hint}"

    def _mode(self) -> Mode:
        return self._section.sandbox if self._section.sandbox != "auto" else mode_from(os.environ)

    def _missing(self) -> dict[Part, str]:
        unused = {Part.NETWORK} if self._section.network else set()
        return {part: reason for part, reason in self.sandbox.missing.items() if part not in unused}

    def _program(self, option: str) -> Path:
        """Return the absolute path of the program; a relative one with a slash lies below the repository's top."""
        name = self._template.program
        if "/" in name:
            name = str(self._root / Path(name).expanduser())
        found = shutil.which(name, path=self._search)
        if found is None:
            raise ConfigError([f"{option} names the program {name!r}, which does not exist or cannot be executed"])
        return Path(found).absolute()

    def _path(self) -> str:
        """Return the program's ``PATH``: this interpreter's programs first, and no folder that it may not read.

        A program that exists and cannot be executed would hide those of later folders.
        """
        if self._mode() == "off":
            return self._search
        home = Path.home().resolve()
        readable = [place.resolve() for place in (*self._readable, *self._writable)]
        own, *others = self._search.split(os.pathsep)
        kept = [own]
        for text in others:
            place = Path(text).resolve()
            if not place.is_relative_to(home) or any(place.is_relative_to(each) for each in readable):
                kept.append(text)
        return os.pathsep.join(kept)

    def _place(self, text: str, option: str, closed: Sequence[Path] = ()) -> Path:
        place = self._root / Path(text).expanduser()
        if not place.exists():
            raise ConfigError([f"{option} names {text!r}, which does not exist ({place})"])
        real = place.resolve()
        for folder in closed:
            if folder.resolve().is_relative_to(real) or real.is_relative_to(folder.resolve()):
                raise ConfigError(
                    [f"{option} names {text!r}, which holds or lies in {folder}, and that stays as it is"]
                )
        return place


class _Pace:
    """Calls a function about once a second, and less often if it takes long."""

    def __init__(self, function: Callable[[], None] | None) -> None:
        self._function = function
        self._next = 0.0

    def __call__(self) -> None:
        if self._function is None or time.monotonic() < self._next:
            return
        start = time.monotonic()
        self._function()
        self._next = start + max(_MEANWHILE_S, 20 * (time.monotonic() - start))
