"""Programs of this machine, and the cache folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.cli import environments, output
from pytest_nvfp4.cli.doctor.model import Item, State, run_program
from pytest_nvfp4.toolchain import binaries
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.cache_contents import survey
from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE, default_root
from pytest_nvfp4.toolchain.sandbox import PURPOSES, Part, Sandbox, remedy

_TIMEOUT_S = 20.0
_LITTLE_SPACE = 1 << 30
"""Free bytes below which the cache is reported; one trace takes a few MB, an environment several GB."""
_RELEASE = re.compile(r"(?:release|version|Version)\s+v?([\d.]+)|\b(\d+\.\d+(?:\.\d+)*)\b")


class _Tool(NamedTuple):
    """An optional program that is searched on the path."""

    name: str
    needed_for: str
    fix: str


# Packages of NVIDIA's CUDA repository for Debian and Ubuntu.
_TOOLS = (
    _Tool("git", "nvfp4 diff REV:path", "sudo apt-get install git"),
    _Tool("ncu", "profiles of kernels on a local GPU", "sudo apt-get install cuda-nsight-compute-13-0"),
    _Tool("nsys", "timelines on a local GPU", "sudo apt-get install cuda-nsight-systems-13-0"),
    _Tool("compute-sanitizer", "memory and race checks on a local GPU", "sudo apt-get install cuda-sanitizer-13-0"),
)


def version_line(command: list[str]) -> str:
    """Return the version that a program prints, its first line if that has no version, or why it printed nothing."""
    done = run_program(command, timeout_s=_TIMEOUT_S)
    if done.status is None:
        return f"does not run: {done.stderr}"
    text = (done.stdout or done.stderr).strip()
    for line in reversed(text.splitlines()):
        if match := _RELEASE.search(line):
            return match[1] or match[2]
    return text.splitlines()[0] if text else f"prints nothing (status {done.status})"


def binary_tools() -> Iterator[Item]:
    """Yield nvdisasm and cuobjdump, of their wheels or of a CUDA toolkit."""
    for name, purpose in (("nvdisasm", "SASS"), ("cuobjdump", "registers, stack and local memory")):
        path = binaries.find(name)
        if path is None:
            yield Item("tools", name, State.FAILED, "not found", f"pip install nvidia-cuda-{name}", purpose)
            continue
        version = version_line([str(path), "--version"])
        runs = not version.startswith("does not run")
        fix = f"pip install --force-reinstall nvidia-cuda-{name}"
        yield Item.judged("tools", name, runs, f"{version} ({path})", fix, needed_for=purpose)


def programs() -> Iterator[Item]:
    """Yield programs that only some commands need."""
    uv = environments.uv_path()
    found = version_line([uv, "--version"]) if uv else "not found"
    yield Item.judged(
        "optional", "uv", bool(uv), found, "pip install uv", needed_for="nvfp4 upgrade", otherwise=State.ABSENT
    )
    for tool in _TOOLS:
        path = _path(tool.name)
        found = f"{version_line([path, '--version'])} ({path})" if path else "not found"
        yield Item.judged(
            "optional", tool.name, bool(path), found, tool.fix, needed_for=tool.needed_for, otherwise=State.ABSENT
        )


def _path(name: str) -> str | None:
    """Return the path of a program: on the path, or, of a profiler, where `nvfp4 profile` finds it."""
    from pytest_nvfp4.device.profiling.tools import PROGRAMS, Program, program

    if found := shutil.which(name):
        return found
    tool = next((tool for tool, called in PROGRAMS.items() if called == name), None)
    elsewhere = program(tool) if tool is not None else None
    return str(elsewhere.path) if isinstance(elsewhere, Program) else None


def sandbox() -> Iterator[Item]:
    """Yield the parts of the sandbox around processes that run a kernel's code."""
    found = Sandbox.probe()
    for part in Part:
        version = f"version {found.landlock}, " if part is Part.LANDLOCK else ""
        missing = found.missing.get(part)
        yield Item.judged(
            "sandbox",
            part,
            missing is None,
            f"{version}{PURPOSES[part]}" if missing is None else missing,
            remedy(part),
            needed_for=PURPOSES[part],
            otherwise=State.WARNING,
        )


def cache() -> Iterator[Item]:
    """Yield the cache folder, with whether it can be written, its size and the free space."""
    chosen = default_root()
    root = TraceCache().root
    content = survey(root)
    free = shutil.disk_usage(root).free
    size = output.size_text(content.trace_bytes + content.environment_bytes)
    found = f"{root}: {content.traces} traces, {size}; {output.size_text(free)} free"
    if root != chosen:
        found = f"{chosen} cannot be written; used instead: {found}"
        fix = f"export {CACHE_VARIABLE}=/a/writable/folder"
        yield Item("cache", "folder", State.WARNING, found, fix, "caching traces between runs")
    elif free < _LITTLE_SPACE:
        yield Item("cache", "folder", State.WARNING, f"{found}: little space", "nvfp4 cache --clear")
    else:
        yield Item("cache", "folder", State.OK, found)
    bundles = Path.cwd() / ".nvfp4"
    if bundles.is_dir():
        yield Item("cache", "bundles", State.OK, f"{bundles}: debug bundles of failed compiles")
