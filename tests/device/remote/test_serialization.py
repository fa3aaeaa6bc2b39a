"""Batches and answers as text."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.profiling.record import MOST_FILE_BYTES, ProfileRecord, ToolFile, ToolRun
from pytest_nvfp4.device.remote.base import BatchResult, RemoteError
from pytest_nvfp4.device.remote.serialization import (
    compress,
    decompress,
    inline_blobs,
    pack_batch,
    pack_result,
    unpack_batch,
    unpack_result,
)
from pytest_nvfp4.device.result import GroupOutput, Result

from .fakes import batch


def answer(*contents: bytes) -> BatchResult:
    outputs = tuple(
        GroupOutput(
            call=index, case=0, group=0, rows=1, columns=1, data=Blob.inlined(content), late_sha256=None, returned="c"
        )
        for index, content in enumerate(contents)
    )
    return BatchResult(batch="b", results=(Result(job="j", status="passed", outputs=outputs),))


def test_what_is_packed_is_unpacked() -> None:
    assert unpack_batch(pack_batch(batch())).jobs == batch().jobs
    one = answer(b"abc", b"abc", b"d")
    assert unpack_result(pack_result(one)) == one


def test_equal_outputs_travel_once() -> None:
    import random

    content = random.Random(1).randbytes(50_000)
    assert len(pack_result(answer(*[content] * 8))) < 1.1 * len(pack_result(answer(content)))


def test_the_files_of_a_profile_come_back_whole(tmp_path: Path) -> None:
    content = b"report" * 1000
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "ncu.ncu-rep").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    whole = ToolFile(name="ncu.ncu-rep", data=Blob(sha256=sha256, size=6000, file="attempt/ncu.ncu-rep"))
    large = ToolFile(name="large", data=Blob(sha256="0" * 64, size=MOST_FILE_BYTES + 1, file="attempt/ncu.ncu-rep"))
    record = ProfileRecord(attempts=(ToolRun(tool="ncu"),), files=(whole, large))
    result = inline_blobs(Result(job="j", status="passed", profile=record), tmp_path)
    sent = unpack_result(pack_result(BatchResult(batch="b", results=(result,)))).results[0].profile
    assert sent is not None
    first, second = (file.data for file in sent.files)
    assert first.read(None, source="it", most=MOST_FILE_BYTES, exact=False) == content
    assert second.inline is None, "what is too large is announced, and does not come"


@pytest.mark.parametrize("size", [0, 100, 3 << 20])
def test_squeezed_texts_come_back(size: int) -> None:
    text = "aä" * size
    assert decompress(compress(text)) == text


@pytest.mark.parametrize("data", ["text", None, b"", b"q123", {"a": 1}])
def test_another_form_is_another_version(data: object) -> None:
    with pytest.raises(RemoteError) as caught:
        decompress(data)
    assert caught.value.kind == "version"


@pytest.mark.parametrize("data", [b"z123", b"t\xff\xfe", compress("x" * 99)[:-9] + b"!!!!!!!!!"])
def test_damage_is_noticed(data: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        unpack_result(decompress(data))
    assert caught.value.kind == "lost"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"nvfp4": 99, "answer": {}}',
        '{"nvfp4": 1}',
        '{"nvfp4": 1, "answer": {"results": 3}, "blobs": {}}',
    ],
)
def test_what_is_no_answer_is_said_to_be_none(text: str) -> None:
    with pytest.raises(RemoteError):
        unpack_result(text)


def test_a_blob_that_did_not_come_is_noticed() -> None:
    text = pack_result(answer(b"abc")).replace('"blobs":{', '"blobs":{"other":"x"},"old":{')
    with pytest.raises(RemoteError):
        unpack_result(text)
