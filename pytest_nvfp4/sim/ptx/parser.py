"""PTX text to a ``Module``.

Two passes over each kernel: the first numbers the instructions and finds the labels of every ``{ }``, the second reads
operands in the order of the text, so that a register is known from its declaration on. Inline assembly repeats the
names of its registers and labels: each ``{ }`` has its own.

What is valid PTX and not modelled (a call of a function with a body, a variable initialised with an address) is an
error of the kernel that uses it: reading that kernel from ``Module.kernels`` raises it, and other kernels are usable.

Source: PTX ISA, "Syntax", "Directives".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_nvfp4.sim.ptx import declarations
from pytest_nvfp4.sim.ptx.lexer import Kind, PtxError, Token, clean, tokens
from pytest_nvfp4.sim.ptx.literals import double_to_single, integer
from pytest_nvfp4.sim.ptx.locations import Locations
from pytest_nvfp4.sim.ptx.operands import OperandError, Refused, Scope, split
from pytest_nvfp4.sim.ptx.syntax import (
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Location,
    Module,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
)

__all__ = ["Kernels", "PtxError", "parse"]

_INSTRUCTION = re.compile(
    r"(?:@\s*(!?)\s*([A-Za-z_$%][\w$]*)\s+)?([a-z][a-z0-9_]*(?:\s*(?:\.|::)[A-Za-z0-9_]+)*)(?:\s+(.*))?\Z", re.DOTALL
)
_HEADER = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<kind>entry|func)\b\s*"
    r"(?:\.attribute\s*\([^)]*\)\s*)?(?P<result>\([^)]*\)\s*)?"
    r"(?P<name>[A-Za-z_$%][\w$]*)\s*(?:\((?P<parameters>[^)]*)\))?(?P<directives>.*)\Z",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r'\s*\.([a-z]\w*)\s*([^."]*(?:"[^"]*"[^."]*)*)')
_TRIPLE = re.compile(r"\s*(\w+)\s*(?:,\s*(\w+)\s*)?(?:,\s*(\w+)\s*)?\Z")
_PERFORMANCE = frozenset([
    "reqntid", "maxntid", "minnctapersm", "maxnctapersm", "maxnreg", "noreturn", "pragma", "explicitcluster",
    "reqnctapercluster", "maxclusterrank", "blocksareclusters", "abi_preserve", "abi_preserve_control",
])  # fmt: skip
_SPACES = frozenset(["shared", "local", "param", "global", "const", "extern", "visible", "weak", "common"])


class Kernels(dict[str, Kernel]):
    """Kernels by name. Those that use what is not modelled are in ``refused``; subscribing one raises its error."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, PtxError] = {}

    def __missing__(self, name: str) -> Kernel:
        error = self.refused.get(name)
        if error is not None:
            raise error
        raise KeyError(name)


def parse(text: str, *, source: str = "") -> Module:
    """A PTX module.

    Args:
        text: The PTX, of one ``.version``.
        source: A file name for messages.

    Raises:
        PtxError: the text is not PTX: the line, its text and what was expected.
    """
    try:
        return _ModuleParser(clean(text)).module()
    except PtxError as error:
        if source and not error.source:
            raise PtxError(
                error.message, line=error.line, text=error.text, source=source, unsupported=error.unsupported
            ) from None
        raise


