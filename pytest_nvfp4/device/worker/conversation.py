"""The conversation of a kernel's process with the device, recorded, and a process that says the same again.

What host code does on given problems (allocations, copies, tables of pointers, launches with their parameters) is in
its requests. Played again to a simulator, they need neither the kernel's Python nor the DSL. Parameters hold addresses,
so the device memory must lie where it lay; the arena begins at a fixed address for that. Answers are compared by their
hashes: host code that depends on what was different, such as results that it reads, is not played on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.isolation.door.packing import from_base64, inflate_at_most
from pytest_nvfp4.isolation.door.versions import other_version
from pytest_nvfp4.machine.wire import Blob, Channel, Message
from pytest_nvfp4.toolchain.trace_archive import SOURCE

VERSION: Final = 1
_NAME: Final = "nvfp4-conversation "
FORMAT: Final = f"{_NAME}{VERSION}"
MOST_BYTES: Final = 256 << 20
_BOUNDS: Final = Bounds(size=MOST_BYTES, depth=32, values=5_000_000)
_UNCOMPARED: Final = frozenset({"load", "end"})
"""Commands whose fields are of the machine that plays, and not of the kernel."""


class PlayError(Exception):
    """The recording does not fit what it is played to; the message says why."""


@dataclass
class ConversationLog:
    """The conversation so far.

    Attributes:
        room: The address space of the device.
        sources: The folder of the kernel's files, which `SOURCE` stands for.
    """

    room: tuple[int, int]
    sources: str = ""
    _steps: list[list[Any]] = field(default_factory=list)
    _blobs: dict[str, str] = field(default_factory=dict)

    def command(self, kind: str, fields: Mapping[str, Any] | None, blobs: Sequence[Blob]) -> None:
        """Record a command to the kernel's process."""
        self._steps.append(["command", kind, _digest(kind, fields, blobs)])

    def request(self, request: Message, answer: tuple[str, Mapping[str, Any], Sequence[Blob]]) -> None:
        """Record a request of the kernel's process and its answer."""
        self._steps.append(["request", request.kind, *self._stored(request), _digest(*answer)])

    def answer(self, answer: Message) -> None:
        """Record the answer to a command."""
        self._steps.append(["answer", answer.kind, *self._stored(answer)])

    def _stored(self, message: Message) -> tuple[Any, list[str]]:
        names = []
        for blob in message.blobs:
            data = _with_path(bytes(blob), self.sources, SOURCE)
            name = hashlib.sha256(data).hexdigest()
            if name not in self._blobs:
                self._blobs[name] = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
            names.append(name)
        return _replaced(message.fields, self.sources, SOURCE), names

    def to_json(self) -> dict[str, Any]:
        """Return the conversation as JSON values."""
        return {"format": FORMAT, "room": list(self.room), "steps": self._steps, "blobs": self._blobs}


class Player:
    """Plays a recorded conversation: it answers commands, and sends the requests that belong to them.

    Args:
        path: The recording.
        requests: The connection for requests.
        room: The address space of the device.
        sources: The folder that stands in the place of `SOURCE`.

    Raises:
        PlayError: It is no recording, or the device's memory lies elsewhere.
    """

    def __init__(self, path: Path, requests: Channel, room: tuple[int, int], *, sources: str) -> None:
        try:
            values = read_json(path.read_bytes(), source="the recording", bounds=_BOUNDS)
        except DoorError as error:
            raise PlayError(str(error)) from None
        stated = values.get("format") if isinstance(values, dict) else None
        if isinstance(stated, str) and stated != FORMAT and stated.startswith(_NAME):
            raise PlayError(f"the recording of host code {other_version(stated.removeprefix(_NAME), VERSION)}")
        if stated != FORMAT or not isinstance(values.get("steps"), list) or not isinstance(values.get("blobs"), dict):
            raise PlayError("it is no recording of a kernel's host code")
        if values.get("room", [None])[0] != room[0]:
            raise PlayError("the device's memory cannot lie at the address of the recording on this machine")
        self._steps: list[Any] = values["steps"]
        self._blobs: dict[str, Any] = values["blobs"]
        self._requests = requests
        self._sources = sources
        self._at = 0

    def play(self, command: Message) -> Message:
        """Send the requests that belong to a command, and return its answer. Raises PlayError."""
        if command.kind == "settle" and self._next_is("command", "end"):
            return Message("returned")
        step = self._step("command", 3)
        same = command.kind in _UNCOMPARED or step[2] == _digest(command.kind, command.fields, command.blobs)
        if step[1] != command.kind or not same:
            raise PlayError(
                "the kernel was recorded on another problem, or with other calls: record it for this one with "
                "`nvfp4 trace`"
            )
        while self._next_is("request"):
            step = self._step("request", 5)
            fields, blobs = self._loaded(step)
            self._requests.send(str(step[1]), fields, blobs)
            answer = self._requests.receive()
            if _digest(answer.kind, answer.fields, answer.blobs) != step[4]:
                raise PlayError(
                    f"the device answers a request ({str(step[1])[:40]}) otherwise than when it was recorded: host "
                    "code that depends on it cannot be played"
                )
        step = self._step("answer", 4)
        fields, blobs = self._loaded(step)
        return Message(str(step[1]), fields, blobs)

    def _next_is(self, what: str, kind: str | None = None) -> bool:
        step = self._steps[self._at] if self._at < len(self._steps) else None
        return isinstance(step, list) and step[:1] == [what] and (kind is None or step[1:2] == [kind])

    def _step(self, what: str, length: int) -> list[Any]:
        if not self._next_is(what) or len(self._steps[self._at]) != length:
            raise PlayError("the recording ends early, or is damaged")
        self._at += 1
        step: list[Any] = self._steps[self._at - 1]
        return step

    def _loaded(self, step: list[Any]) -> tuple[dict[str, Any], list[bytes]]:
        fields, names = _replaced(step[2], SOURCE, self._sources), step[3]
        if not isinstance(fields, dict) or not isinstance(names, list):
            raise PlayError("the recording is damaged")
        blobs = []
        for name in names:
            if not isinstance(name, str) or not isinstance(text := self._blobs.get(name), str):
                raise PlayError("the recording lacks a part")
            try:
                data = inflate_at_most(from_base64(text, source="a part"), size=MOST_BYTES, source="a part")
            except DoorError as error:
                raise PlayError(str(error)) from None
            if hashlib.sha256(data).hexdigest() != name:
                raise PlayError("a part of the recording does not match its hash")
            blobs.append(_with_path(data, SOURCE, self._sources))
        return fields, blobs


def _digest(kind: str, fields: Mapping[str, Any] | None, blobs: Sequence[Blob]) -> str:
    """Return the hash of a message; a number and its text differ, the order of fields does not matter."""
    digest = hashlib.sha256(json.dumps([kind, fields or {}], sort_keys=True, default=list).encode())
    for blob in blobs:
        digest.update(hashlib.sha256(blob).digest())
    return digest.hexdigest()


def _with_path(data: bytes, old: str, new: str) -> bytes:
    """Return a blob with another path in its text; a CUBIN (ELF) stays as it is, because offsets in it would move."""
    return data.replace(old.encode(), new.encode()) if old and not data.startswith(b"\x7fELF") else data


def _replaced(value: Any, old: str, new: str) -> Any:
    """Return JSON values in which texts that begin with a path begin with another one."""
    if isinstance(value, str):
        return new + value[len(old) :] if old and value.startswith(old) else value
    if isinstance(value, Mapping):
        return {name: _replaced(each, old, new) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(each, old, new) for each in value]
    return value
