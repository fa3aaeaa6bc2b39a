"""Inputs of a kernel: operands, scale factors in both layouts, and guard memory around them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.numerics import fp16, scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, HalfBits, NumericsError, ceil_div, require_bytes
from pytest_nvfp4.numerics.oracle import Exact, exact_product
from pytest_nvfp4.numerics.quantise import BLOCK
from pytest_nvfp4.problem import Group, Problem


@dataclass(frozen=True, slots=True)
class Guard:
    """Contents of the memory around a group's tensors.

    A harness that honours it allocates each tensor inside a larger buffer: operands and scale factors followed by
    bytes that poison whatever reads them, C between rows that must keep their bits.

    Attributes:
        poison: fp16 bits of C and of its guard rows before every call.
        c_rows_before: guard rows in front of C, of n elements each.
        c_rows_after: guard rows behind C: 128, a whole tile, so that the store of a ragged last tile lands in them.
        packed_rows_after: guard rows behind A and behind B, of k // 2 bytes each.
        packed_byte: their content (0x77: two elements of 6).
        scale_tiles_after: 512-byte tiles behind the reordered scale factors (4 tiles are 256 elements of k).
        scale_byte: their content (0x7F: NaN).
    """

    poison: int = fp16.POISON
    c_rows_before: int = 8
    c_rows_after: int = 128
    packed_rows_after: int = 128
    packed_byte: int = 0x77
    scale_tiles_after: int = 4
    scale_byte: int = 0x7F


@dataclass(frozen=True, slots=True, eq=False)
class GroupInput:
    """The inputs of one group (l = 1).

    Attributes:
        group: its sizes.
        a: ``[m, k // 2]`` packed E2M1.
        b: ``[n, k // 2]`` packed E2M1.
        sfa: ``[m, ceil(k / 16)]`` plain E4M3 bytes.
        sfb: ``[n, ceil(k / 16)]``.
        sfa_reordered: ``[32, 4, rest_m, 4, rest_k, 1]``, padding included, over flat memory.
        sfb_reordered: ``[32, 4, rest_n, 4, rest_k, 1]``.
        guard: what lies around them.
    """

    group: Group
    a: Bytes
    b: Bytes
    sfa: Bytes
    sfb: Bytes
    sfa_reordered: Bytes
    sfb_reordered: Bytes
    guard: Guard

    @property
    def c_shape(self) -> tuple[int, int]:
        """Rows and columns of the buffer of C with its guard rows."""
        return self.guard.c_rows_before + self.group.m + self.guard.c_rows_after, self.group.n

    def c_buffer(self) -> HalfBits:
        """Return ``[c_rows_before + m + c_rows_after, n]`` uint16, all poison; the kernel's C is the m middle rows."""
        return np.full(self.c_shape, self.guard.poison, dtype=np.uint16)

    def split_c(self, buffer: HalfBits) -> tuple[HalfBits, HalfBits, HalfBits]:
        """Split a buffer shaped like :meth:`c_buffer` into ``(before, c, after)``, as views."""
        top = self.guard.c_rows_before
        return buffer[:top], buffer[top : top + self.group.m], buffer[top + self.group.m :]

    def sfa_flat(self, *, guarded: bool = False) -> Bytes:
        """Return SFA as the flat bytes behind a kernel's pointer, optionally with the guard tiles that follow."""
        return self._flat(self.sfa_reordered, guarded=guarded)

    def sfb_flat(self, *, guarded: bool = False) -> Bytes:
        """Return SFB as flat bytes, see :meth:`sfa_flat`."""
        return self._flat(self.sfb_reordered, guarded=guarded)

    def _flat(self, reordered: Bytes, *, guarded: bool) -> Bytes:
        flat = scale_layout.flatten(reordered)
        if not guarded:
            return flat
        tail = np.full(self.guard.scale_tiles_after * scale_layout.TILE_BYTES, self.guard.scale_byte, dtype=np.uint8)
        return np.concatenate([flat, tail])

    def exact(self) -> Exact:
        """Return the exact result of this group."""
        return exact_product(a=self.a, b=self.b, sfa=self.sfa, sfb=self.sfb)

    def digest(self) -> str:
        """Return the SHA-256 of sizes and every input byte, padding included."""
        digest = hashlib.sha256(str(self.group).encode())
        for array in (self.a, self.b, self.sfa, self.sfb, self.sfa_flat(), self.sfb_flat()):
            digest.update(repr(array.shape).encode())
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class ProblemInput:
    """The inputs of a problem: one :class:`GroupInput` a group, in the problem's order."""

    problem: Problem
    family: str
    groups: tuple[GroupInput, ...]

    def digest(self) -> str:
        """Return the SHA-256 of all groups."""
        return hashlib.sha256("".join(group.digest() for group in self.groups).encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Operands of a group, before the layouts are built; ``padding_*`` as ``scale_layout.reorder`` takes it."""

    a: Bytes
    b: Bytes
    sfa: Bytes
    sfb: Bytes
    padding_a: int | Bytes = 0
    padding_b: int | Bytes = 0


def assemble(group: Group, operands: Operands, guard: Guard) -> GroupInput:
    """Make a group's inputs of its operands: check the shapes and reorder the scale factors.

    Raises:
        NumericsError: l is not 1, k is odd, or an array does not fit the group.
    """
    if group.l != 1:
        raise NumericsError(f"group {group} has l = {group.l}; inputs are made for l = 1, the contract's only value")
    if group.k % 2:
        raise NumericsError(f"group {group} has odd k; two elements share a byte")
    blocks = ceil_div(group.k, BLOCK)
    a, b = operands.a, operands.b
    require_bytes("a", a, shape=(group.m, group.k // 2))
    require_bytes("b", b, shape=(group.n, group.k // 2))
    sfa = require_bytes("sfa", operands.sfa, shape=(group.m, blocks))
    sfb = require_bytes("sfb", operands.sfb, shape=(group.n, blocks))
    reordered_a = scale_layout.reorder(sfa, padding=operands.padding_a)
    return GroupInput(group, a, b, sfa, sfb, reordered_a, scale_layout.reorder(sfb, padding=operands.padding_b), guard)