class _ModuleParser:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._locations = Locations(text)
        self._kernels = Kernels()
        self._variables: list[Variable] = []
        self._externals: list[str] = []
        self._noreturn: set[str] = set()
        self._scope = Scope(None)
        self._version = ""
        self._target = ""

    def module(self) -> Module:
        """The whole text."""
        bodies: list[tuple[Token, re.Match[str], list[Token]]] = []
        for token in self._tokens:
            if token.kind is Kind.FUNCTION or token.kind is Kind.PROTOTYPE:
                self._function(token, bodies)
            elif token.kind is Kind.DIRECTIVE:
                self._directive(token)
            elif token.kind is Kind.LINE:
                self._line(token)
            elif token.kind in (Kind.SECTION, Kind.LOC, Kind.ASM, Kind.PLAIN_ASM):
                continue
            elif token.kind is Kind.END:
                break
            else:
                raise PtxError(
                    "expected a directive: instructions stand in the body of an .entry or .func",
                    line=token.line,
                    text=token.text,
                )
        if not self._version:
            raise PtxError("the text has no .version: expected a PTX module", line=1)
        for token, header, body in bodies:
            name = header["name"]
            try:
                self._kernels[name] = _KernelParser(
                    token,
                    header,
                    body,
                    outer=self._scope,
                    locations=self._locations,
                    noreturn=frozenset(self._noreturn),
                ).kernel()
            except PtxError as error:
                if not error.unsupported:
                    raise
                self._kernels.refused[name] = error
        return Module(self._version, self._target, self._kernels, tuple(self._variables), tuple(self._externals))

    def _line(self, token: Token) -> None:
        word, rest = (*token.text.split(None, 1), "")[:2]
        rest = rest.strip()
        if word == ".version":
            if not re.fullmatch(r"\d+\.\d+", rest):
                raise PtxError(f"version {rest!r}: expected one such as 8.7", line=token.line, text=token.text)
            self._version = rest
        elif word == ".target":
            self._target = rest.split(",")[0].strip()
        elif word == ".address_size" and rest != "64":
            raise PtxError(
                f"addresses of {rest} bits: expected 64", line=token.line, text=token.text, unsupported=rest == "32"
            )

    def _directive(self, token: Token) -> None:
        word = _word(token)
        if word == "pragma":
            return
        if word == "alias":
            name = token.text[len(".alias") :].split(",")[0].strip()
            self._scope.declare(name, Refused(f"{name} is an .alias, which is not modelled"))
            return
        found, reasons = declarations.variables(token)
        for variable in found:
            if variable.name in reasons:
                self._scope.declare(variable.name, Refused(reasons[variable.name]))
                continue
            known = self._scope.names.get(variable.name)
            if known is not None:
                same = [other for other in self._variables if other.name == variable.name]
                if not any(other.external for other in (*same, variable)):
                    raise PtxError(f"{variable.name} is declared twice", line=token.line, text=token.text)
                if variable.external:
                    continue
                self._variables.remove(same[0])
            self._variables.append(variable)
            self._scope.declare(variable.name, Symbol(variable.name))

    def _function(self, token: Token, bodies: list[tuple[Token, re.Match[str], list[Token]]]) -> None:
        header = _HEADER.match(token.text)
        if header is None:
            raise PtxError("expected a name and parameters after .entry or .func", line=token.line, text=token.text)
        name = header["name"]
        if token.kind is Kind.PROTOTYPE:
            self._declaration(header)
            return
        if next(self._tokens).kind is not Kind.OPEN:
            raise PtxError(f"{name} has no body: expected '{{' or ';'", line=token.line, text=token.text)
        body = self._body(name, token)
        if header["kind"] == "entry":
            if any(header["name"] == other["name"] for _, other, _ in bodies):
                raise PtxError(f"the kernel {name} is defined twice", line=token.line, text=token.text)
            bodies.append((token, header, body))
        else:
            self._scope.declare(name, Refused(f"{name} is a .func with a body, and its calls are not modelled"))
            if name in self._externals:
                self._externals.remove(name)

    def _declaration(self, header: re.Match[str]) -> None:
        name = header["name"]
        if header["kind"] == "func" and name not in self._scope.names:
            self._externals.append(name)
            self._scope.declare(name, Symbol(name))
            if ".noreturn" in header["directives"]:
                self._noreturn.add(name)

    def _body(self, name: str, token: Token) -> list[Token]:
        """The tokens between the brace that was read and the one that closes it."""
        body: list[Token] = []
        depth = 1
        for part in self._tokens:
            if part.kind is Kind.OPEN:
                depth += 1
            elif part.kind is Kind.CLOSE:
                depth -= 1
                if not depth:
                    return body
            elif part.kind is Kind.END:
                break
            body.append(part)
        raise PtxError(f"the body of {name} is not closed: expected '}}'", line=token.line, text=token.text)


