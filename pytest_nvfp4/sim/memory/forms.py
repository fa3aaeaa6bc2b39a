"""The modifiers that loads, stores and atomics share (PTX ISA, "Data Movement and Conversion Instructions: ld, st").

Memory order, scope, cache operators, eviction priorities, prefetch sizes and cache hints change nothing here: the
simulator runs one instruction at a time on one copy of memory, which is sequentially consistent. They are taken by
name, each kind at most once, and everything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand

__all__ = ["EVICTIONS", "SCOPES", "SPACES", "TYPES", "AccessForm"]

SCOPES = frozenset({"cta", "cluster", "gpu", "sys"})
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
"""State space of the opcode, and where the access goes."""
TYPES = {f"{kind}{bits}": (kind, bits) for kind in "bus" for bits in (8, 16, 32, 64)} | {
    "f32": ("f", 32),
    "f64": ("f", 64),
    "b128": ("b", 128),
}
EVICTIONS = frozenset(
    {f"L1::{what}" for what in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")}
    | {f"L2::{what}" for what in ("evict_normal", "evict_first", "evict_last")}
)
_ORDERS = frozenset({"weak", "volatile", "relaxed", "acquire", "release"})
_PREFETCHES = frozenset({"L2::64B", "L2::128B", "L2::256B"})
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


class AccessForm:
    """The modifiers of a load or store, taken apart.

    Attributes:
        space: ``global``, ``shared``, ``cluster``, ``local``, ``param`` or ``generic``.
        kind, bits: ``b``, ``u``, ``s`` or ``f``, and the width of an element.
        count: Elements.
        order: ``weak``, ``volatile``, ``relaxed``, ``acquire``, ``release``.
        named: The state space as the opcode has it.
        hinted: There is a cache-policy operand.
        nc: The non-coherent path.

    Args:
        instruction: Its parts after the first are read.
        orders: Memory orders the opcode may have.
        caches: Cache operators it may have.
        nc: Whether ``.nc`` is one of its modifiers.

    Raises:
        Unsupported: a modifier that is unknown, given twice, or not allowed with the others.
    """

    def __init__(
        self, instruction: Instruction, *, orders: Iterable[str], caches: Iterable[str] = (), nc: bool = False
    ) -> None:
        self.opcode = instruction.opcode
        self.named = ""
        self.order = "weak"
        self.count = 1
        self.hinted = self.nc = False
        *modifiers, typed = instruction.parts[1:] or ("",)
        if typed not in TYPES:
            raise Unsupported(f"{self.opcode}: type .{typed} is not modelled")
        self.kind, self.bits = TYPES[typed]
        seen = self._take(modifiers, orders=frozenset(orders), caches=frozenset(caches), nc=nc)
        self.space = SPACES.get(self.named, "generic")
        self._check_together(seen, modifiers)
        self._check_size()

    def _take(self, modifiers: list[str], *, orders: frozenset[str], caches: frozenset[str], nc: bool) -> set[str]:
        """Note what the modifiers say; which kinds of them there are."""
        seen: set[str] = set()
        for part in modifiers:
            if part in _ORDERS and part in orders:
                slot = "order"
                self.order = part
            elif part in SCOPES:
                slot = "scope"
            elif part in SPACES:
                slot = "space"
                self.named = part
            elif part in _VECTORS:
                slot = "vector"
                self.count = _VECTORS[part]
            elif part in caches:
                slot = "cache operator"
            elif part in EVICTIONS:
                slot = part[:2] + " eviction"
            elif part in _PREFETCHES:
                slot = "prefetch size"
            elif part == "L2::cache_hint":
                slot = "cache hint"
                self.hinted = True
            elif part == "nc" and nc:
                slot = "nc"
                self.nc = True
            elif part == "mmio":
                slot = "mmio"
            else:
                raise Unsupported(f"{self.opcode}: .{part} is not modelled")
            if slot in seen:
                raise Unsupported(f"{self.opcode}: a second {slot} (.{part})")
            seen.add(slot)
        return seen

    def _check_together(self, seen: set[str], modifiers: list[str]) -> None:
        scoped = self.order in ("relaxed", "acquire", "release")
        if scoped != ("scope" in seen):
            raise Unsupported(f"{self.opcode}: .{self.order} with{'out' if scoped else ''} a scope")
        device = self.space in ("global", "generic")
        if "mmio" in seen and (self.order != "relaxed" or "sys" not in modifiers or not device):
            raise Unsupported(f"{self.opcode}: .mmio is .relaxed.sys of global memory")
        if self.nc and self.space != "global":
            raise Unsupported(f"{self.opcode}: .nc without .global")
        if "order" in seen and self.order != "weak" and self.space in ("param", "local"):
            raise Unsupported(f"{self.opcode}: .{self.order} of .{self.named}")

    def _check_size(self) -> None:
        size = self.bits * self.count
        if size > 256 or (size > 128 and (self.bits < 32 or self.space not in ("global", "generic"))):
            raise Unsupported(f"{self.opcode}: {self.count} x {self.bits} bits of .{self.named or 'generic'}")
        if self.bits == 128 and self.count > 1:
            raise Unsupported(f"{self.opcode}: a vector of .b128")

    def operands(self, instruction: Instruction, plain: int) -> tuple[Operand, ...]:
        """The operands: ``plain`` of them, and the cache policy if there is a hint. Raises Unsupported."""
        wanted = plain + self.hinted
        if len(instruction.operands) != wanted:
            raise Unsupported(f"{self.opcode} with {len(instruction.operands)} operands, expected {wanted}")
        return instruction.operands
