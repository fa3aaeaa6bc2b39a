"""Batches and answers as text."""

from __future__ import annotations

import pytest

from pytest_nvfp4.device.remote.base import BatchResult, RemoteError
from pytest_nvfp4.device.remote.serialization import (
    compress,
    decompress,
    pack_batch,
    pack_result,
    unpack_batch,
    unpack_result,
)
from pytest_nvfp4.device.result import Blob, GroupOutput, Result

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
