"""Modifiers that loads, stores and atomics share (PTX ISA, "Data Movement and Conversion Instructions: ld, st").

Memory order, scope, cache operators, eviction priorities, prefetch sizes and cache hints have no effect: the simulator
runs one instruction at a time on one copy of memory, which is sequentially consistent. Each group is accepted once, at
any place, and every other modifier is unsupported.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand

SCOPES = ("cta", "cluster", "gpu", "sys")
SPACES = {
    "global": "global",
    "const": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "cluster",
    "local": "local",
    "param": "param",
    "param::entry": "param",
    "param::func": "param",
}
"""State space of the opcode, and the memory that it accesses."""
TYPES = {f"{kind}{bits}": (kind, bits) for kind in "bus" for bits in (8, 16, 32, 64)} | {
    "f32": ("f", 32),
    "f64": ("f", 64),
    "b128": ("b", 128),
}
EVICTIONS = (
    tuple(f"L1::{what}" for what in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")),
    tuple(f"L2::{what}" for what in ("evict_normal", "evict_first", "evict_last")),
)
"""Eviction priorities of each cache level."""
PREFETCHES = ("L2::64B", "L2::128B", "L2::256B")
VECTORS = {"": 1, "v2": 2, "v4": 4, "v8": 8}
"""Elements of each vector modifier."""


class AccessForm:
    """The modifiers of a load or store.

    Attributes:
        space: ``global``, ``shared``, ``cluster``, ``local``, ``param`` or ``generic``.
        kind, bits: ``b``, ``u``, ``s`` or ``f``, and the width of an element.
        count: Elements.
        order: ``weak``, ``volatile``, ``relaxed``, ``acquire``, ``release``.
        named: State space as written in the opcode.
        hinted: Whether there is a cache-policy operand.
        nc: Whether the load takes the non-coherent path.

    Args:
        instruction: The load or store.
        orders: Memory orders that the opcode accepts.
        caches: Cache operators that it accepts.
        nc: Whether it accepts ``.nc``.

    Raises:
        Unsupported: A modifier that is unknown, given twice, or not allowed with the others.
    """

    def __init__(
        self, instruction: Instruction, *, orders: Iterable[str], caches: Iterable[str] = (), nc: bool = False
    ) -> None:
        read = OpcodeReader(instruction, ordered=False)
        self._read = read
        self.kind, self.bits = TYPES[read.one(*TYPES)]
        order = read.maybe(*orders)
        self.order = order or "weak"
        scope = read.maybe(*SCOPES)
        self.named = read.maybe(*SPACES)
        self.space = SPACES.get(self.named, "generic")
        self.count = VECTORS[read.maybe(*VECTORS)]
        for ignored in (caches, *EVICTIONS, PREFETCHES):
            read.maybe(*ignored)
        self.hinted = read.has("L2::cache_hint")
        self.nc = nc and read.has("nc")
        mmio = read.has("mmio")
        read.done()
        scoped = self.order in ("relaxed", "acquire", "release")
        if scoped != bool(scope):
            raise read.refuse(f".{self.order} with{'out' if scoped else ''} a scope")
        if mmio and (self.order != "relaxed" or scope != "sys" or self.space not in ("global", "generic")):
            raise read.refuse(".mmio is .relaxed.sys of global memory")
        if self.nc and self.space != "global":
            raise read.refuse(".nc without .global")
        if order and order != "weak" and self.space in ("param", "local"):
            raise read.refuse(f".{order} of .{self.named}")
        # 256-bit accesses (.v4.b64, .v8.b32) are for global memory only (PTX ISA, "ld", "st").
        size = self.bits * self.count
        if size > 256 or (size > 128 and (self.bits < 32 or self.space not in ("global", "generic"))):
            raise read.refuse(f"{self.count} x {self.bits} bits of .{self.named or 'generic'}")
        if self.bits == 128 and self.count > 1:
            raise read.refuse("a vector of .b128")

    def operands(self, plain: int) -> tuple[Operand, ...]:
        """Return the operands: ``plain`` of them, and the cache policy if there is a hint. Raises Unsupported."""
        return self._read.operands(plain + self.hinted)

    def check_items(self, operand: Operand) -> None:
        """Check the number of registers of the data operand. Raises Unsupported."""
        self._read.items(operand, self.count)
