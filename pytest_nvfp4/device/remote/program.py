"""Text form of a program and of its output, and the remote side that runs it."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pytest_nvfp4.device.execute import execution
from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError
from pytest_nvfp4.device.remote.parts import check_code
from pytest_nvfp4.isolation import ProcessEnd
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Name
from pytest_nvfp4.isolation.door.json_values import Bounds
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.isolation.door.packing import from_base64

_BOUNDS = Bounds(size=64 << 20, depth=2, values=16)
_USAGE = 2
"""Exit status if the program could not be started."""


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a program, its exit status, or the identifier of the call that runs it (for cancelling)."""

    stream: Literal["stdout", "stderr"] = "stdout"
    data: bytes = b""
    status: int | None = None
    call: str = ""


class _Output(BaseModel):
    model_config = STRICT
    stream: Literal["stdout", "stderr"] = "stdout"
    data: str = ""
    status: Annotated[int, Field(ge=-256, le=4096)] | None = None
    call: Name = ""


def pack_program(program: PythonProgram, *, backend: str = "cuda", code: str = "") -> str:
    """Convert a program to text.

    Args:
        program: The program.
        backend: Backend of its ``device="cuda"`` (see `device.execute`).
        code: Hash of the code that the remote side must have; empty for any (see `parts`).
    """
    return json.dumps(
        {
            "source": program.source,
            "arguments": list(program.arguments),
            "files": {name: _encode(data) for name, data in program.files.items()},
            "environ": dict(program.environ),
            "stdin": _encode(program.stdin),
            "deadline_s": program.deadline_s,
            "backend": backend,
            "code": code,
        }
    )


def unpack_program(text: str) -> tuple[PythonProgram, str]:
    """Convert text to a program and its backend. Raises RemoteError, also if it is for other code than this side's."""
    try:
        content = json.loads(text)
        program = PythonProgram(
            source=content["source"],
            arguments=tuple(content["arguments"]),
            files={name: base64.b64decode(data) for name, data in content["files"].items()},
            environ=content["environ"],
            stdin=base64.b64decode(content["stdin"]),
            deadline_s=float(content["deadline_s"]),
        )
        check_code(str(content["code"]), backend=str(content["backend"]))
        return program, str(content["backend"])
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteError("version", f"the program cannot be read: {error}") from error


def pack_output(output: Output) -> str:
    """Convert output to text."""
    if output.status is not None:
        return json.dumps({"status": output.status})
    if output.call:
        return json.dumps({"call": output.call})
    return json.dumps({"stream": output.stream, "data": _encode(output.data)})


def unpack_output(text: str) -> Output:
    """Convert text to output. Raises RemoteError."""
    source = "the program's output"
    try:
        output = parsed(_Output, text, source=source, bounds=_BOUNDS)
        data = from_base64(output.data, source=source)
    except DoorError as error:
        raise RemoteError("version", f"{error}: it cannot be read") from error
    return Output(output.stream, data, output.status, output.call)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def run_program(text: str) -> Iterator[str]:
    """Run the program of a text and yield its output as text, at the end its exit status. Closing it ends the run."""
    try:
        program, backend = unpack_program(text)
        with contextlib.closing(execution(program, backend=backend)) as chunks:
            while True:
                try:
                    stream, data = next(chunks)
                except StopIteration as stop:
                    end: ProcessEnd = stop.value
                    break
                yield pack_output(Output(stream, data))
    except (RemoteError, OSError) as error:
        yield pack_output(Output("stderr", f"{error}\n".encode()))
        yield pack_output(Output(status=_USAGE))
        return
    if end.timed_out:
        yield pack_output(Output("stderr", f"stopped after {program.deadline_s:.0f} s\n".encode()))
    yield pack_output(Output(status=end.exit_status))
