"""JSON from outside: bounded before it is parsed, and without the values that Python's parser accepts beyond RFC 8259.

The parser of the standard library accepts NaN, infinite numbers (``1e999``), integers of any length, repeated keys and
lone surrogates, and builds values of fifty times the size of their text. So the text is first reduced, at the speed of
C, to its brackets and separators, which bound depth and number of values before anything is built.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from pytest_nvfp4.isolation.door.error import DoorError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BRACKETS, _SEPARATORS = b"{}[]", b",:"
_ALL_BYTES = bytes(range(256))
_NOT_BRACKETS = _ALL_BYTES.translate(None, _BRACKETS)
_NOT_STRUCTURE = _ALL_BYTES.translate(None, b"{[" + _SEPARATORS)
_MOST_DIGITS = 20
"""Digits of a number: enough for 2**64 and for every float that ``repr`` writes."""
_TOO_LONG = re.compile(rb"[0-9]{%d}" % (_MOST_DIGITS + 1))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on one JSON document.

    Attributes:
        size: Bytes of its text.
        depth: Levels of nested objects and arrays.
        values: Number of values and keys.
    """

    size: int = 64 << 20
    depth: int = 64
    values: int = 1_000_000


DOCUMENT = Bounds()
"""Bounds on a document of a machine: a trace, a verdict, an event."""


def read_json(data: bytes | str, *, source: str, bounds: Bounds = DOCUMENT) -> Any:
    """Return the values of a JSON document: None, bool, int, finite float, str, list and dict.

    Args:
        data: The text, UTF-8 if it is bytes.
        source: Where it came from, for the error: a noun, such as ``the baseline x.json``.
        bounds: Bounds on the document.

    Raises:
        DoorError: It is not JSON, or exceeds a bound, or contains a number that is not finite or has more than 20
            digits, a repeated key, or a lone surrogate.
    """
    values, _ = _parsed(data, source, bounds)
    return values


def _parsed(data: bytes | str, source: str, bounds: Bounds) -> tuple[Any, int]:
    """Return the values of a document, and a bound on their number. Raises DoorError."""
    if len(data) > bounds.size:
        raise DoorError(source, f"has more than {bounds.size} bytes")
    try:
        raw = data if isinstance(data, bytes) else data.encode()
        text = raw.decode()
    except UnicodeError:
        raise DoorError(source, "is not UTF-8") from None
    if len(raw) > bounds.size:
        raise DoorError(source, f"has more than {bounds.size} bytes")
    count = _check_structure(raw, source, bounds)
    try:
        values = _DECODER.decode(text)
    except _RefusedError as error:
        raise DoorError(source, str(error)) from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be parsed"
        raise DoorError(source, f"is not JSON: {reason}") from None
    if _SURROGATE.search(raw):
        _check_text(values, source)
    return values, count


def read_lines(data: bytes, *, source: str, most: int, bounds: Bounds = DOCUMENT) -> Iterator[tuple[bytes, Any]]:
    """Yield each line of some JSON lines, with its end, and its values; nothing is built for lines not yet reached.

    Args:
        data: The lines; each ends with a line feed.
        source: Where a line came from; the errors append its number.
        most: Largest number of lines.
        bounds: Bounds on a line; that on the number of values holds for all lines together.

    Raises:
        DoorError: A line is refused (see `read_json`), or there are more than ``most``.
    """
    for number, line in enumerate(io.BytesIO(data), start=1):
        if number > most:
            raise DoorError(source, f"are more than {most}")
        values, count = _parsed(line, f"{source} number {number}", bounds)
        bounds = replace(bounds, values=bounds.values - count)
        yield line, values


class _RefusedError(ValueError):
    """A value that the door refuses."""


def _check_structure(raw: bytes, source: str, bounds: Bounds) -> int:
    """Refuse a text whose values would be too many or too deep, and return a bound on their number.

    Takes linear time, and memory in proportion to the text and the number of values that are allowed.
    """
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * bounds.values:
        raise DoorError(source, f"contains more than {bounds.values} values")
    plain = b"-".join(unescaped.split(b'"')[::2])  # what is outside the strings
    if _TOO_LONG.search(plain):
        raise DoorError(source, f"contains a number of more than {_MOST_DIGITS} digits")
    count = len(plain.translate(None, _NOT_STRUCTURE)) + 1
    if count > bounds.values:
        raise DoorError(source, f"contains more than {bounds.values} values")
    brackets = plain.translate(None, _NOT_BRACKETS)
    for _ in range(bounds.depth):  # each pass removes the innermost level
        if not brackets:
            break
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    if brackets.strip(b"}]"):
        raise DoorError(source, f"is nested deeper than {bounds.depth} levels, or its brackets do not match")
    return count


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _RefusedError("contains an object with a repeated key")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError("contains a number that is not finite")
    return value


def _constant(name: str) -> NoReturn:
    raise _RefusedError(f"contains {name}, which is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)


def _check_text(values: Any, source: str) -> None:
    """Refuse lone surrogates, which no encoder accepts."""
    open_values = [values]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            open_values += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            open_values += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise DoorError(source, "contains text with a lone surrogate") from None
