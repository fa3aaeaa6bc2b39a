"""JSON from outside is values within bounds, or one error."""

from __future__ import annotations

import json
import resource
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json, read_lines

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_what_json_writes_is_read(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read_json(text, source="it") == value
    assert read_json(text.encode(), source="it") == value


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text('{}[]",:\\ue0123456789.-NaInfity', max_size=60).map(str.encode))
def test_any_bytes_are_values_or_one_error(data: bytes) -> None:
    try:
        values = read_json(data, source="it")
    except DoorError as error:
        message = str(error)
        values = None
    else:
        message = "it is read"
        assert values == json.loads(data)
    assert message.startswith("it ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[" * 100_000, "deeper"),
        (b"[" * 100_000 + b"]" * 100_000, "deeper"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
        (b"1e999", "not finite"),
        (b"[-1e400]", "not finite"),
        (b"NaN", "NaN"),
        (b"-Infinity", "Infinity"),
        (b'{"a": 1, "b": 2, "a": 3}', "repeated key"),
        (b"1" * 21, "20 digits"),
        (b"[1." + b"0" * 5000 + b"]", "20 digits"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'"\xff"', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"", "not JSON"),
        (b"{} {}", "not JSON"),
        (b'"\n"', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" + b"0," * 3_000_000 + b"0]", "values"),
        (b" " * (65 << 20), "bytes"),
        (b"]" * 1000 + b"[" * 1000, "brackets|JSON"),
    ],
    ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_what_is_no_document_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(DoorError, match=words):
        read_json(data, source="it")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":' * 64 + b"1" + b"}" * 64,
        b'"' + b"[" * 1000 + b'"',
        b'"\\"[[[\\\\"',
        b'"\\ud83d\\ude00"',
        b"1" * 20,
        b'"\\\\ud800"',
    ],
)
def test_what_only_looks_like_it_is_read(data: bytes) -> None:
    assert read_json(data, source="it") == json.loads(data)


def test_strings_take_linear_time() -> None:
    """Quadratic, these would take minutes."""
    for data in (b'"' + b'\\"' * 1_000_000, b'"' * 1_000_001, b"\\" * 1_000_000, b'"' + b"\\" * 999_999):
        with pytest.raises(DoorError):
            read_json(data, source="it")


def test_memory_follows_the_bounds() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in (b"[" + b"[]," * 5_000_000 + b"[]]", b"{" + b'"":{},' * 5_000_000 + b'"":0}'):
        with pytest.raises(DoorError):
            read_json(data, source="it")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 << 10, "KiB; parsed, these are more than 300 MB"


def test_lines_are_read_one_by_one_and_counted() -> None:
    data = b'{"a": 1}\n[2]\n3\n'
    assert list(read_lines(data, source="line", most=3)) == [(b'{"a": 1}\n', {"a": 1}), (b"[2]\n", [2]), (b"3\n", 3)]
    with pytest.raises(DoorError, match="more than 2"):
        list(read_lines(data, source="line", most=2))
    with pytest.raises(DoorError, match="line number 2 is not JSON"):
        list(read_lines(b"1\n\n", source="line", most=3))
    with pytest.raises(DoorError, match="line number 3 contains more"):
        list(read_lines(b"[1,2]\n" * 4, source="line", most=9, bounds=Bounds(values=8)))
    lines = read_lines(b"\n" * 50_000_000, source="line", most=3)
    with pytest.raises(DoorError, match="number 1 is not JSON"):
        next(lines)