class _KernelParser:
    def __init__(
        self,
        token: Token,
        header: re.Match[str],
        body: list[Token],
        *,
        outer: Scope,
        locations: Locations,
        noreturn: frozenset[str],
    ) -> None:
        self._token = token
        self._header = header
        self._body = body
        self._locations = locations
        self._noreturn = noreturn
        self._root = Scope(outer)
        self._scopes: list[Scope] = [self._root]
        """In the order in which they open."""
        self._registers: list[Register] = []
        self._variables: list[Variable] = []
        self._names: set[str] = set()
        self._instructions: list[Instruction] = []
        self._opcodes: dict[str, tuple[str, tuple[str, ...]]] = {}
        """By spelling: without spaces, and its parts."""

    def kernel(self) -> Kernel:
        """The kernel."""
        name = self._header["name"]
        if self._header["result"]:
            raise PtxError(f"the kernel {name} returns a value", line=self._token.line, text=self._token.text)
        parameters = declarations.parameters(self._header["parameters"] or "", self._token)
        for parameter in parameters:
            self._declare(self._root, parameter.name, Symbol(parameter.name), self._token)
            self._names.add(parameter.name)
        outer: Scope | None = self._root.parent
        if outer is not None:
            self._names.update(outer.names)
        directives = self._directives()
        self._label()
        self._read()
        return Kernel(
            name=name,
            parameters=parameters,
            instructions=tuple(self._instructions),
            registers=tuple(self._registers),
            variables=tuple(self._variables),
            required_threads=self._triple(directives.pop("reqntid", None), "reqntid"),
            maximum_threads=self._triple(directives.pop("maxntid", None), "maxntid"),
            required_cluster=self._triple(directives.pop("reqnctapercluster", None), "reqnctapercluster"),
            explicit_cluster=directives.pop("explicitcluster", None) is not None,
            directives=directives,
            noreturn=self._noreturn,
        )

    # ---- header --------------------------------------------------------------------------------------------------

    def _directives(self) -> dict[str, str]:
        text = self._header["directives"]
        found: dict[str, str] = {}
        position = 0
        while text[position:].strip():
            match = _DIRECTIVE.match(text, position)
            if match is None:
                raise PtxError(
                    f"{text[position:].strip()!r} after the parameters: expected a performance directive",
                    line=self._token.line,
                    text=self._token.text,
                )
            name, value = match[1], match[2].strip(" \t\n;")
            if name not in _PERFORMANCE:
                raise PtxError(
                    f".{name}, which is no performance directive that is known",
                    line=self._token.line,
                    text=self._token.text,
                    unsupported=True,
                )
            found[name] = f"{found[name]}, {value}" if name in found else value
            position = match.end()
        return found

    def _triple(self, text: str | None, name: str) -> tuple[int, int, int] | None:
        if text is None:
            return None
        match = _TRIPLE.match(text)
        numbers = [1 if part is None else integer(part) for part in match.groups()] if match else [None]
        if len(numbers) != 3 or any(number is None or number < 1 for number in numbers):
            raise PtxError(f".{name} {text}: expected one to three sizes", line=self._token.line, text=self._token.text)
        x, y, z = (number or 1 for number in numbers)
        return x, y, z

    # ---- first pass: labels --------------------------------------------------------------------------------------

    def _label(self) -> None:
        """Number the instructions and find the labels of each scope."""
        stack = [self._root]
        index = 0
        pending: str | None = None
        for token in self._body:
            kind = token.kind
            if kind is Kind.STATEMENT:
                index += 1
            elif kind is Kind.LABEL:
                scope = stack[-1]
                if token.text in scope.labels or token.text in scope.targets:
                    raise PtxError(
                        f"the label {token.text} stands twice in one scope", line=token.line, text=token.text
                    )
                scope.labels[token.text] = index
                pending = token.text
                continue
            elif kind is Kind.OPEN:
                stack.append(Scope(stack[-1]))
                self._scopes.append(stack[-1])
            elif kind is Kind.CLOSE:
                stack.pop()
            elif kind is Kind.DIRECTIVE and token.text.startswith((".branchtargets", ".calltargets", ".callprototype")):
                if pending is None:
                    raise PtxError("expected a label before this list", line=token.line, text=token.text)
                scope = stack[-1]
                del scope.labels[pending]
                word, rest = (*token.text.split(None, 1), "")[:2]
                if word == ".branchtargets":
                    scope.targets[pending] = tuple(name.strip() for name in rest.split(","))
                else:
                    scope.names[pending] = Symbol(pending)
            pending = None

    # ---- second pass: declarations and instructions --------------------------------------------------------------

    def _read(self) -> None:
        opened: Iterator[Scope] = iter(self._scopes)
        scope = next(opened)
        location: Location | None = None
        inside_asm = False
        for token in self._body:
            kind = token.kind
            if kind is Kind.STATEMENT:
                self._instruction(token, scope, location)
            elif kind is Kind.LOC:
                if not inside_asm:
                    location = self._locations.find(token)
            elif kind is Kind.OPEN:
                scope = next(opened)
            elif kind is Kind.CLOSE:
                assert scope.parent is not None
                scope = scope.parent
            elif kind is Kind.ASM:
                inside_asm = True
            elif kind is Kind.PLAIN_ASM:
                inside_asm = False
            elif kind is Kind.DIRECTIVE:
                self._directive(token, scope)
            elif kind is not Kind.LABEL and kind is not Kind.SECTION and kind is not Kind.LINE:
                raise PtxError("expected an instruction", line=token.line, text=token.text)

    def _declare(self, scope: Scope, name: str, value: Register | Vector | Symbol, token: Token) -> None:
        if name in scope.names or name in scope.labels:
            raise PtxError(f"{name} is declared twice in one scope", line=token.line, text=token.text)
        scope.declare(name, value)

    def _directive(self, token: Token, scope: Scope) -> None:
        text = token.text
        if text.startswith(".reg"):
            names, bits, length = declarations.registers(token)
            registers = self._registers
            known, labels = scope.names, scope.labels
            for name in names:
                if name in known or name in labels:
                    raise PtxError(f"{name} is declared twice in one scope", line=token.line, text=text)
                if length == 1:
                    register = known[name] = Register(name, len(registers), bits)
                    registers.append(register)
                    continue
                items: list[Operand] = []
                for component, colour in list(zip("xyzw", "rgba", strict=True))[:length]:
                    register = Register(f"{name}.{component}", len(registers), bits)
                    registers.append(register)
                    known[register.name] = known[f"{name}.{colour}"] = register
                    items.append(register)
                known[name] = Vector(tuple(items))
            scope.stale()
            return
        word = _word(token)
        if word in _SPACES:
            found, reasons = declarations.variables(token)
            for variable in found:
                unique = variable.name
                number = 1
                while unique in self._names:
                    unique = f"{variable.name}@{number}"
                    number += 1
                self._names.add(unique)
                if variable.name in reasons:
                    scope.declare(variable.name, Refused(reasons[variable.name]))
                    continue
                self._declare(scope, variable.name, Symbol(unique), token)
                self._variables.append(
                    Variable(unique, variable.space, variable.size, variable.align, variable.data, variable.external)
                )
        elif word not in ("pragma", "branchtargets", "calltargets", "callprototype"):
            raise PtxError(f".{word} in a body: expected .reg, a variable or .pragma", line=token.line, text=text)

    def _instruction(self, token: Token, scope: Scope, location: Location | None) -> None:
        found = _INSTRUCTION.match(token.text)
        if found is None:
            raise _error(token, "expected an instruction: [@predicate] opcode operands")
        negated, predicate, opcode, rest = found.groups()
        guard: Guard | None = None
        if predicate is not None:
            register = scope.find(predicate)
            if not isinstance(register, Register) or register.bits != 1:
                what = "is not declared" if register is None else "is no predicate"
                raise _error(token, f"the guard {predicate} {what}: expected a .pred register")
            guard = Guard(register, negated == "!")
        known = self._opcodes.get(opcode)
        if known is None:
            plain = "".join(opcode.split())
            known = self._opcodes[opcode] = (plain, tuple(plain.split(".")))
        opcode, parts = known
        operands: tuple[Operand, ...] = ()
        if rest:
            pieces = split(rest)
            if pieces is None:
                raise _error(token, "brackets that do not match")
            try:
                operand = scope.operand
                operands = tuple([operand(piece) for piece in pieces])
            except OperandError as error:
                raise _error(token, str(error), unsupported=error.unsupported) from None
            if "f32" in parts:
                operands = _narrow(parts, operands)
        if parts[0] == "bra" or parts[0] == "brx":
            _check_branch(parts, operands, token)
        self._instructions.append(
            Instruction(
                opcode,
                parts,
                operands,
                guard,
                len(self._instructions),
                token.line,
                " ".join(token.text.split()),
                location,
            )
        )


