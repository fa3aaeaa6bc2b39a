"""Reference implementations for memory accesses."""

from __future__ import annotations

import numpy as np


def atomic_result(op: str, typed: str, old: int, b: int) -> int:
    """Return the new value by the ISA's table, on numpy scalars of the operand type."""
    kind = np.dtype(("i" if typed[0] == "s" else "u") + str(int(typed[1:]) // 8))
    x, y = (np.array(v, f"u{kind.itemsize}").view(kind)[()] for v in (old, b))
    with np.errstate(over="ignore"):
        new = {
            "add": lambda: x + y,
            "min": lambda: min(x, y),
            "max": lambda: max(x, y),
            "and": lambda: x & y,
            "or": lambda: x | y,
            "xor": lambda: x ^ y,
            "exch": lambda: y,
            "inc": lambda: kind.type(0) if x >= y else x + kind.type(1),
            "dec": lambda: y if x == 0 or x > y else x - kind.type(1),
        }[op]()
    return int(np.array(new, kind).view(f"u{kind.itemsize}"))


def loaded_registers(data: np.ndarray, bits: int, count: int, register: int, *, signed: bool) -> list[np.ndarray]:
    """Return the registers of a vector load, one array per element."""
    rows = data.view(f"{'i' if signed else 'u'}{bits // 8}").reshape(-1, count)
    wide = rows.astype(f"{'i' if signed else 'u'}{register // 8}").view(f"u{register // 8}")
    return [wide[:, column] for column in range(count)]


def bank_passes(addresses: list[tuple[int, int]], size: int) -> tuple[int, int]:
    """Return the passes taken and the fewest possible: a group of lanes takes one per word of its busiest bank."""
    group = 32 // max(1, size // 4)
    total = least = 0
    for start in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for lane, address in addresses:
            if start <= lane < start + group:
                for word in range(address // 4, (address + size + 3) // 4):
                    banks.setdefault(word % 32, set()).add(word)
        if banks:
            total += max(len(words) for words in banks.values())
            least += 1
    return total, least
