"""Find profilers: on PATH, in a Python package, and in the folders of NVIDIA's installers; the newest comes first."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_nvfp4 import isolation
from pytest_nvfp4.device.profiling.record import FoundTool, Tool
from pytest_nvfp4.temporary import temporary_folder

PROGRAMS: Final[dict[Tool, str]] = {"ncu": "ncu", "nsys": "nsys", "sanitizer": "compute-sanitizer"}
_FOLDERS: Final[dict[Tool, tuple[str, ...]]] = {
    "ncu": ("opt/nvidia/nsight-compute/*", "usr/local/cuda*/nsight-compute*", "usr/local/NVIDIA-Nsight-Compute*"),
    "nsys": ("opt/nvidia/nsight-systems/*/bin", "usr/local/cuda*/nsight-systems*/bin"),
    "sanitizer": ("usr/local/cuda*/compute-sanitizer", "usr/local/cuda*/extras/compute-sanitizer"),
}
"""Folders of programs besides ``/usr/local/cuda*/bin``, as the packages of NVIDIA's CUDA repository lay them out."""
_PACKAGES: Final[dict[Tool, str]] = {"sanitizer": "nvidia-cuda-sanitizer-api"}
_VERSION: Final = re.compile(r"[Vv]ersion\s+(\d+(?:\.\d+)*)")
_TIMEOUT_S: Final = 30.0
_MISSING: Final[dict[Tool, str]] = {
    "ncu": "install Nsight Compute: sudo apt-get install cuda-nsight-compute-13-0",
    "nsys": "install Nsight Systems: sudo apt-get install cuda-nsight-systems-13-0",
    "sanitizer": "pip install nvidia-cuda-sanitizer-api, or sudo apt-get install cuda-sanitizer-13-0",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A profiler of this machine: its path, and its version as printed and as numbers."""

    tool: Tool
    path: Path
    version: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its version; empty if it prints none."""
        return tuple(int(number) for number in self.version.split(".") if number.isdigit())

    @property
    def folder(self) -> Path:
        """Folder of its libraries: that of the program itself, links followed."""
        return self.path.resolve().parent


def programs(tool: Tool, *, root: Path = Path("/")) -> list[Program] | str:
    """Return the programs of a tool, newest first, or why there is none.

    Args:
        tool: ``ncu``, ``nsys`` or ``sanitizer``.
        root: Folder below which the usual folders lie.
    """
    found: list[Program] = []
    broken: list[str] = []
    for path in dict.fromkeys(_candidates(tool, root)):
        version = _version(path)
        if version is None:
            broken.append(str(path))
        else:
            found.append(Program(tool, path, version))
    if found:
        return sorted(found, key=lambda each: each.numbers, reverse=True)  # of equal ones the first: that of PATH
    if broken:
        return f"{broken[0]} does not print a version, so it does not run here"
    return f"there is no {PROGRAMS[tool]} on PATH or in the usual folders; {_MISSING[tool]}"


def program(tool: Tool, *, root: Path = Path("/")) -> Program | str:
    """Return the newest program of a tool, or why there is none; see ``programs``."""
    found = programs(tool, root=root)
    return found if isinstance(found, str) else found[0]


def found_tools(*, root: Path = Path("/")) -> tuple[FoundTool, ...]:
    """Return the tools of this machine, for ``--probe``."""
    tools = []
    for tool in PROGRAMS:
        found = program(tool, root=root)
        if isinstance(found, str):
            tools.append(FoundTool(tool=tool, because=found))
        else:
            counters = counters_permitted(root) if tool == "ncu" else None
            tools.append(FoundTool(tool=tool, version=found.version, path=str(found.path), counters=counters))
    return tuple(tools)


def counters_permitted(root: Path = Path("/")) -> bool | None:
    """Return whether the driver permits performance counters to everybody; None if it does not say.

    Behind the wall a kernel's process has no capabilities, so that it is not an administrator, also as root. Source:
    NVIDIA, "ERR_NVGPUCTRPERM".
    """
    try:
        text = (root / "proc/driver/nvidia/params").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"^RmProfilingAdminOnly:\s*([01])", text, re.MULTILINE)
    return match[1] == "0" if match else None


def _candidates(tool: Tool, root: Path) -> Iterator[Path]:
    """Yield programs by their resolved paths, so that links to one program count once."""
    name = PROGRAMS[tool]
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        if entry and (found := shutil.which(name, path=entry)):
            yield Path(found).resolve()
    if package := _PACKAGES.get(tool):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        for file in files:
            if file.name == name:
                yield Path(str(file.locate())).resolve()
    for pattern in ("usr/local/cuda*/bin", *_FOLDERS[tool]):
        for folder in sorted(root.glob(pattern)):
            if found := shutil.which(name, path=str(folder)):
                yield Path(found).resolve()


def _version(path: Path) -> str | None:
    with temporary_folder("tool") as folder:
        try:
            done = isolation.run(
                [str(path), "--version"],
                cwd=Path(folder),
                deadline_s=_TIMEOUT_S,
                environ={"TMPDIR": str(folder)},
                output_bytes=1 << 16,
            )
        except OSError:
            return None
    match = _VERSION.search(done.stdout.text)
    return match[1] if match and not done.timed_out else None
