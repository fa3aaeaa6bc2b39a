"""Archive of a trace (``.nvfp4``): a zip of ``trace.json`` and the artifacts, the same on every machine.

Paths below the folder of the kernel's files begin with `SOURCE` in it; whoever reads it puts a folder of its own in
their place. An archive is read as a file of a stranger: entries, sizes and names are bounded, and hashes compared.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.toolchain.cache import is_artifact
from pytest_nvfp4.toolchain.trace import Artifact, Trace

SOURCE = "/nvfp4-source"
"""Stands for the folder of the kernel's files."""
SUFFIX = ".nvfp4"
MOST_BYTES = 512 << 20
"""Bytes of an archive, and of all that is in it."""
_TRACE = "trace.json"
HOST = "host.json"
"""Entry with the kernel as jobs carry it and a recording of its host code, by which it can be simulated."""
_MOST_ENTRIES = 2000
_MOST_JSON = 64 << 20
_TEXTS = ("ptx", "sass", "mlir")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every entry, so that equal traces give equal bytes."""


def pack(trace: Trace, *, base: Path, host: bytes | None = None) -> bytes:
    """Return the archive of a trace whose kernel's files are below ``base``, with its host code. Raises OSError."""
    old = str(base.resolve())
    folder = Path(trace.folder or ".")
    entries, artifacts = {} if host is None else {HOST: host}, []
    for artifact in trace.artifacts:
        data = (folder / artifact.name).read_bytes()
        if artifact.kind in _TEXTS:
            data = data.replace(old.encode(), SOURCE.encode())
        entries[artifact.name] = data
        artifacts.append(artifact.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()}))
    inside = {path: digest for path, digest in trace.dependencies.items() if Path(path).is_relative_to(old)}
    # What lies elsewhere on the machine that made it says nothing anywhere else.
    update = {"artifacts": tuple(artifacts), "dependencies": inside, "others": {}, "session": None, "bundle": None}
    text = trace.model_copy(update=update).model_dump_json(exclude={"folder"})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {_TRACE: text.replace(_in_json(old), SOURCE).encode(), **entries}.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, compress_type=zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def unpack(data: bytes, *, source: str, base: Path, into: Path) -> Trace:
    """Return the trace of an archive, with its artifacts in a folder.

    Args:
        data: The archive.
        source: What it is, for the error.
        base: The folder that the paths are put below.
        into: A new, empty folder for the artifacts.

    Raises:
        DoorError: It is no archive of a trace, or is damaged.
    """
    entries = _entries(data, source)
    entries.pop(HOST, None)
    text = entries.pop(_TRACE).decode("utf-8", "replace").replace(SOURCE, _in_json(str(base)))
    trace = parsed(Trace, text, source=source, bounds=Bounds(size=_MOST_JSON))
    if {artifact.name for artifact in trace.artifacts} != set(entries):
        raise DoorError(source, "does not have the artifacts that it lists")
    artifacts = []
    for artifact in trace.artifacts:
        if hashlib.sha256(content := entries[artifact.name]).hexdigest() != artifact.sha256:
            raise DoorError(source, f"has an artifact {artifact.name} that does not match its hash")
        if artifact.kind in _TEXTS:
            content = content.replace(SOURCE.encode(), str(base).encode())
        (into / artifact.name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        artifacts.append(Artifact(kind=artifact.kind, name=artifact.name, sha256=digest))
    return trace.model_copy(update={"artifacts": tuple(artifacts), "folder": str(into)})


def host_of(data: bytes, *, source: str) -> bytes:
    """Return the recorded host code in an archive. Raises DoorError: it is no archive, or has none."""
    host = _entries(data, source).get(HOST)
    if host is None:
        raise DoorError(source, "has no recording of host code: its kernel cannot be run")
    return host


def _entries(data: bytes, source: str) -> dict[str, bytes]:
    """Return the content of each entry of a zip. Raises DoorError."""
    entries: dict[str, bytes] = {}
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > _MOST_ENTRIES:
                raise DoorError(source, f"has more than {_MOST_ENTRIES} entries")
            for info in archive.infolist():
                name = info.filename
                if (name not in (_TRACE, HOST) and not is_artifact(name)) or name in entries:
                    raise DoorError(source, f"has an entry {name[:80]!r} that a trace does not have")
                with archive.open(info) as entry:
                    content = entry.read(left + 1)  # a bound on what is unpacked, whatever the entry claims
                if len(content) > left:
                    raise DoorError(source, f"has more than {MOST_BYTES} bytes in it")
                left -= len(content)
                entries[name] = content
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DoorError(source, f"is no archive of a trace: {str(error)[:200]}") from None
    if _TRACE not in entries:
        raise DoorError(source, f"is no archive of a trace: it has no {_TRACE}")
    return entries


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
