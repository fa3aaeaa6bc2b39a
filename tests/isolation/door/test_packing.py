"""Compressed bytes are of the announced size, or refused, without the memory that they claim."""

from __future__ import annotations

import contextlib
import resource
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.packing import from_base64, inflate, inflate_at_most


@given(st.binary(max_size=200))
def test_what_was_compressed_comes_back(data: bytes) -> None:
    assert inflate(zlib.compress(data), size=len(data), source="it") == data


@given(st.binary(max_size=40), st.integers(-1, 100))
def test_any_bytes_are_data_or_one_error(data: bytes, size: int) -> None:
    with contextlib.suppress(DoorError):
        assert len(inflate(data, size=size, source="it")) == size


PACKED = zlib.compress(b"abc" * 10)


@pytest.mark.parametrize(
    ("data", "size", "words"),
    [
        (PACKED, 29, "more than 29"),
        (PACKED, 31, "has 30 bytes"),
        (PACKED, 4 << 30, "cannot hold"),
        (PACKED, 1 << 60, "cannot hold"),
        (PACKED[:-1], 30, "incomplete"),
        (PACKED + b"x", 30, "other bytes"),
        (zlib.compress(bytes(100_000_000)), 10, "more than 10"),
        (b"", 0, "incomplete"),
        (b"abc", 3, "damaged"),
    ],
)
def test_other_sizes_and_damage_are_refused(data: bytes, size: int, words: str) -> None:
    with pytest.raises(DoorError, match=words):
        inflate(data, size=size, source="it")


def test_a_claimed_size_takes_no_memory() -> None:
    packed = zlib.compress(bytes(5_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DoorError):
        inflate(packed, size=4 << 30, source="it")
    with pytest.raises(DoorError):
        inflate_at_most(packed[:100], size=4 << 30, source="it")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"


@pytest.mark.parametrize("text", ["a", "a===", "a b=", "\u00e9", b"\xff"])
def test_what_is_no_base64_is_refused(text: str | bytes) -> None:
    with pytest.raises(DoorError, match="base64"):
        from_base64(text, source="it")
