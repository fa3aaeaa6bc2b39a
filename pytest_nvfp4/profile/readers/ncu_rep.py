"""Read a ``.ncu-rep``: with NVIDIA's library ``ncu_report`` behind a wall, else with the ``ncu`` of this machine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from pytest_nvfp4 import isolation
from pytest_nvfp4.device.job import Model
from pytest_nvfp4.device.profiling.tools import Program, program, programs
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import Name, Sentence
from pytest_nvfp4.isolation.door.json_values import Bounds, read_lines
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.isolation.wall.program import ended
from pytest_nvfp4.profile.readers.launch_builder import LaunchBuilder
from pytest_nvfp4.profile.readers.ncu_csv import merged, read_ncu_csv
from pytest_nvfp4.profile.result import (
    MOST_LAUNCHES,
    MOST_METRICS,
    LineSamples,
    ProfiledDevice,
    ProfiledLaunch,
    Rule,
    SourceMarker,
)
from pytest_nvfp4.temporary import temporary_folder

_WORKER: Final = "pytest_nvfp4.profile.readers.rep_worker"
_TOOL: Final = "pytest_nvfp4.isolation.wall.program"
_DEADLINE_S: Final = 300.0
_RESULT_BYTES: Final = 512 << 20
_MEMORY_BYTES: Final = 8 << 30
_BOUNDS: Final = Bounds(size=256 << 20, depth=12, values=20_000_000)
_INSTALL: Final = "pip install 'pytest-nvfp4[profile]', or install Nsight Compute"
_NAME: Final = "device__attribute_display_name"
_CAPABILITY: Final = "device__attribute_compute_capability_"


class _Launch(Model):
    """A launch as the worker writes it: of each metric its value and its unit."""

    name: Name
    metrics: Annotated[dict[Name, tuple[float | Sentence | None, Name]], Field(max_length=MOST_METRICS)]
    rules: Annotated[tuple[Rule, ...], Field(max_length=10_000)] = ()
    markers: Annotated[tuple[SourceMarker, ...], Field(max_length=10_000)] = ()
    lines: Annotated[tuple[LineSamples, ...], Field(max_length=10_000)] = ()


def read_ncu_rep(path: Path, *, source: str) -> tuple[tuple[ProfiledLaunch, ...], ProfiledDevice | None]:
    """Return the launches of a report and its device.

    Raises:
        DoorError: Nothing here reads such a report, or it is damaged, or newer than what reads it.
        OSError: There is no such file.
    """
    path.stat()
    folder = _library()
    problem = ""
    if folder is not None:
        try:
            return _with_library(path, folder, source)
        except DoorError as error:
            problem = error.problem
    found = program("ncu")
    if isinstance(found, Program):
        return _with_ncu(path, found, source)
    raise DoorError(source, problem or f"cannot be read, because there is neither ncu_report nor ncu: {_INSTALL}")


def _library() -> str | None:
    """Return the folder from which ``ncu_report`` can be imported, empty for the import path; None if there is none."""
    if importlib.util.find_spec("ncu_report") is not None:
        return ""
    found = programs("ncu")
    folders = [] if isinstance(found, str) else [each.folder / "extras" / "python" for each in found]
    return next((str(folder) for folder in folders if (folder / "ncu_report.py").is_file()), None)


def _with_library(path: Path, folder: str, source: str) -> tuple[tuple[ProfiledLaunch, ...], ProfiledDevice | None]:
    places = (folder, str(Path(folder).parent.parent)) if folder else ()
    with temporary_folder("report") as scratch:
        outcome = isolation.run(
            worker(_WORKER, path.resolve(), *([folder] if folder else [])),
            cwd=Path(scratch),
            deadline_s=_DEADLINE_S,
            wall=Wall(folder=str(scratch), readable=(str(path.resolve()), *places), memory_bytes=_MEMORY_BYTES),
            result_bytes=_RESULT_BYTES,
        )
    if outcome.result_overflow:
        raise DoorError(source, f"has more than {_RESULT_BYTES} bytes of metrics")
    if outcome.returncode:
        last = (outcome.stderr.text.strip().splitlines() or [outcome.describe_end()])[-1]
        raise DoorError(source, f"cannot be read by ncu_report: {last[:300]}")
    launches: list[ProfiledLaunch] = []
    device: ProfiledDevice | None = None
    for _, values in read_lines(outcome.result or b"", source=f"{source}, launch", most=MOST_LAUNCHES, bounds=_BOUNDS):
        read = validated(_Launch, values, source=f"{source}, launch {len(launches)}")
        assert isinstance(read, _Launch)
        launches.append(_launch(len(launches), read))
        device = device or _device(launches[-1])
    if not launches:
        raise DoorError(source, "is a report of ncu without any launch")
    return tuple(launches), device


def _launch(index: int, read: _Launch) -> ProfiledLaunch:
    builder = LaunchBuilder(index, read.name, rules=list(read.rules))
    for name, (value, unit) in read.metrics.items():
        if isinstance(value, str):
            builder.add("", name, value, unit)
        else:
            builder.raw[name] = value, unit
    return builder.build().model_copy(update={"markers": read.markers, "lines": read.lines})


def _device(launch: ProfiledLaunch) -> ProfiledDevice | None:
    if not (name := launch.texts.get(_NAME)):
        return None
    major, minor = (launch.counter(f"{_CAPABILITY}{part}").value for part in ("major", "minor"))
    sms = launch.counter("device__attribute_multiprocessor_count").value
    known = major is not None and minor is not None and 0 <= major < 100 and 0 <= minor < 100
    return ProfiledDevice(
        name=name[:4096],
        capability=(int(major or 0), int(minor or 0)) if known else None,
        sms=int(sms) if sms is not None and 0 < sms < 1 << 20 else None,
        sm_mhz=launch.value("sm_clock"),
        memory_mhz=launch.value("dram_clock"),
    )


def _with_ncu(path: Path, found: Program, source: str) -> tuple[tuple[ProfiledLaunch, ...], ProfiledDevice | None]:
    """Read the pages that ``ncu --import`` prints."""
    command = (str(found.path), "--import", str(path.resolve()), "--csv", "--print-units", "base", "--page")
    with temporary_folder("report") as scratch:
        outcome = isolation.run(
            worker(_TOOL, json.dumps([[*command, page] for page in ("raw", "details")])),
            cwd=Path(scratch),
            deadline_s=_DEADLINE_S,
            wall=Wall(
                folder=str(scratch), readable=(str(path.resolve()), str(found.folder)), memory_bytes=_MEMORY_BYTES
            ),
            result_bytes=_RESULT_BYTES,
        )
    pages = list(ended(outcome.result or b""))
    if len(pages) < 2 or any(status for status, _, _ in pages):
        text = next((errors or printed for status, printed, errors in pages if status), outcome.describe_end())
        raise DoorError(source, f"cannot be read by ncu {found.version}: {text.strip()[:300]}")
    raw, device = read_ncu_csv(pages[0][1], source=source)
    details, other = read_ncu_csv(pages[1][1], source=source)
    return merged(raw, details), device or other
