"""Parser of operands, whose names are looked up in the enclosing scopes.

Each scope caches the operands that it has resolved by their text: compiled PTX repeats them.

Source: PTX ISA, "Instruction Operands" and "Special Registers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_nvfp4.sim.ptx.literals import INTEGER, immediate, integer
from pytest_nvfp4.sim.ptx.syntax import (
    Address,
    Immediate,
    Label,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)


class OperandError(Exception):
    """An invalid operand. ``unsupported`` if it is valid PTX that is not modelled."""

    def __init__(self, message: str, *, unsupported: bool = False) -> None:
        super().__init__(message)
        self.unsupported = unsupported


class Refused:
    """A declared name that must not be used, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


Named = Register | Vector | Symbol | Refused
"""What a name can stand for, except labels; a vector is a ``.v4`` register."""

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SPECIAL = frozenset(
    [f"{axis}{part}" for axis in _AXES for part in ("", ".x", ".y", ".z", ".w")]
    + [f"lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
    + [f"pm{number}{wide}" for number in range(8) for wide in ("", "_64")]
    + [f"envreg{number}" for number in range(32)]
    + ["laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "clock", "clock_hi", "clock64"]
    + ["is_explicit_cluster", "cluster_ctarank", "cluster_nctarank"]
    + ["globaltimer", "globaltimer_lo", "globaltimer_hi"]
    + ["reserved_smem_offset_begin", "reserved_smem_offset_end", "reserved_smem_offset_cap"]
    + ["reserved_smem_offset_0", "reserved_smem_offset_1"]
    + ["total_smem_size", "aggr_smem_size", "dynamic_smem_size", "current_graph_exec"]
)

_SINK = Sink()
_PIECE = re.compile(r"\s*(\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|[^,{}\[\]()]+?)\s*(?:,|\Z)")
_NAME = re.compile(r"[A-Za-z_$%][\w$%]*(?:\.[xyzwrgba])?\Z")
_OFFSET_NAME = re.compile(r"([A-Za-z_$%][\w$]*)\s*\+\s*(.+)\Z", re.DOTALL)
_INDEXED = re.compile(r"[A-Za-z_$%][\w$]*\s*\[[^\]]*\]\Z")
_BASE = re.compile(
    rf"\s*([A-Za-z_$%][\w$]*(?:\.[xyzwrgba])?|{INTEGER})\s*(?:\+\s*([^,{{}}]+?)\s*)?(?:,(.*))?\Z", re.DOTALL
)
_BRACES = re.compile(r"\s*\{([^{}]*)\}\s*(?:,|\Z)")


def split(text: str) -> list[str] | None:
    """Split the operands of an instruction at the commas outside brackets; None if the brackets do not match."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [piece.strip() for piece in text.split(",")]
    pieces: list[str] = []
    position = 0
    match = _PIECE.match
    while position < len(text):
        found = match(text, position)
        if found is None:
            return _split_nested(text)
        pieces.append(found[1])
        position = found.end()
    if text.rstrip().endswith(","):
        pieces.append("")
    return pieces


def _split_nested(text: str) -> list[str] | None:
    """Split text with nested brackets: ``(1+2)*4``, ``[a, {b, c}]`` after a parenthesis."""
    pieces: list[str] = []
    depth = 0
    start = 0
    for position, letter in enumerate(text):
        if letter in "{[(":
            depth += 1
        elif letter in "}])":
            depth -= 1
            if depth < 0:
                return None
        elif letter == "," and not depth:
            pieces.append(text[start:position].strip())
            start = position + 1
    pieces.append(text[start:].strip())
    return None if depth else pieces


class Scope:
    """The names of one ``{ }``: registers, variables and labels, and those of the enclosing scopes."""

    __slots__ = ("_memo", "labels", "names", "parent", "targets")

    def __init__(self, parent: Scope | None) -> None:
        self.parent = parent
        self.names: dict[str, Named] = {}
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}
        """Lists of ``.branchtargets`` by name."""
        self._memo: dict[str, Operand] = {}

    def declare(self, name: str, value: Named) -> None:
        """Add a name; one that hides a name of an outer scope makes what was resolved here stale."""
        self.names[name] = value
        self.stale()

    def stale(self) -> None:
        """Clear the cache of operands after names were added."""
        if self._memo:
            self._memo.clear()

    def find(self, name: str) -> Named | None:
        """Return what a name stands for, here or in the enclosing scopes."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def _enclosing(self) -> Iterator[Scope]:
        """Yield this scope and the enclosing ones, from the inside out."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def label(self, name: str) -> Label | None:
        """Return the label of a name, here or in the enclosing scopes."""
        return next((Label(name, scope.labels[name]) for scope in self._enclosing() if name in scope.labels), None)

    def operand(self, text: str) -> Operand:
        """Parse an operand; the text has no surrounding space.

        Raises:
            OperandError: it is none, or names something that is not declared.
        """
        found = self._memo.get(text)
        if found is None:
            found = self._memo[text] = self._operand(text)
        return found

    def _operand(self, text: str) -> Operand:
        if not text:
            raise OperandError("an empty operand between two commas")
        start = text[0]
        if start == "[":
            if text[-1] != "]":
                raise OperandError(f"{text!r}: expected ']'")
            return self._address(text)
        if start == "{" or (start == "(" and text[-1] == ")" and integer(text) is None):
            if text[-1] != ("}" if start == "{" else ")"):
                raise OperandError(f"{text!r}: expected a closing bracket")
            inner = text[1:-1].strip()
            if not inner:
                return Vector(())
            return Vector(tuple(self._scalar(piece.strip()) for piece in inner.split(",")))
        if "|" in text and not (start.isdigit() or start in "-~("):
            first, _, second = text.partition("|")
            return Pair(self._result(first.strip(), text), self._result(second.strip(), text))
        return self._scalar(text)

    def _scalar(self, text: str) -> Operand:
        """Parse a name, a literal, a special register, ``_``, ``!%p`` or ``name+4``."""
        known = self._memo.get(text)
        if known is not None:
            return known
        if text == "_":
            return _SINK
        if _NAME.match(text):
            return self._named(text)
        if text[:1] == "!":
            register = self.find(text[1:].strip())
            if not isinstance(register, Register) or register.bits != 1:
                raise OperandError(f"{text!r}: expected a predicate register after '!'")
            return Register(register.name, register.slot, register.bits, True)
        literal = immediate(text)
        if literal is not None:
            return literal
        found = _OFFSET_NAME.match(text)
        if found is not None:
            base = self._named(found[1])
            offset = integer(found[2].strip())
            if isinstance(base, Symbol) and offset is not None:
                return Symbol(base.name, base.offset + offset)
        if _INDEXED.match(text):
            raise OperandError(f"{text!r}: an element by its index", unsupported=True)
        raise OperandError(f"{text!r}: expected a register, a literal, a name or an address in brackets")

    def _named(self, name: str) -> Operand:
        found = self.find(name)
        if found is not None:
            if isinstance(found, Refused):
                raise OperandError(found.reason, unsupported=True)
            return found
        label = self.label(name)
        if label is not None:
            return label
        targets = self._targets(name)
        if targets is not None:
            return targets
        if name[0] == "%":
            if name[1:] in _SPECIAL:
                return Special(name[1:])
            raise OperandError(f"{name} is neither a register declared before this line nor a special register")
        if name == "WARP_SZ":
            return Immediate(32)
        raise OperandError(f"{name} is not a register, variable, function or label of this scope or an enclosing one")

    def _targets(self, name: str) -> Vector | None:
        names = next((scope.targets[name] for scope in self._enclosing() if name in scope.targets), None)
        if names is None:
            return None
        labels: list[Operand] = []
        for target in names:
            label = self.label(target)
            if label is None:
                raise OperandError(f"{target}, a target of {name}, is not a label of this scope")
            labels.append(label)
        return Vector(tuple(labels))

    def _result(self, text: str, whole: str) -> Register | Sink:
        if text == "_":
            return _SINK
        found = self.find(text)
        if isinstance(found, Register):
            return found
        raise OperandError(f"{whole!r}: expected two results a|b, each a register or _; {text!r} is not declared")

    def _address(self, text: str) -> Operand:
        found = _BASE.match(text[1:-1])
        if found is None:
            raise OperandError(f"{text!r}: expected [register+offset], [name+offset], [number] or [map, {{...}}]")
        base_text, offset_text, rest = found.groups()
        base: Operand
        if base_text[0].isdigit() or base_text[0] == "-":
            value = integer(base_text)
            if value is None:
                raise OperandError(f"{text!r}: {base_text!r} is not an address")
            base = Immediate(value)
        else:
            base = self._named(base_text)
        if not isinstance(base, (Register, Symbol, Immediate)) or (
            isinstance(base, Register) and base.bits not in (32, 64)
        ):
            raise OperandError(
                f"{text!r}: {base_text} is not an address: expected a register of 32 or 64 bits, a name or a number",
                unsupported=isinstance(base, Register) and base.bits == 16,
            )
        offset = integer(offset_text) if offset_text is not None else 0
        if offset is None:
            raise OperandError(f"{text!r}: expected an integer offset, not {offset_text!r}")
        if rest is None:
            return Address(base, offset)
        vectors: list[Vector] = []
        position = 0
        while position < len(rest):
            braces = _BRACES.match(rest, position)
            if braces is None:
                raise OperandError(f"{text!r}: expected coordinates in braces after the tensor map")
            vectors.append(Vector(tuple(self._scalar(piece.strip()) for piece in braces[1].split(","))))
            position = braces.end()
        return TensorAddress(base, offset, tuple(vectors))
