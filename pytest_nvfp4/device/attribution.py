"""Who wrote the outputs of a simulated call and what they descend from, as the machine's side reports it.

The machine's side executes every request of the kernel's process (``sim.descent``), so these facts are its own, except
for the user's lines, which the kernel's process claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pytest_nvfp4.device.job import Model
from pytest_nvfp4.text import plural

MOST = 16
"""Requests of one kind that are reported for a group."""
_Count = Annotated[int, Field(ge=0, le=1 << 62)]
_Element = tuple[_Count, _Count]


class Request(Model):
    """A request of the kernel's process: its name, and the user's line, if known."""

    what: str = Field(max_length=300)
    file: str | None = Field(default=None, max_length=4096)
    line: _Count | None = None

    def __str__(self) -> str:
        return f"{self.what} at {self.place}" if self.file is not None else self.what

    @property
    def place(self) -> str:
        """The file's name and the line."""
        return f"{(self.file or '').rpartition('/')[2]}:{self.line}"


class WrittenBy(Request):
    """A request that wrote elements of a group's C.

    Attributes:
        kind: A launched kernel, an operator of torch on the device, or a copy from the host.
        elements: Number of elements that it wrote last; None for a tensor of the kernel's own, which is known as a
            whole.
        first: The first of them, row and column.
        last: The last of them.
    """

    kind: Literal["launch", "operator", "copy"]
    elements: _Count | None = None
    first: _Element | None = None
    last: _Element | None = None


class HostBytes(Model):
    """What the host sent after it had read data that descend from inputs, and that read."""

    sent: Request
    read: Request


class GroupAttribution(Model):
    """Who wrote one group's C, or the tensor that the kernel returned in its place, and what it descends from.

    Attributes:
        elements: Number of elements, m * n.
        written: The requests that wrote it.
        computed: The operators of torch that computed something from inputs.
        host: What the host sent after a read, the latest first.
    """

    group: _Count
    elements: _Count
    written: tuple[WrittenBy, ...] = Field(default=(), max_length=MOST)
    computed: tuple[Request, ...] = Field(default=(), max_length=MOST)
    host: tuple[HostBytes, ...] = Field(default=(), max_length=MOST)


class CallAttribution(Model):
    """Who wrote the outputs of a call.

    Attributes:
        groups: One for each group with elements.
        kernels: Number of launches that the outputs descend from.
        multiply_adds: Multiply-adds of these launches.
        not_replayed: Why the requests of the call were not repeated on other inputs; empty if they were
            (``CaseReport.replayed``), and if they need not be: the host sent nothing that the outputs descend from
            after it had read data that descend from inputs.
    """

    groups: tuple[GroupAttribution, ...] = Field(default=(), max_length=4096)
    kernels: _Count
    multiply_adds: _Count
    not_replayed: str = Field(default="", max_length=2000)

    @property
    def after_reads(self) -> bool:
        """Whether the outputs descend from what the host sent after it had read data that descend from inputs."""
        return any(group.host for group in self.groups)

    def with_files(self, names: Mapping[str, str]) -> CallAttribution:
        """Return the same with the user's own files in place of the worker's copies."""
        return CallAttribution.model_validate(_renamed(self.model_dump(), names))

    @property
    def summary(self) -> str:
        """Who wrote C, in a few words: ``C by 1 kernel``, ``C by 2 kernels and torch's mm``."""
        operators = sorted({request.what for group in self.groups for request in group.computed})
        kernels = [plural(self.kernels, "kernel")] if self.kernels or not operators else []
        return f"C by {' and '.join([*kernels, *operators])}"


def _renamed(value: object, names: Mapping[str, str]) -> object:
    if isinstance(value, dict):
        return {
            key: names.get(each, each) if key == "file" and isinstance(each, str) else _renamed(each, names)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_renamed(each, names) for each in value]
    return value
