"""Batches and answers as text: what is sent over a network, and what is kept on disk.

An output that several calls gave alike is there once: in the text, the blobs of results are names into one table.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4.device.remote.base import Answer, Batch, RemoteError
from pytest_nvfp4.device.result import Result

VERSION = 1
"""Version of the text; a side that gets another one says so."""


_SMALL = 1 << 20


def squeeze(text: str) -> bytes:
    """A text as bytes for the way: compressed, unless it is so large that this would cost more than it saves."""
    data = text.encode()
    return b"z" + zlib.compress(data, 6 if len(data) < _SMALL // 4 else 1) if len(data) < _SMALL else b"t" + data


def unsqueeze(data: object) -> str:
    """The text of ``squeeze``. Raises RemoteError."""
    try:
        if isinstance(data, bytes) and data[:1] == b"t":
            return data[1:].decode()
        if isinstance(data, bytes) and data[:1] == b"z":
            return zlib.decompressobj().decompress(data[1:], _SMALL).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise RemoteError("lost", f"what came over the network is damaged: {error}", "run it again") from error
    raise RemoteError("version", f"the other side sent {type(data).__name__} of an unknown form", _SAME)


def pack_batch(batch: Batch) -> str:
    """A batch as text."""
    return json.dumps({"nvfp4": VERSION, "batch": batch.model_dump(mode="json")})


def unpack_batch(text: str) -> Batch:
    """The batch of a text. Raises RemoteError."""
    try:
        return Batch.model_validate(_content(text)["batch"])
    except (KeyError, ValidationError) as error:
        raise RemoteError("version", f"the batch cannot be read: {_first(error)}", _SAME) from error


def pack_answer(answer: Answer) -> str:
    """An answer as text."""
    table: dict[str, str] = {}
    data = answer.model_dump(mode="json")
    for result in data["results"]:
        for blob in _blobs(result):
            if blob["inline"] is not None:
                table[blob["sha256"]] = blob["inline"]
                blob["inline"] = ""
    return json.dumps({"nvfp4": VERSION, "answer": data, "blobs": table}, separators=(",", ":"))


def unpack_answer(text: str) -> Answer:
    """The answer of a text. Raises RemoteError."""
    try:
        content = _content(text)
        data, table = content["answer"], content["blobs"]
        for result in data["results"]:
            for blob in _blobs(result):
                if blob["inline"] == "":
                    blob["inline"] = table[blob["sha256"]]
        return Answer.model_validate(data)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise RemoteError("version", f"the answer cannot be read: {_first(error)}", _SAME) from error


def _blobs(result: dict[str, Any]) -> list[dict[str, Any]]:
    found = [output["data"] for output in result["outputs"]]
    return found + [call["trace"] for call in result["simulated"] if call.get("trace") is not None]


def inlined(result: Result, folder: Any) -> Result:
    """The result with the bytes of its files in it; a file that cannot be read stays a name, and is found later.

    Args:
        result: The result of a job.
        folder: The job's folder (a path).
    """
    from pytest_nvfp4.device.result import Blob

    made: dict[str, Blob] = {}

    def inline(blob: Blob) -> Blob:
        if blob.file is None:
            return blob
        if blob.sha256 not in made:
            try:
                made[blob.sha256] = Blob.inlined(blob.read(folder))
            except (ValueError, OSError):
                return blob
        return made[blob.sha256]

    outputs = tuple(output.model_copy(update={"data": inline(output.data)}) for output in result.outputs)
    simulated = tuple(
        call if call.trace is None else call.model_copy(update={"trace": inline(call.trace)})
        for call in result.simulated
    )
    return result.model_copy(update={"outputs": outputs, "simulated": simulated})


_SAME = "install the same version of pytest-nvfp4 on both sides (deploy the app again)"


def _content(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, TypeError) as error:
        raise RemoteError("lost", "what came over the network is damaged: it is no JSON", "run it again") from error
    version = content.get("nvfp4") if isinstance(content, dict) else None
    if version != VERSION:
        raise RemoteError("version", f"the other side speaks version {version} of the text, this one {VERSION}", _SAME)
    assert isinstance(content, dict)
    return content


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
