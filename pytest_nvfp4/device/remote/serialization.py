"""Text form of batches and their results: sent over a network, and stored on disk.

A blob that several outputs share is stored once: in the text, the blobs of results are keys of one table.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteError
from pytest_nvfp4.device.result import Blob, Result

VERSION = 2
"""Version of the text form; both sides must have the same."""
_SAME_VERSION = "install the same version of pytest-nvfp4 on both sides (deploy the app again)"
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
            return zlib.decompressobj().decompress(data[1:], _COMPRESSED_BYTES).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise RemoteError("lost", f"the data received over the network is damaged: {error}", "run it again") from error
    raise RemoteError("version", f"the other side sent {type(data).__name__} of an unknown format", _SAME_VERSION)


def pack_batch(batch: Batch) -> str:
    """Convert a batch to text."""
    return json.dumps({"nvfp4": VERSION, "batch": batch.model_dump(mode="json")})


def unpack_batch(text: str) -> Batch:
    """Convert text to a batch. Raises RemoteError."""
    try:
        return Batch.model_validate(_content(text)["batch"])
    except (KeyError, ValidationError) as error:
        raise RemoteError("version", f"the batch cannot be read: {_first_line(error)}", _SAME_VERSION) from error


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


def unpack_result(text: str) -> BatchResult:
    """Convert text to the results of a batch. Raises RemoteError."""
    try:
        content = _content(text)
        data, table = content["result"], content["blobs"]
        for job_result in data["results"]:
            for blob in _blobs(job_result):
                if blob["inline"] == "":
                    blob["inline"] = table[blob["sha256"]]
        return BatchResult.model_validate(data)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise RemoteError("version", f"the result cannot be read: {_first_line(error)}", _SAME_VERSION) from error


def _blobs(result: dict[str, Any]) -> list[dict[str, Any]]:
    outputs = [output["data"] for output in result["outputs"]]
    return outputs + [call["trace"] for call in result["simulated"] if call.get("trace") is not None]


def inline_blobs(result: Result, folder: Path) -> Result:
    """Return the result with the bytes of its files in ``folder`` inline; an unreadable file stays a reference."""
    read: dict[str, Blob] = {}

    def inline(blob: Blob) -> Blob:
        if blob.file is None:
            return blob
        if blob.sha256 not in read:
            try:
                read[blob.sha256] = Blob.inlined(blob.read(folder))
            except (ValueError, OSError):
                return blob
        return read[blob.sha256]

    outputs = tuple(output.model_copy(update={"data": inline(output.data)}) for output in result.outputs)
    simulated = tuple(
        call if call.trace is None else call.model_copy(update={"trace": inline(call.trace)})
        for call in result.simulated
    )
    return result.model_copy(update={"outputs": outputs, "simulated": simulated})


def _content(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, TypeError) as error:
        raise RemoteError("lost", "the data received over the network is not JSON", "run it again") from error
    version = content.get("nvfp4") if isinstance(content, dict) else None
    if version != VERSION:
        problem = f"the other side uses version {version} of the text format, this side version {VERSION}"
        raise RemoteError("version", problem, _SAME_VERSION)
    assert isinstance(content, dict)
    return content


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
