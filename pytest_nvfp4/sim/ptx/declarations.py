"""Declarations: types, registers, variables with their initial bytes, and parameters.

Source: PTX ISA, "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pytest_nvfp4.sim.ptx.lexer import Token
from pytest_nvfp4.sim.ptx.literals import double_to_single, immediate
from pytest_nvfp4.sim.ptx.syntax import Parameter, Variable

TYPE_BITS = {
    "pred": 1,
    "b8": 8, "u8": 8, "s8": 8,
    "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "tf32": 32,
    "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64,
    "b128": 128,
}  # fmt: skip
"""Width of a fundamental or packed type, in bits."""

_FLOATS = {"f16", "bf16", "f32", "f64"}
_VECTOR = {"v2": 2, "v4": 4}
_OPAQUE = {"texref", "samplerref", "surfref"}
_HEAD = re.compile(r"\s*\.([a-z]\w*)(?:\s+(\d+)(?=\s))?")
_NAME = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*")
_RANGE = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:<\s*(\d+)\s*>)?\Z")
_DIMENSION = re.compile(r"\s*\[\s*([^\]]*?)\s*\]")
_Address = tuple[int, str, int]
_ADDRESS = re.compile(r"(?:generic\s*\(\s*([A-Za-z_$%][\w$]*)\s*\)|([A-Za-z_$%][\w$]*))(?:\s*([+-])\s*(\d{1,18}))?\s*")
_INITIAL = re.compile(r"\s*([{},]|[^\s{},][^{},]*)")


class RegisterNames(NamedTuple):
    """The registers of one ``.reg``: names, width, and vector length of each (1 for a scalar)."""

    names: list[str]
    bits: int
    length: int


def registers(token: Token) -> RegisterNames:
    """Parse ``.reg .b32 %r<12>, a;`` or ``.reg .v4 .b32 v;``.

    Raises:
        PtxError: an unknown type, or something that is no name.
    """
    heads, rest = _heads(token.text)
    length = 1
    bits = 0
    for word, number in heads[1:]:
        if word in _VECTOR and number is None:
            length = _VECTOR[word]
        elif word in TYPE_BITS and number is None and not bits:
            bits = TYPE_BITS[word]
        else:
            raise token.error(f".{word} in .reg: expected a type such as .b32, or .v2/.v4 before it")
    if not bits or (bits == 1 and length > 1):
        raise token.error("expected a type such as .b32 in .reg; a vector is not of .pred")
    names: list[str] = []
    for piece in rest.split(","):
        found = _RANGE.match(piece.strip())
        if found is None:
            raise token.error(f"{piece.strip()!r}: expected a register name or a range such as %r<12>")
        if found[2] is None:
            names.append(found[1])
        else:
            prefix = found[1]
            names.extend(f"{prefix}{number}" for number in range(int(found[2])))
    return RegisterNames(names, bits, length)


@dataclass(frozen=True, slots=True)
class _Common:
    """Attributes that the variables of one declaration share.

    Attributes:
        space, kind: State space and type.
        align: Its ``.align``; 0 without one.
        length: Elements of the vector, or 1.
        external: It is ``.extern``.
        refused: Why it cannot be modelled; empty if it can.
    """

    space: str
    kind: str
    align: int
    length: int
    external: bool
    refused: str

    @property
    def element(self) -> int:
        """Size in bytes of one variable that is not an array."""
        return TYPE_BITS[self.kind] // 8 * self.length


def variables(token: Token) -> tuple[list[Variable], dict[str, str]]:
    """Parse the variables of one declaration; return also those that cannot be modelled, with the reason.

    Raises:
        PtxError: it is not a declaration of a variable.
    """
    common, rest = _common(token)
    found: list[Variable] = []
    reasons: dict[str, str] = {}
    for name, extents, initial in _declarators(token, rest):
        variable, reason = _variable(token, common, name, extents, initial)
        found.append(variable)
        if reason:
            reasons[name] = f"{name} is {reason}, which is not modelled"
    return found, reasons


def _common(token: Token) -> tuple[_Common, str]:
    """Parse what precedes the names of a declaration; return it and the rest."""
    heads, rest = _heads(token.text)
    space = ""
    kind = ""
    align = 0
    length = 1
    external = False
    refused = ""
    for word, number in heads:
        if word in ("extern", "visible", "weak", "common"):
            external = external or word == "extern"
        elif word in ("shared", "global", "const", "local", "param") and not space:
            space = word
        elif word == "align" and number is not None:
            align = int(number)
        elif word in _VECTOR:
            length = _VECTOR[word]
        elif word in TYPE_BITS and not kind:
            kind = word
        elif word in _OPAQUE:
            kind, refused = "u64", f"a .{word} variable"
        elif word == "tex":
            space, refused = "global", "a variable of the .tex space"
        elif word == "attribute":
            refused = "a variable with .attribute"
            rest = re.sub(r"\A\s*\([^)]*\)", "", rest)
            more, rest = _heads(rest)
            heads.extend(more)  # the loop continues after the attribute
        else:
            raise token.error(f".{word}: expected a state space, .align, a vector length or a type")
    if not space or not kind or kind == "pred":
        raise token.error("expected a declaration with a state space (.shared, .global, .const, .local) and a type")
    if align & (align - 1):
        raise token.error(f".align {align}: expected a power of two")
    return _Common(space, kind, align, length, external, refused), rest


def _variable(
    token: Token, common: _Common, name: str, extents: list[int | None], initial: str | None
) -> tuple[Variable, str]:
    """Return one variable and why it cannot be modelled (empty if it can)."""
    initialisable = common.space in ("global", "const")
    if initial is not None and not initialisable:
        raise token.error(f"{name} is in .{common.space} and has an initial value: only .global and .const may")
    data, reason = b"", common.refused
    addresses: list[_Address] = []
    if initial is not None and not reason:
        try:
            extents, data, addresses = _initial(token, (name, common.kind, common.length), initial, extents)
        except _UnmodelledError as error:
            reason = f"initialised with {error}"
    if any(not size for size in extents) and not common.external:
        raise token.error(f"{name} has no size: expected one, or .extern, or an initial value")
    size = common.element
    for extent in extents:
        size *= 0 if extent is None else extent
    if initialisable and not common.external:
        data = data.ljust(size, b"\0")
    align = common.align or common.element
    return Variable(name, common.space, size, align, data, common.external, tuple(addresses)), reason


def parameters(text: str, token: Token) -> tuple[Parameter, ...]:
    """Parse the parameters of an ``.entry`` from the text between its parentheses.

    Raises:
        PtxError: a parameter that is not ``.param [.align N] .type [.ptr ...] name[size]``.
    """
    found: list[Parameter] = []
    offset = 0
    for piece in text.split(","):
        if not piece.strip():
            if text.strip():
                raise token.error("an empty parameter between two commas")
            continue
        heads, rest = _heads(piece)
        if not heads or heads[0][0] != "param":
            raise token.error(f"{piece.strip()!r}: expected .param")
        kind, align = _parameter_type(token, heads[1:])
        if not kind:
            raise token.error(f"{piece.strip()!r}: expected a type")
        declared = list(_declarators(token, rest))
        if len(declared) != 1 or declared[0][2] is not None:
            raise token.error(f"{piece.strip()!r}: expected one parameter name")
        name, dimensions, _ = declared[0]
        size = TYPE_BITS[kind] // 8
        align = align or size
        for extent in dimensions:
            if extent is None:
                raise token.error(f"parameter {name} has no size")
            size *= extent
        offset = -(-offset // align) * align
        found.append(Parameter(name, size, align, offset))
        offset += size
    return tuple(found)


def _parameter_type(token: Token, heads: list[tuple[str, str | None]]) -> tuple[str, int]:
    """Return the type of a parameter (empty if it has none) and its ``.align`` (0 without one)."""
    kind = ""
    align = 0
    pointer = False
    for word, number in heads:
        if word == "align" and number is not None:
            # After .ptr it is the alignment of what the parameter points to.
            align = align if pointer else int(number)
        elif word == "ptr":
            pointer = True
        elif pointer and word in ("global", "shared", "const", "local"):
            continue
        elif word in TYPE_BITS and not kind:
            kind = word
        elif word in _OPAQUE and not kind:
            kind = "u64"
        else:
            raise token.error(f".{word} of a parameter: expected .align, a type or .ptr")
    return kind, align


class _UnmodelledError(Exception):
    pass


def _heads(text: str, position: int = 0) -> tuple[list[tuple[str, str | None]], str]:
    """Return the leading ``.word`` and ``.word N``, and the rest."""
    heads: list[tuple[str, str | None]] = []
    while True:
        found = _HEAD.match(text, position)
        if found is None:
            return heads, text[position:]
        heads.append((found[1], found[2]))
        position = found.end()


def _declarators(token: Token, text: str) -> Iterator[tuple[str, list[int | None], str | None]]:
    """Parse ``name[2][] = {...}, other``: names, extents and initial values."""
    position = 0
    while True:
        found = _NAME.match(text, position)
        if found is None:
            raise token.error(f"{text[position:].strip()!r}: expected a name")
        name = found[1]
        position = found.end()
        extents: list[int | None] = []
        while (bracket := _DIMENSION.match(text, position)) is not None:
            literal = immediate(bracket[1]) if bracket[1] else None
            if bracket[1] and (literal is None or literal.bits or literal.value < 0):
                raise token.error(f"{name}[{bracket[1]}]: expected a size")
            extents.append(None if literal is None else literal.value)
            position = bracket.end()
        rest = text[position:].lstrip()
        initial: str | None = None
        if rest.startswith("="):
            initial, rest = _value(rest[1:])
        yield name, extents, initial
        rest = rest.strip()
        if not rest:
            return
        if rest[0] != ",":
            raise token.error(f"{rest!r} after {name}: expected ',' or ';'")
        text, position = rest, 1


def _value(text: str) -> tuple[str, str]:
    """Return an initial value, up to the next comma outside braces and parentheses, and the rest."""
    depth = 0
    for position, letter in enumerate(text):
        if letter in "{(":
            depth += 1
        elif letter in "})":
            depth -= 1
        elif letter == "," and not depth:
            return text[:position], text[position:]
    return text, ""


def _initial(
    token: Token, variable: tuple[str, str, int], text: str, extents: list[int | None]
) -> tuple[list[int | None], bytes, list[_Address]]:
    """Return the completed extents, the bytes and the addresses of an initial value.

    ``variable`` is name, type, vector length.
    """
    name, kind, length = variable
    pieces = [piece.strip() for piece in _INITIAL.findall(text)]
    pieces.reverse()
    try:
        tree = _tree(pieces)
    except IndexError:
        raise token.error(f"the initial value of {name} is not a list in braces") from None
    if pieces:
        raise token.error(f"{pieces[-1]!r} after the initial value of {name}")
    if extents and extents[0] is None:
        if not isinstance(tree, list):
            raise token.error(f"{name} has no size, and its initial value is not a list")
        extents = [len(tree), *extents[1:]]
    shape = [extent or 0 for extent in extents] + ([length] if length > 1 else [])
    addresses: list[_Address] = []
    return extents, _filled(token, name, tree, shape, kind, addresses, 0), addresses


def _tree(pieces: list[str]) -> object:
    """Parse the values in braces into nested lists."""
    piece = pieces.pop()
    if piece != "{":
        return piece
    items: list[object] = []
    while pieces[-1] != "}":
        items.append(_tree(pieces))
        if pieces[-1] == ",":
            pieces.pop()
            if pieces[-1] == "}":
                raise IndexError
    pieces.pop()
    return items


def _filled(
    token: Token, name: str, tree: object, shape: list[int], kind: str, addresses: list[_Address], at: int
) -> bytes:
    """Return the bytes of nested lists in an array; missing values are zero. Addresses of variables are appended."""
    size = TYPE_BITS[kind] // 8
    if not shape:
        if isinstance(tree, list):
            raise token.error(f"a list where {name} has one value")
        if (address := _ADDRESS.fullmatch(str(tree))) is not None and immediate(str(tree)) is None and size == 8:
            addresses.append((at, address[1] or address[2], int(address[4] or 0) * (-1 if address[3] == "-" else 1)))
            return bytes(8)
        return _packed(token, name, str(tree), kind)
    if not isinstance(tree, list):
        raise token.error(f"{tree!r} where {name} has a list of {shape[0]}")
    if len(tree) > shape[0]:
        raise token.error(f"{len(tree)} values for the {shape[0]} elements of {name}")
    for extent in shape:
        size *= extent
    step = size // shape[0] if shape[0] else 0
    filled = [
        _filled(token, name, item, shape[1:], kind, addresses, at + step * number) for number, item in enumerate(tree)
    ]
    return b"".join(filled).ljust(size, b"\0")


def _packed(token: Token, name: str, text: str, kind: str) -> bytes:
    """Return the bytes of one value."""
    bits = TYPE_BITS[kind]
    literal = immediate(text)
    if literal is None:
        if re.search(r"(?<![\w$])[A-Za-z_$%][\w$]*", text):
            raise _UnmodelledError(f"the address {text}")
        raise token.error(f"{text!r} in the initial value of {name}: expected a number")
    value = literal.value
    if kind in _FLOATS:
        if literal.bits == 0 or bits == 16:
            raise token.error(f"{text!r} in the initial value of {name}: expected a float of .f32 or .f64")
        if literal.bits != 32 and bits == 32:
            value = double_to_single(value)
        elif literal.bits == 32 and bits == 64:
            value = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", value))[0]))[0]
    elif literal.bits not in (0, bits):
        raise _UnmodelledError(f"the float {text} for .{kind}")
    return (value & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
