"""The fields of a request, read by type and range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pytest_nvfp4.driver.user_line import UserLine
from pytest_nvfp4.machine.wire import Blob, Message, WireError

HANDLE: Final = 1 << 64
"""Addresses and handles are smaller."""
_MOST_TEXT: Final = 4096


class Fields:
    """The fields of a request, read by type and range. Every method raises WireError."""

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def adds(self) -> bool:
        """Whether the request may add to a graph that is being captured."""
        return self.message.kind != "graph"

    def _get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        value = self.message.fields.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise WireError(f"the request {self.message.kind} has no field {name} of type {kind}")
        return value

    def integer(self, name: str, below: int) -> int:
        """Return an integer of [0, below)."""
        value: int = self._get(name, int)
        if not 0 <= value < below:
            raise WireError(f"{name} of the request {self.message.kind} is {value}")
        return value

    def optional(self, name: str) -> int | None:
        """Return an integer of 64 bits, or None."""
        return None if self.message.fields.get(name) is None else self.integer(name, HANDLE)

    def text(self, name: str) -> str:
        """Return a short text."""
        value: str = self._get(name, str)
        if len(value) > _MOST_TEXT:
            raise WireError(f"{name} of the request {self.message.kind} has {len(value)} characters")
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        value: bool = self._get(name, bool)
        return value

    def array(self, name: str) -> list[Any]:
        """Return a list."""
        value: list[Any] = self._get(name, list)
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return an object."""
        value: dict[str, Any] = self._get(name, dict)
        return value

    def dim3(self, name: str) -> tuple[int, int, int]:
        """Return three extents of 32 bits."""
        values = self.array(name)
        if len(values) != 3 or not all(type(value) is int and 0 <= value < 1 << 32 for value in values):
            raise WireError(f"{name} of a launch is {str(values)[:80]}")
        return values[0], values[1], values[2]

    def attributes(self) -> Mapping[int, bytes]:
        """Return the attributes of a launch."""
        result = {}
        for pair in self.array("attributes"):
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
                raise WireError("an attribute of a launch is no pair")
            if not isinstance(pair[1], str) or len(pair[1]) != 128:
                raise WireError("the value of an attribute of a launch has 64 bytes")
            try:
                result[pair[0]] = bytes.fromhex(pair[1])
            except ValueError:
                raise WireError("the value of an attribute of a launch is not hexadecimal") from None
        return result

    def only_blob(self) -> Blob:
        """Return the blob of a request that has one."""
        if len(self.message.blobs) != 1:
            raise WireError(f"the request {self.message.kind} has {len(self.message.blobs)} blobs")
        return self.message.blobs[0]

    def line(self) -> UserLine | None:
        """Return the user's line."""
        return _line(self.message.fields.get("line"))

    def freed(self) -> list[tuple[int, UserLine | None]]:
        """Return the tensors that were dropped before the request: their addresses, and the lines."""
        result = []
        for pair in self.message.fields.get("freed") or []:
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
                raise WireError("a freed tensor is an address and a line")
            result.append((pair[0], _line(pair[1])))
        return result


def _line(value: Any, *, depth: int = 2) -> UserLine | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 4 or not depth:
        raise WireError("a line is a file, a number, a function and the caller's line")
    file, number, function, caller = value
    if not isinstance(file, str) or type(number) is not int or not isinstance(function, str):
        raise WireError("a line is a file, a number and a function")
    return UserLine(file[:_MOST_TEXT], number, function[:_MOST_TEXT], _line(caller, depth=depth - 1))
