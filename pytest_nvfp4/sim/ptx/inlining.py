"""Inlining of functions with a body: the body replaces the call, in a new scope.

A call passes ``.param`` variables of the caller, and the function accesses them by the names of its own parameters, so
a parameter of the function *is* the caller's variable (PTX ISA, "call": arguments are passed by value; compilers do not
write to the parameters that a function receives). ``ret`` goes to the end of the body. Each copy has its own registers,
labels and local variables. Unsupported by name: recursion, parameters in registers, a ``.shared`` or ``.global``
variable of a function, and bodies whose expansion exceeds the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx import declarations
from pytest_nvfp4.sim.ptx.lexer import Kind, PtxError, Token
from pytest_nvfp4.sim.ptx.operands import split
from pytest_nvfp4.sim.ptx.syntax import Parameter

_MOST = 200_000
"""Limit of the tokens of a kernel after inlining."""
_CALL = re.compile(
    r"(?:@\s*(?P<not>!?)\s*(?P<guard>[A-Za-z_$%][\w$]*)\s+)?call(?:\s*\.\s*uni)?(?P<rest>[\s(].*)\Z", re.DOTALL
)
_RET = re.compile(r"(?P<guard>@\s*!?\s*[A-Za-z_$%][\w$]*\s+)?ret(?P<uni>\s*\.\s*uni)?\s*\Z")
_END = "$$return"


@dataclass(frozen=True, slots=True)
class Function:
    """A ``.func`` with a body: its header as ``parser`` matched it, and its tokens."""

    name: str
    token: Token
    header: re.Match[str]
    body: tuple[Token, ...]

    def parameters(self) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
        """Return the function's results and parameters. Raises PtxError, unsupported if they are registers."""
        lists = [
            (self.header[part] or "").strip().removeprefix("(").removesuffix(")") for part in ("result", "parameters")
        ]
        if any(".reg" in text for text in lists):
            raise self.token.error(f"{self.name} has parameters in registers, which are not modelled", unsupported=True)
        results, parameters = (declarations.parameters(text, self.token) for text in lists)
        return results, parameters


@dataclass(frozen=True, slots=True)
class Call:
    """One inlined call: the names that it passes."""

    function: Function
    results: tuple[str, ...]
    arguments: tuple[str, ...]
    token: Token

    def bindings(self) -> list[tuple[Parameter, str]]:
        """Return the caller's name of each parameter. Raises PtxError if their numbers differ."""
        found: list[tuple[Parameter, str]] = []
        for what, formal, actual in zip(
            ("result(s)", "argument(s)"), self.function.parameters(), (self.results, self.arguments), strict=True
        ):
            if len(formal) != len(actual):
                raise self.token.error(f"{self.function.name} has {len(formal)} {what}, and this call {len(actual)}")
            found.extend(zip(formal, actual, strict=True))
        return found


def expand(body: list[Token], functions: Mapping[str, Function], name: str) -> tuple[list[Token], list[Call]]:
    """Return the tokens of a kernel's body with those of its callees, between ``ENTER`` and ``LEAVE``.

    Raises:
        PtxError: a recursion, or too many tokens (both unsupported).
    """
    if not functions:
        return body, []
    calls: list[Call] = []
    found: list[Token] = []
    for token in _expanded(body, functions, (name,), calls):
        found.append(token)
        if len(found) > _MOST:
            raise PtxError(
                f"{name} has more than {_MOST} tokens after inlining",
                line=body[0].line,
                unsupported=True,
            )
    return found, calls


def _expanded(
    body: list[Token] | tuple[Token, ...], functions: Mapping[str, Function], chain: tuple[str, ...], calls: list[Call]
) -> Iterator[Token]:
    inside = len(chain) > 1
    for token in body:
        if token.kind is not Kind.STATEMENT:
            yield token
            continue
        end = _RET.match(token.text) if inside else None
        if end is not None:
            uniform = ".uni" if end["uni"] else ""
            yield Token(Kind.STATEMENT, f"{end['guard'] or ''}bra{uniform} {_END}", token.line, token.text)
            continue
        match = _CALL.match(token.text)
        called = _called(token, match["rest"], functions) if match is not None else None
        if match is None or called is None:
            yield token
            continue
        callee = called.function.name
        if callee in chain:
            around = " -> ".join([*chain[chain.index(callee) :], callee])
            raise token.error(
                f"{callee} calls itself ({around}), and recursion is not modelled: calls are inlined", unsupported=True
            )
        number = len(calls)
        calls.append(called)
        after = f"$$after{number}"
        if match["guard"] is not None:
            inverse = "" if match["not"] else "!"
            yield Token(Kind.STATEMENT, f"@{inverse}{match['guard']} bra {after}", token.line, token.text)
        yield Token(Kind.ENTER, str(number), token.line)
        yield from _expanded(called.function.body, functions, (*chain, callee), calls)
        yield Token(Kind.LABEL, _END, token.line)
        yield Token(Kind.LEAVE, "", token.line)
        yield Token(Kind.LABEL, after, token.line)


def _called(token: Token, text: str, functions: Mapping[str, Function]) -> Call | None:
    """Return the call of a function with a body, if the statement is one."""
    pieces = [piece.strip() for piece in split(text.strip()) or ()]
    results: tuple[str, ...] = ()
    if pieces and pieces[0].startswith("("):
        results = _names(pieces.pop(0))
    if not pieces or pieces[0] not in functions:
        return None
    function = functions[pieces[0]]
    if len(pieces) > 2 or (len(pieces) == 2 and not pieces[1].startswith("(")):
        raise token.error(f"expected one list of arguments after {function.name}")
    return Call(function, results, _names(pieces[1]) if len(pieces) == 2 else (), token)


def _names(text: str) -> tuple[str, ...]:
    inner = text[1:-1].strip()
    return tuple(part.strip() for part in inner.split(",")) if inner else ()


def inlined(location: Location | None, at: Location | None) -> Location | None:
    """Return the location of a function's line that was called from a line of the caller."""
    if location is None or at is None:
        return location or at
    outer = at if location.inlined_at is None else inlined(location.inlined_at, at)
    return replace(location, inlined_at=outer)
