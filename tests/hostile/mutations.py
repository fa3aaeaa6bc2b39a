"""Damage to bytes and to JSON: what a fuzzer makes of a valid document."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["damaged_bytes", "damaged_json", "mutated"]

NASTY: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: None,
    lambda _: True,
    lambda _: "",
    lambda _: [],
    lambda _: {},
    lambda draw: draw.choice((-1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 10**19, 10**400)),
    lambda draw: draw.choice((float("nan"), float("inf"), -float("inf"), -0.0, 1e308, 5e-324, 0.1)),
    lambda draw: draw.choice(("\0", "\ud800", "\u202e", "../../etc/passwd", "/dev/zero", "a" * 5000, "1e999", "%s{0}")),
    lambda draw: "\x1b[2J::error::" + "x" * draw.randrange(20),
    lambda draw: [0] * draw.choice((1, 3, 300)),
    lambda draw: nested(draw.choice((3, 60, 300))),
    lambda _: {"": {}, "event": "end", "__class__": "x"},
)
"""Values that no writer means to send."""


_INSERTED = (b"[" * 3000, b'{"a":' * 500, b"1e999", b"NaN", b"9" * 5000, b"\n", b'"', b"\\u")


def nested(depth: int) -> Any:
    """Return a list in lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def damaged_bytes(data: bytes, draw: random.Random) -> bytes:
    """Damage a document as text: bytes flipped, cut out, repeated, inserted, or the rest missing."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(changed) + 1)
        size = draw.choice((1, 2, 8, 64))
        match draw.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size] * draw.choice((1, 2, 200))
            case 3:
                changed[at:at] = draw.randbytes(size)
            case 4:
                del changed[at:]
            case 5:
                changed[at:at] = draw.choice(
                    (b"[" * 3000, b'{"a":' * 500, b"1e999", b"NaN", b"9" * 5000, b"\n", b'"', b"\\u")
                )
            case _:
                other = draw.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + size]
    return bytes(changed)


def damaged_json(value: Any, draw: random.Random) -> Any:
    """Return a copy of JSON values in which a few nodes are others: of other types, missing, doubled, or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return draw.choice(NASTY)(draw)
        holder, key = draw.choice(places)
        match draw.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 1:
                holder[draw.choice((str(key) + "x", "", "event", "status"))] = holder.pop(key)
            case 2:
                other, name = draw.choice(places)
                if isinstance(other, dict) and name in other:
                    holder[key] = copy.deepcopy(other[name])
            case 3 if isinstance(holder[key], int) and not isinstance(holder[key], bool):
                holder[key] += draw.choice((-1, 1, -(2**40), 2**40))
            case 4 if isinstance(holder[key], str):
                holder[key] = damaged_bytes(holder[key].encode(), draw).decode("utf-8", "surrogateescape")
            case _:
                holder[key] = draw.choice(NASTY)(draw)
    return value


def _places(value: Any) -> Any:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Damage a document: its lines of JSON by structure, or its bytes."""
    if draw.random() < 0.5:
        return damaged_bytes(data, draw)
    lines = data.splitlines()
    at = draw.randrange(len(lines)) if lines else 0
    try:
        lines[at] = json.dumps(damaged_json(json.loads(lines[at]), draw)).encode()
    except (ValueError, IndexError):
        return damaged_bytes(data, draw)
    if draw.random() < 0.1:
        draw.shuffle(lines)
    if draw.random() < 0.1:
        lines.insert(draw.randrange(len(lines)), lines[at])
    return b"\n".join(lines) + b"\n" * data.endswith(b"\n")
