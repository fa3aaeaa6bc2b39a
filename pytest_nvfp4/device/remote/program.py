"""Run a program on the far side and pass on what it writes, as texts."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.device.execute import execution
from pytest_nvfp4.device.remote.base import Execution, RemoteError
from pytest_nvfp4.isolation import Streamed

_USAGE = 2
"""Exit status where nothing was run."""


@dataclass(frozen=True, slots=True)
class Output:
    """Something a program wrote, its exit status, or by what name its run can be cancelled."""

    stream: Literal["stdout", "stderr"] = "stdout"
    data: bytes = b""
    status: int | None = None
    call: str = ""


def pack_program(program: Execution, *, backend: str = "cuda") -> str:
    """A program as text, with what its ``device="cuda"`` is (``device.execute``)."""
    return json.dumps(
        {
            "source": program.source,
            "arguments": list(program.arguments),
            "files": {name: base64.b64encode(data).decode("ascii") for name, data in program.files.items()},
            "environ": dict(program.environ),
            "stdin": base64.b64encode(program.stdin).decode("ascii"),
            "deadline_s": program.deadline_s,
            "backend": backend,
        }
    )


def unpack_program(text: str) -> tuple[Execution, str]:
    """The program of a text, and its backend. Raises RemoteError."""
    try:
        content = json.loads(text)
        program = Execution(
            source=content["source"],
            arguments=tuple(content["arguments"]),
            files={name: base64.b64decode(data) for name, data in content["files"].items()},
            environ=content["environ"],
            stdin=base64.b64decode(content["stdin"]),
            deadline_s=float(content["deadline_s"]),
        )
        return program, str(content["backend"])
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteError("version", f"the program cannot be read: {error}") from error


def pack_output(output: Output) -> str:
    """A piece of output as text."""
    if output.status is not None:
        return json.dumps({"status": output.status})
    if output.call:
        return json.dumps({"call": output.call})
    return json.dumps({"stream": output.stream, "data": base64.b64encode(output.data).decode("ascii")})


def unpack_output(text: str) -> Output:
    """The piece of output of a text. Raises RemoteError."""
    try:
        content = json.loads(text)
        if "status" in content:
            return Output(status=int(content["status"]))
        if "call" in content:
            return Output(call=str(content["call"]))
        stream: Literal["stdout", "stderr"] = "stderr" if content["stream"] == "stderr" else "stdout"
        return Output(stream, base64.b64decode(content["data"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteError("version", f"the program's output cannot be read: {error}") from error


def run_program(text: str) -> Iterator[str]:
    """Run the program of a text where it says; the last piece is its exit status. Closing the iterator ends it."""
    try:
        program, backend = unpack_program(text)
        with contextlib.closing(execution(program, backend=backend)) as pieces:
            while True:
                try:
                    stream, data = next(pieces)
                except StopIteration as ended:
                    how: Streamed = ended.value
                    break
                yield pack_output(Output(stream, data))
    except (RemoteError, OSError) as error:
        yield pack_output(Output("stderr", f"{error}\n".encode()))
        yield pack_output(Output(status=_USAGE))
        return
    if how.timed_out:
        yield pack_output(Output("stderr", f"stopped after {program.deadline_s:.0f} s\n".encode()))
    yield pack_output(Output(status=how.exit_status))
