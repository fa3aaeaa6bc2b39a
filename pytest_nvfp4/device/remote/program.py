"""Run a program on the far side and pass on what it writes, as texts."""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pytest_nvfp4.device.remote.base import Execution, RemoteError
from pytest_nvfp4.isolation.environment import scrubbed

_CHUNK = 1 << 16
_TIMED_OUT = 124
"""Exit status of a program that was stopped, as timeout(1) has it."""


@dataclass(frozen=True, slots=True)
class Output:
    """Something a program wrote, or its exit status."""

    stream: Literal["stdout", "stderr"] = "stdout"
    data: bytes = b""
    status: int | None = None


def pack_program(program: Execution) -> str:
    """A program as text."""
    return json.dumps(
        {
            "source": program.source,
            "arguments": list(program.arguments),
            "files": {name: base64.b64encode(data).decode("ascii") for name, data in program.files.items()},
            "environ": dict(program.environ),
            "stdin": base64.b64encode(program.stdin).decode("ascii"),
            "deadline_s": program.deadline_s,
        }
    )


def unpack_program(text: str) -> Execution:
    """The program of a text. Raises RemoteError."""
    try:
        content = json.loads(text)
        return Execution(
            source=content["source"],
            arguments=tuple(content["arguments"]),
            files={name: base64.b64decode(data) for name, data in content["files"].items()},
            environ=content["environ"],
            stdin=base64.b64decode(content["stdin"]),
            deadline_s=float(content["deadline_s"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteError("version", f"the program cannot be read: {error}") from error


def pack_output(output: Output) -> str:
    """A piece of output as text."""
    if output.status is not None:
        return json.dumps({"status": output.status})
    return json.dumps({"stream": output.stream, "data": base64.b64encode(output.data).decode("ascii")})


def unpack_output(text: str) -> Output:
    """The piece of output of a text. Raises RemoteError."""
    try:
        content = json.loads(text)
        if "status" in content:
            return Output(status=int(content["status"]))
        stream: Literal["stdout", "stderr"] = "stderr" if content["stream"] == "stderr" else "stdout"
        return Output(stream, base64.b64decode(content["data"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteError("version", f"the program's output cannot be read: {error}") from error


def run_program(text: str) -> Iterator[str]:
    """Run the program of a text in a folder of its own, with a scrubbed environment; the last piece is its status."""
    program = unpack_program(text)
    with tempfile.TemporaryDirectory(prefix="nvfp4-exec-") as name:
        folder = Path(name)
        for path, data in program.files.items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                yield pack_output(Output("stderr", f"{path}: not a path below the working directory\n".encode()))
                yield pack_output(Output(status=2))
                return
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        with tempfile.TemporaryFile() as stdin:
            stdin.write(program.stdin)
            stdin.seek(0)
            yield from _stream(program, folder, stdin.fileno())


def _stream(program: Execution, folder: Path, stdin: int) -> Iterator[str]:
    search = os.pathsep.join([str(folder), *(entry for entry in sys.path if entry and Path(entry).exists())])
    process = subprocess.Popen(
        [sys.executable, "-c", program.source, *program.arguments],
        cwd=folder,
        env=scrubbed(os.environ, {"PYTHONPATH": search, "PYTHONUNBUFFERED": "1", **program.environ}),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    until, late = time.monotonic() + program.deadline_s, False
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            while selector.get_map():
                left = until - time.monotonic()
                if left <= 0:
                    late = True
                    break
                for key, _ in selector.select(min(left, 0.5)):
                    data = os.read(key.fd, _CHUNK)
                    if data:
                        yield pack_output(Output(key.data, data))
                    else:
                        selector.unregister(key.fileobj)
                if process.poll() is not None and not selector.select(0.05):
                    break  # something it left behind holds the pipes
        if late:
            yield pack_output(Output("stderr", f"stopped after {program.deadline_s:.0f} s\n".encode()))
    finally:
        _kill(process)
    code = process.wait()
    yield pack_output(Output(status=_TIMED_OUT if late else code if code >= 0 else 128 - code))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        if process.poll() is None or sys.platform == "linux":
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
