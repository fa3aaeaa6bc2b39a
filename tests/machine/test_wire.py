"""Frames between the kernel's process and the machine: what was sent arrives, and nothing else is accepted."""

from __future__ import annotations

import json
import socket
import struct
import threading

import pytest

from pytest_nvfp4.machine.wire import Channel, HungUpError, Message, WireError


def pair() -> tuple[socket.socket, Channel]:
    """A raw end and the channel of the other one."""
    one, other = socket.socketpair()
    return one, Channel(other)


def header(text: str | bytes, *, blobs: bytes = b"") -> bytes:
    """The bytes of a frame."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<QQ", len(data), len(blobs)) + data + blobs


def test_a_frame_arrives_as_it_was_sent() -> None:
    one, receiver = pair()
    blobs = [b"", bytes(range(256)) * 9000, bytearray(b"x")]
    fields = {
        "line": ["kärnel.py", 7, "f"],
        "factor": 0.1,
        "most": 2**63,
        "nothing": None,
        "negative": [-1, -0.5],
        "text": '[{"\\' * 40,
    }
    sender = threading.Thread(target=lambda: Channel(one).send("copy", fields, blobs))
    sender.start()
    message = receiver.receive()
    sender.join()
    assert message == Message("copy", fields, [bytearray(blob) for blob in blobs])


BROKEN = {
    "not JSON": header("{"),
    "no object": header("[1]"),
    "no kind": header("{}"),
    "not text": header(b'{"kind": "\xff"}'),
    "infinite": header('{"kind": "x", "a": Infinity}'),
    "beyond a double": header('{"kind": "x", "a": 1e999}'),
    "not a number": header('{"kind": "x", "a": NaN}'),
    "too long a number": header('{"kind": "x", "a": ' + "9" * 40 + "}"),
    "twice": header('{"kind": "x", "a": 1, "a": 2}'),
    "deep": header('{"kind": "x", "a": ' + "[" * 40 + "]" * 40 + "}"),
    "very deep": header('{"kind": "x", "a": ' + "[" * 200_000 + "]" * 200_000 + "}"),
    "too large": struct.pack("<QQ", 1 << 40, 0),
    "too much": struct.pack("<QQ", 16, 1 << 60),
    "sizes": header(json.dumps({"kind": "x", "blobs": [3, -1]}), blobs=b"ab"),
    "sizes of another type": header(json.dumps({"kind": "x", "blobs": [True]}), blobs=b"a"),
    "no sizes": header('{"kind": "x"}', blobs=b"ab"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_the_protocol_is_refused(case: str) -> None:
    one, receiver = pair()
    threading.Thread(target=one.sendall, args=(BROKEN[case],), daemon=True).start()
    with pytest.raises(WireError):
        receiver.receive()


@pytest.mark.parametrize("data", [b"", b"\x10", header('{"kind": "x"}')[:-3], struct.pack("<QQ", 1 << 20, 1 << 32)])
def test_the_end_of_the_other_side_is_noticed(data: bytes) -> None:
    one, receiver = pair()
    one.sendall(data)
    one.close()
    with pytest.raises(HungUpError):
        receiver.receive()