def _word(token: Token) -> str:
    """The name of a directive. Raises PtxError if there is none."""
    found = re.match(r"\.([a-z]\w*)", token.text)
    if found is None:
        raise PtxError("expected the name of a directive", line=token.line, text=token.text)
    return found[1]


def _error(token: Token, message: str, *, unsupported: bool = False) -> PtxError:
    """The error of an instruction. One that goes over several lines may have lost its semicolon."""
    if "\n" in token.text.strip() and not unsupported:
        message += " (it goes over several lines: is a ';' missing?)"
    return PtxError(message, line=token.line, text=token.text, unsupported=unsupported)


def _check_branch(parts: tuple[str, ...], operands: tuple[Operand, ...], token: Token) -> None:
    """Raises PtxError unless a branch goes to a label, or an indexed one to a list of labels."""
    if parts[0] == "bra":
        if len(operands) == 1 and isinstance(operands[0], Label):
            return
        raise _error(token, "expected one label after bra")
    targets = operands[1] if len(operands) == 2 else None
    if isinstance(targets, Vector) and targets.items and all(isinstance(item, Label) for item in targets.items):
        return
    raise _error(token, "expected an index and a .branchtargets list after brx")


def _narrow(parts: tuple[str, ...], operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """A decimal floating-point literal is a double; an instruction on ``.f32`` takes it rounded."""
    if "f64" in parts:
        return operands
    return tuple(
        Immediate(double_to_single(operand.value), 32)
        if isinstance(operand, Immediate) and operand.bits == 64
        else operand
        for operand in operands
    )
