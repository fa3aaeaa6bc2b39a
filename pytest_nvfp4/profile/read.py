"""Read a saved report of anybody: by its content, not by its name."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pytest_nvfp4.device.profiling.record import Tool, ToolRun
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.isolation.door.models import fault, validated
from pytest_nvfp4.profile.readers import archive, ncu_csv, ncu_rep, nsys_sqlite, sanitizer_xml
from pytest_nvfp4.profile.result import MOST_LAUNCHES, Profile

_MOST_BYTES: Final = 256 << 20
_MOST_NAME: Final = 1000
_JSON: Final = Bounds(size=_MOST_BYTES, depth=32, values=20_000_000)
_SQLITE: Final = b"SQLite format 3\0"
_REPORT: Final = b"NVR\0"
"""First bytes of a ``.ncu-rep``."""
_KINDS: Final = (
    "a .ncu-rep, an nsys export (.sqlite), a compute-sanitizer XML, a table of `ncu --csv`, a JSON of `nvfp4 profile`, "
    "or a folder or ZIP archive of these"
)


def read_report(path: Path) -> Profile:
    """Return the profile that a file or folder contains.

    Raises:
        DoorError: It is no report that is known, or it is damaged.
        OSError: It cannot be read.
    """
    try:
        return _read(path, str(path)[-_MOST_NAME:])
    except ValidationError as error:  # more launches, metrics or characters than any tool writes
        raise DoorError(str(path), fault(error)) from None


def _read(path: Path, source: str) -> Profile:
    if path.is_dir():
        return _together([read_report(one) for one in archive.reports_below(path, source=source)], source)
    if not path.is_file():
        read_file(path, source=source, most=_MOST_BYTES)  # refuses it: opening a pipe would wait for its writer
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(_SQLITE):
        export = nsys_sqlite.NsysExport(path, source=source)
        tool: Tool = "nsys" if export.launches else "nvtx"
        return Profile(
            source=source,
            attempts=(ToolRun(tool=tool),),
            device=export.device,
            launches=export.launches,
            ranges=export.ranges,
            notes=export.notes,
        )
    if start.startswith(_REPORT) or path.suffix == ".ncu-rep":
        launches, device = ncu_rep.read_ncu_rep(path, source=source)
        return Profile(source=source, attempts=(ToolRun(tool="ncu"),), device=device, launches=launches)
    if start.startswith(b"PK") and zipfile.is_zipfile(path):
        with archive.unpacked(path, source=source) as folder:
            reports = archive.reports_below(folder, source=source)
            return _together([read_report(one) for one in reports], source)
    if path.suffix == ".nsys-rep":
        raise DoorError(
            source, f"needs nsys to be read: `nsys export --type sqlite {path.name}`, then give the .sqlite"
        )
    if path.suffix == ".qdstrm":
        raise DoorError(source, "was not imported by nsys: use `QdstrmImporter` or nsys on the machine that wrote it")
    return _text(read_file(path, source=source, most=_MOST_BYTES), source)


def _text(data: bytes, source: str) -> Profile:
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # of a PowerShell redirection
    text = data.decode("utf-16" if wide else "utf-8-sig", "replace")
    head = text.lstrip()[:1]
    if head == "<":
        defects, notes = sanitizer_xml.read_sanitizer_xml(data, source=source)
        return Profile(source=source, attempts=(ToolRun(tool="sanitizer"),), defects=defects, notes=notes)
    if head == "{":
        return _saved(read_json(text, source=source, bounds=_JSON), source)
    if ncu_csv.looks_like(text):
        launches, device = ncu_csv.read_ncu_csv(text, source=source)
        return Profile(source=source, attempts=(ToolRun(tool="ncu"),), device=device, launches=launches)
    raise DoorError(source, f"is no report that is known; give {_KINDS}")


def _saved(content: Any, source: str) -> Profile:
    """Return the profile of a JSON of `nvfp4 profile` or `nvfp4 profile show`; its explanation is made anew."""
    several = content.get("profiles") if "profiles" in content else [content]
    if not isinstance(several, list) or not several or not all(isinstance(one, dict) for one in several):
        raise DoorError(source, "is no JSON of `nvfp4 profile`: it has no list of profiles")
    made = []
    for one in several:
        fields = {name: value for name, value in one.items() if name != "explanation"}
        made.append(validated(Profile, fields, source=source))
    return _together([one for one in made if isinstance(one, Profile)], source)


def _together(profiles: list[Profile], source: str) -> Profile:
    """Return several reports as one: launches, defects and remarks in the order of the files."""
    launches = [launch for profile in profiles for launch in profile.launches]
    if len(launches) > MOST_LAUNCHES:
        raise DoorError(source, f"has {len(launches)} launches, and at most {MOST_LAUNCHES} are read")
    first = profiles[0]
    devices = list(dict.fromkeys(profile.device for profile in profiles if profile.device is not None))
    notes = [note for profile in profiles for note in profile.notes]
    if len({(device.name, device.capability, device.sms) for device in devices}) > 1:
        names = ", ".join(device.name[:60] for device in devices[:10])
        notes.insert(
            0, f"the reports are of several GPUs ({names}): the number of SMs is unknown; show them one by one"
        )
        devices = []
    return first.model_copy(
        update={
            "source": source,
            "device": devices[0] if devices else None,
            "launches": tuple(launch.model_copy(update={"index": at}) for at, launch in enumerate(launches)),
            "ranges": tuple(one for profile in profiles for one in profile.ranges)[:1000],
            "defects": tuple(one for profile in profiles for one in profile.defects)[:10_000],
            "notes": tuple(notes[:1000]),
        }
    )
