"""Run a kernel of a CUDA C++ or PTX file in the simulator, without host code."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from pytest_nvfp4 import isolation
from pytest_nvfp4.device.result import SimulatedLaunch
from pytest_nvfp4.device.source.arguments import Argument, Array, Prepared, Uninitialised, prepare
from pytest_nvfp4.driver.user_line import user_line
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host.source_lines import with_lines
from pytest_nvfp4.isolation import Outcome, blas
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Index, Name, Output
from pytest_nvfp4.isolation.door.files import read_below, read_text
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.isolation.environment import NO_GPU, UNATTENDED
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.schedules import WORDS, is_schedule
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.trace import ReportedFindings

_WORKER: Final = "pytest_nvfp4.device.source.worker"
_MOST_BYTES: Final = 64 << 20
_ARCH: Final = re.compile(r"sm_\d{2,3}[af]?")
_TARGET: Final = re.compile(r"^\s*\.target\s+(sm_\d{2,3}[af])\b", re.MULTILINE)
Language = Literal["cuda", "ptx"]


class SourceError(ValueError):
    """A file or an option that cannot be used; the message names it and the way out."""


class _Answer(BaseModel):
    """What the worker answers."""

    model_config = STRICT
    findings: ReportedFindings
    launches: Annotated[tuple[SimulatedLaunch, ...], Field(max_length=16)]
    entries: Annotated[tuple[Name, ...], Field(max_length=1000)]
    log: Output
    printed: Output
    model: str
    sms: Index


@dataclass(frozen=True, slots=True)
class SourceResult:
    """What a launch did.

    Attributes:
        status: ``passed`` unless a finding is an error; ``timeout`` and ``crashed`` if it has no end.
        findings: Errors and warnings, with lines of the file.
        arrays: Elements of every array after the launch, by name; empty if the kernel was not launched.
        launches: The launch with its counters; empty if there was none.
        entries: Kernels of the file, if none or no unambiguous one was named.
        log: Warnings of the compiler.
        printed: Text that the kernel printed.
        elements: Element type of every array, by name.
        model, sms: The simulated device and its number of SMs.
    """

    status: Literal["passed", "error", "timeout", "crashed"]
    findings: tuple[Finding, ...]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    launches: tuple[SimulatedLaunch, ...] = ()
    entries: tuple[str, ...] = ()
    log: str = ""
    printed: str = ""
    elements: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    sms: int = 0

    def check(self) -> SourceResult:
        """Return the result, for tests. Raises AssertionError with the findings unless it passed."""
        if self.status != "passed":
            raise AssertionError("\n".join(map(str, self.findings)) or self.status)
        return self


def run_source(
    source: str | Path,
    *,
    kernel: str | None = None,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Argument] = (),
    arrays: Sequence[Array | Uninitialised] = (),
    cluster: int | Sequence[int] = 1,
    smem: int = 0,
    language: Language | None = None,
    arch: str | None = None,
    options: Sequence[str] = (),
    cooperative: bool = False,
    races: bool = False,
    race_warnings: bool = False,
    schedule: str = "eager",
    deadline_s: float = 600.0,
    memory_bytes: int = 16 << 30,
) -> SourceResult:
    """Compile a file with NVRTC, or take PTX, and simulate one launch of a kernel in a process of its own.

    Args:
        source: A file, or the text of one; lines of a text that stands in the caller's file are those of that file.
        kernel: Name of the kernel: of a function, a template with arguments (``scale<3>``) or a symbol. None for the
            only one.
        grid, block, cluster: One to three sizes: CTAs, threads, CTAs.
        args: The kernel's arguments (``device.source.arguments``); an array is copied, and returned in the result.
        arrays: Named arrays that are no arguments themselves: tensor maps and tables of pointers refer to them.
        smem: Dynamic shared memory in bytes.
        language: ``cuda`` or ``ptx``; by default from the file's name, or the text.
        arch: Architecture to compile for, and of the simulated device; by default that of PTX for one architecture
            (``.target sm_90a``), else sm_100a.
        options: Further options of NVRTC: ``-DN=4``, ``-Ifolder``, ``--std=c++20``.
        cooperative: Whether all CTAs must be resident at once.
        races: Whether to search for races; with ``race_warnings``, also for what official kernels omit.
        schedule: Schedule of the simulator's asynchronous work: eager, lazy, late-WARP or a seed.
        deadline_s, memory_bytes: Limits of that process.

    Raises:
        SourceError: The file cannot be read, or an option is impossible.
        ArgumentError: An argument is impossible.
    """
    text, file = _read(source)
    language = language or _language(text, file)
    if arch is None:
        target = _TARGET.search(text) if language == "ptx" else None
        arch = target[1] if target is not None else "sm_100a"
    if not _ARCH.fullmatch(arch):
        raise SourceError(f"arch {arch!r}: write it as sm_100a")
    if not is_schedule(schedule):
        raise SourceError(f"schedule {schedule!r} must be {WORDS}")
    prepared = prepare(args, arrays)
    files: list[str] = []
    if language == "cuda":
        line = user_line()
        files = [str(file)] if file is not None else [line.file] if line is not None else []
        text = with_lines(text, files, name=str(file or "source.cu"))
    own = [str(file.parent)] if file is not None else []
    included = [option[2:] for option in options if option.startswith("-I") and option[2:]]
    job = {
        "text": text,
        "file": str(file or ("source.ptx" if language == "ptx" else "source.cu")),
        "language": language,
        "kernel": kernel,
        "grid": _sizes("grid", grid),
        "block": _sizes("block", block),
        "cluster": _sizes("cluster", cluster),
        "smem": smem,
        "arch": arch,
        "options": [*options, *(f"-I{folder}" for folder in own)],
        "cooperative": cooperative,
        "races": races or race_warnings,
        "race_warnings": race_warnings,
        "schedule": schedule,
        "arrays": prepared.arrays,
        "arguments": prepared.arguments,
    }
    readable = tuple(str(Path(each).resolve()) for each in (*own, *included, *files) if Path(each).exists())
    with temporary_folder("source") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        for number, array in enumerate(prepared.arrays):
            if array["initialised"]:
                (folder / f"array-{number}").write_bytes(prepared.values[array["name"]].tobytes())
        wall = Wall(folder=str(folder), readable=readable, memory_bytes=memory_bytes, file_bytes=8 << 30)
        variables = {**NO_GPU, **blas.variables(), **UNATTENDED}
        variables["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).exists())
        outcome = isolation.run(
            worker(_WORKER, folder / "job.json", folder),
            cwd=folder,
            deadline_s=deadline_s,
            environ=variables,
            wall=wall,
        )
        return _result(outcome, prepared, folder, deadline_s)


def _result(outcome: Outcome, prepared: Prepared, folder: Path, deadline_s: float) -> SourceResult:
    if outcome.timed_out:
        message = f"the launch did not end within {deadline_s:g} s: make it smaller, or raise the deadline (--timeout)"
        return SourceResult("timeout", (Finding("timeout", message),))
    if outcome.returncode or outcome.result is None:
        end = outcome.stderr.text.strip()[-4000:]
        message = f"the worker ended with status {outcome.returncode} before its result"
        return SourceResult("crashed", (Finding("crash", f"{message}: {end}" if end else message),))
    arrays: dict[str, NDArray[Any]] = {}
    try:
        answer = parsed(_Answer, outcome.result, source="the worker's answer")
        for number, array in enumerate(prepared.arrays if answer.launches else ()):
            data = read_below(folder, f"array-{number}", source=f"array {array['name']}:", size=array["size"])
            arrays[array["name"]] = np.frombuffer(bytearray(data), array["dtype"]).reshape(array["shape"])
    except DoorError as error:
        return SourceResult("crashed", (Finding("answer", f"{error}: the answer is refused"),))
    wrong = any(finding.severity == "error" for finding in answer.findings)
    overdue = any(finding.kind == "timeout" for finding in answer.findings)
    return SourceResult(
        "timeout" if overdue else "error" if wrong else "passed",
        tuple(answer.findings),
        arrays,
        tuple(answer.launches),
        tuple(answer.entries),
        answer.log,
        answer.printed,
        {array["name"]: array["element"] for array in prepared.arrays},
        answer.model,
        answer.sms,
    )


def _read(source: str | Path) -> tuple[str, Path | None]:
    if isinstance(source, str):
        return source, None
    path = source.resolve()
    try:
        return read_text(path, source=str(source), most=_MOST_BYTES).rstrip("\0"), path
    except DoorError as error:
        raise SourceError(str(error)) from None
    except OSError as error:
        raise SourceError(f"{source}: cannot be read: {error}") from None


def _language(text: str, file: Path | None) -> Language:
    if file is not None and file.suffix in (".ptx", ".cu", ".cuh"):
        return "ptx" if file.suffix == ".ptx" else "cuda"
    return "ptx" if re.search(r"^\s*\.version\s+\d", text, re.MULTILINE) else "cuda"


def _sizes(what: str, value: int | Sequence[int]) -> list[int]:
    sizes = [value] if isinstance(value, int) else list(value)
    if not 1 <= len(sizes) <= 3 or any(not isinstance(size, int) or not 1 <= size < 1 << 31 for size in sizes):
        raise SourceError(f"{what} {value!r}: give one to three sizes from 1")
    return [*sizes, *(1,) * (3 - len(sizes))]
