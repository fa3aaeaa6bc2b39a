"""An interpreter of filters (classic BPF over ``struct seccomp_data``), so that those of any processor can be tried."""

from __future__ import annotations

import struct

ALLOWED = 0x7FFF0000


def decide(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """Return what a filter answers to a system call: ``ALLOWED``, or 0x50000 and an error number."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, *[0] * 6)[:6])
    code = list(struct.iter_unpack("<HBBI", program))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, constant)
            case 0x54:
                value &= constant
            case 0x06:
                return constant
            case 0x15 | 0x25 | 0x35 | 0x45:
                holds = {
                    0x15: value == constant,
                    0x25: value > constant,
                    0x35: value >= constant,
                    0x45: bool(value & constant),
                }[operation]
                at += if_true if holds else if_false
            case _:
                raise AssertionError(f"{operation:#x} is no instruction of these filters")
