"""Text form of batches and their results: sent over a network, and stored on disk.

A blob that several outputs share is stored once: in the text, the blobs of results are keys of one table.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, model_validator

from pytest_nvfp4.device.answer import most_output_bytes
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.profiling.record import MOST_FILE_BYTES
from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.result import RECORD_BYTES, RECORDS, Result
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.isolation.door.models import validated
from pytest_nvfp4.isolation.door.packing import inflate_at_most

VERSION = 2
"""Version of the text form; both sides must have the same."""
_SAME_VERSION = "install the same version of pytest-nvfp4 on both sides (deploy the app again)"
_RESULT = "the result of the remote"
_BOUNDS = Bounds(size=2 << 30, depth=64, values=5_000_000)
"""Bounds on a text; the outputs of a batch are part of it."""
_DESCRIPTION_BYTES = 256 << 20
"""Bytes of a result besides its outputs: findings, times and samples, as many as a worker may send."""
_COMPRESSED_BYTES = 1 << 20
"""Size below which texts are compressed; compression of larger ones costs more time than it saves."""


def compress(text: str) -> bytes:
    """Encode a text for the network: ``z`` and compressed bytes, or ``t`` and plain bytes for a large text."""
    data = text.encode()
    if len(data) >= _COMPRESSED_BYTES:
        return b"t" + data
    return b"z" + zlib.compress(data, 6 if len(data) < _COMPRESSED_BYTES // 4 else 1)


def decompress(data: object) -> str:
    """Decode the bytes of `compress`. Raises RemoteError."""
    try:
        if isinstance(data, bytes) and data[:1] == b"t":
            return data[1:].decode()
        if isinstance(data, bytes) and data[:1] == b"z":
            # The bound on the output keeps a hostile container from filling the memory of this machine.
            return inflate_at_most(
                data[1:], size=_COMPRESSED_BYTES, source="the data received over the network"
            ).decode()
    except (DoorError, UnicodeDecodeError) as error:
        raise RemoteError("lost", f"the data received over the network is damaged: {error}", "run it again") from error
    raise RemoteError("version", f"the other side sent {type(data).__name__} of an unknown format", _SAME_VERSION)


def pack_batch(batch: Batch) -> str:
    """Convert a batch to text."""
    return json.dumps({"nvfp4": VERSION, "batch": batch.model_dump(mode="json")})


def unpack_batch(text: str) -> Batch:
    """Convert text to a batch. Raises RemoteError."""
    try:
        return validated(Batch, _content(text).get("batch"), source="the batch")
    except DoorError as error:
        raise RemoteError("version", f"the batch cannot be read: {error}", _SAME_VERSION) from error


def pack_result(result: BatchResult) -> str:
    """Convert the results of a batch to text."""
    table: dict[str, str] = {}
    data = result.model_dump(mode="json")
    for job_result in data["results"]:
        for blob in _blobs(job_result):
            if blob["inline"] is not None:
                table[blob["sha256"]] = blob["inline"]
                blob["inline"] = ""
    return json.dumps({"nvfp4": VERSION, "result": data, "blobs": table}, separators=(",", ":"))


def most_bytes(batch: Batch) -> int:
    """Return the largest size of the text of a batch's result: its outputs as base64, and what describes them."""
    outputs = sum(most_output_bytes(job) * (batch.blocks if job.action == "benchmark" else 1) for job in batch.jobs)
    records = RECORD_BYTES * sum(len(job.cases) for job in batch.jobs if job.action == "simulate")
    return min(_BOUNDS.size, (outputs + records) * 3 // 2 + _DESCRIPTION_BYTES)


def unpack_result(text: str | bytes) -> BatchResult:
    """Convert text to the results of a batch. Raises RemoteError."""
    content = _content(text)
    try:
        packed = validated(
            _Packed, {name: content[name] for name in ("result", "blobs") if name in content}, source=_RESULT
        )
        for job_result in packed.result["results"]:
            for blob in _blobs(job_result):
                if blob.get("inline") == "" and isinstance(name := blob.get("sha256"), str):
                    blob["inline"] = packed.blobs.get(name)
        return validated(BatchResult, packed.result, source=_RESULT)
    except DoorError as error:
        raise RemoteError("remote", f"{error}: the answer is refused", _SAME_VERSION) from error


class _Packed(BaseModel):
    """The text form of a result, as far as it is needed to put the blobs back into their places."""

    model_config = STRICT
    result: dict[str, Any]
    blobs: dict[str, str]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not isinstance(results := self.result.get("results"), list) or not all(
            isinstance(result, dict) for result in results
        ):
            raise ValueError("it has no list of results")
        return self


def _blobs(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blobs of a result in JSON; the model refuses what is none."""
    found = []
    for name, of in (("outputs", "data"), *(("simulated", record) for record in RECORDS)):
        entries = result.get(name)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(blob := entry.get(of), dict):
                found.append(blob)
    profile = result.get("profile")
    files = profile.get("files") if isinstance(profile, dict) else None
    found += [
        entry["data"]
        for entry in (files if isinstance(files, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict)
    ]
    return found


def inline_blobs(result: Result, folder: Path) -> Result:
    """Return the result with the bytes of its files in ``folder`` inline; an unreadable file stays a reference."""
    read: dict[str, Blob] = {}

    def inline(blob: Blob, *, most: int) -> Blob:
        if blob.file is None:
            return blob
        if blob.sha256 not in read:
            try:
                data = blob.read(folder, source="a file of the result", most=most, exact=False)
                read[blob.sha256] = Blob.inlined(data)
            except DoorError:
                return blob
        return read[blob.sha256]

    outputs = tuple(
        output.model_copy(update={"data": inline(output.data, most=output.data.size)}) for output in result.outputs
    )
    simulated = tuple(
        call.model_copy(
            update={
                record: inline(blob, most=RECORD_BYTES)
                for record in RECORDS
                if (blob := getattr(call, record)) is not None
            }
        )
        for call in result.simulated
    )
    profile = result.profile
    if profile is not None:
        files = tuple(
            file.model_copy(update={"data": inline(file.data, most=MOST_FILE_BYTES)}) for file in profile.files
        )
        profile = profile.model_copy(update={"files": files})
    conversation = result.conversation
    if conversation is not None:
        conversation = inline(conversation, most=RECORD_BYTES)
    update = {"outputs": outputs, "simulated": simulated, "profile": profile, "conversation": conversation}
    return result.model_copy(update=update)


def _content(text: str | bytes) -> dict[str, Any]:
    try:
        content = read_json(text, source="the data received over the network", bounds=_BOUNDS)
    except DoorError as error:
        raise RemoteError("lost", str(error), "run it again") from error
    version = content.get("nvfp4") if isinstance(content, dict) else None
    if version != VERSION:
        problem = f"the other side uses version {str(version)[:40]} of the text format, this side version {VERSION}"
        raise RemoteError("version", problem, _SAME_VERSION)
    assert isinstance(content, dict)
    return content
