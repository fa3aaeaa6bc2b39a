"""Formulas of the proofs derived again by enumeration."""

from __future__ import annotations

from collections.abc import Sequence


def walked_table(tiles: Sequence[int]) -> list[int]:
    """Group by tile number, by writing every group's number down as often as it has tiles."""
    return [group for group, count in enumerate(tiles) for _ in range(count)]


def byte_by_filling(rows: int, blocks: int) -> dict[tuple[int, int], int]:
    """Where each factor lies, by filling memory in the order of the words: tiles of 128 rows by 4 factors, along k
    first; in a tile 32 lines of 16 bytes, a line for rows i, i + 32, i + 64, i + 96, four factors each."""
    found = {}
    at = 0
    for tile_row in range(0, -(-rows // 128) * 128, 128):
        for tile_k in range(0, -(-blocks // 4) * 4, 4):
            for line in range(32):
                for quarter in range(4):
                    for inner in range(4):
                        found[tile_row + 32 * quarter + line, tile_k + inner] = at
                        at += 1
    return found


def legal(m: int, n: int, ctas: int) -> bool:
    """The rows of PTX ISA's "Matrix Shape" for block-scaled 4-bit operands, and whole multiples of the widest."""
    return (
        m in ({128, 256, 384, 512} if ctas == 1 else {128, 256, 512})
        and n in range(8 * ctas, 513, 8 * ctas)
        and (n <= 256 or n == 512)
    )
