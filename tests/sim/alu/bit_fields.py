"""Permuted bytes and bit fields, by the loops of the ISA."""

from __future__ import annotations


def permuted(a: int, b: int, selector: int) -> int:
    source = b << 32 | a
    result = 0
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = source >> 8 * (nibble & 7) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * place
    return result


def extracted(a: int, position: int, length: int, bits: int, kind: str) -> int:
    """The ISA's loop over bits; of 64 bits position and length are not cut to 8 bits (measured on an H200)."""
    if bits == 32:
        position, length = position & 0xFF, length & 0xFF
    top = bits - 1
    sign = 0 if kind == "u" or not length else a >> min(position + length - 1, top) & 1
    result = 0
    for bit in range(bits):
        inside = bit < length and position + bit <= top
        result |= ((a >> position + bit & 1) if inside else sign) << bit
    return result


def inserted(a: int, b: int, position: int, length: int, bits: int) -> int:
    if bits == 32:
        position, length = position & 0xFF, length & 0xFF
    for bit in range(min(length, bits)):
        if position + bit < bits:
            b = b & ~(1 << position + bit) | (a >> bit & 1) << position + bit
    return b
