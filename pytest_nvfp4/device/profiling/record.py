"""What a profiled job returns: the tools that were tried, their files, and what the harness itself measured."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.device_work import DeviceWork
from pytest_nvfp4.device.job import Model
from pytest_nvfp4.isolation.door.fields import Index, Microseconds, Name, Sentence

Tool = Literal["ncu", "nsys", "sanitizer", "torch", "nvtx"]
"""``nvtx`` is nsys without CUDA events: only times of NVTX ranges."""
State = Literal["ran", "unavailable", "failed", "timeout"]
MOST_FILE_BYTES = 128 << 20
"""Largest size of a file of a tool that is returned; a full report of a GEMM has a few MiB."""
MOST_FILES = 20
MOST_WORKS = 20_000


class ToolRun(Model):
    """One attempt with one tool.

    Attributes:
        tool: The tool.
        version: Its version.
        options: Its options, without paths of the machine.
        state: ``ran``, or why there is nothing from it: ``unavailable`` (the tool cannot run here), ``failed``
            (the kernel's process did not get through), ``timeout``.
        because: The reason, one sentence; empty if it ran.
        output: End of its own output.
    """

    tool: Tool
    version: Name | None = None
    options: Annotated[tuple[Name, ...], Field(max_length=2000)] = ()
    state: State = "ran"
    because: Sentence = ""
    output: Sentence = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.state == "ran") == bool(self.because):
            raise ValueError("a tool either ran, or has the reason why there is nothing from it")
        return self


class FoundTool(Model):
    """A tool of the machine: its version and its path, or why it cannot be used.

    Attributes:
        counters: Whether it may read the GPU's counters; None if unknown.
    """

    tool: Tool
    version: Name | None = None
    path: Name | None = None
    because: Sentence = ""
    counters: bool | None = None


class ToolFile(Model):
    """A file that a tool wrote: its name, such as ``ncu.ncu-rep``, and its bytes."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,60}$")]
    data: Blob


class ProfiledCase(Model):
    """What the harness measured of one case.

    Attributes:
        case: Index of the case.
        warmup_us: Time of the range ``warmup`` on the host's clock, device idle at both ends.
        region_us: The same of each range ``profile_region``.
        works: For torch mode: kernels, copies and fills of the device in the profiled calls, ordered by start.
        unrecorded: Why torch's profiler recorded nothing.
    """

    case: Index
    warmup_us: Microseconds
    region_us: Annotated[tuple[Microseconds, ...], Field(max_length=1000)]
    works: Annotated[tuple[DeviceWork, ...], Field(max_length=MOST_WORKS)] = ()
    unrecorded: Annotated[str, Field(max_length=1000)] | None = None


class ProfileRecord(Model):
    """The part of a result that belongs to a profile.

    Attributes:
        attempts: The tools in the order in which they were tried; the files are of the last that ran.
        tools: The tools of the machine, for ``probe``.
        files: Files of the tool.
        cases: What the harness measured.
        sources: Folder of the kernel's files on the machine, which file names in the tool's reports begin with.
    """

    attempts: Annotated[tuple[ToolRun, ...], Field(max_length=20)] = ()
    tools: Annotated[tuple[FoundTool, ...], Field(max_length=20)] = ()
    files: Annotated[tuple[ToolFile, ...], Field(max_length=MOST_FILES)] = ()
    cases: Annotated[tuple[ProfiledCase, ...], Field(max_length=10_000)] = ()
    sources: Name = ""
