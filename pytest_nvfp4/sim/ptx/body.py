"""One kernel: its performance directives, scopes, declarations and instructions.

Two passes over the body: the first numbers the instructions and finds the labels of every ``{ }``, the second reads
operands in the order of the text, so that a register is known from its declaration on. Inline assembly repeats the
names of its registers and labels: each ``{ }`` has its own.

Source: PTX ISA, "Syntax", "Performance-Tuning Directives", "Control Flow Directives".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx import declarations
from pytest_nvfp4.sim.ptx.inlining import Call, Function, expand, inlined
from pytest_nvfp4.sim.ptx.lexer import Kind, PtxError, Token, directive_name
from pytest_nvfp4.sim.ptx.literals import double_to_single, integer
from pytest_nvfp4.sim.ptx.locations import Locations, beyond_the_end, has_no_line, is_moved
from pytest_nvfp4.sim.ptx.operands import OperandError, Refused, Scope, split
from pytest_nvfp4.sim.ptx.syntax import (
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
)

_INSTRUCTION = re.compile(
    r"(?:@\s*(!?)\s*([A-Za-z_$%][\w$]*)\s+)?([a-z][a-z0-9_]*(?:\s*(?:\.|::)[A-Za-z0-9_]+)*)(?:(?:\s+|(?=[\[{(]))(.*))?\Z",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r'\s*\.([a-z]\w*)\s*([^."]*(?:"[^"]*"[^."]*)*)')
_TRIPLE = re.compile(r"\s*(\w+)\s*(?:,\s*(\w+)\s*)?(?:,\s*(\w+)\s*)?\Z")
_PERFORMANCE = frozenset([
    "reqntid", "maxntid", "minnctapersm", "maxnctapersm", "maxnreg", "noreturn", "pragma", "explicitcluster",
    "reqnctapercluster", "maxclusterrank", "blocksareclusters", "abi_preserve", "abi_preserve_control",
])  # fmt: skip
_ENDS = frozenset(["bra", "brx", "exit", "ret"])
_SPACES = frozenset(["shared", "local", "param", "global", "const", "extern", "visible", "weak", "common"])


class KernelParser:
    """Parser of one ``.entry``: its header as ``parser`` matched it, and the tokens of its body."""

    def __init__(
        self,
        token: Token,
        header: re.Match[str],
        body: list[Token],
        *,
        outer: Scope,
        locations: Locations,
        noreturn: frozenset[str],
        llvm: bool = False,
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        self._token = token
        self._header = header
        self._body, self._calls = expand(body, functions or {}, header["name"])
        self._locations = locations
        self._noreturn = noreturn
        self._llvm = llvm
        self._root = Scope(outer)
        self._scopes: list[Scope] = [self._root]
        """Scopes in the order in which they open."""
        self._registers: list[Register] = []
        self._variables: list[Variable] = []
        self._names: set[str] = set()
        self._instructions: list[Instruction] = []
        self._opcodes: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Opcodes by spelling: without spaces, and split into parts."""

    def kernel(self) -> Kernel:
        """Parse the kernel."""
        name = self._header["name"]
        if self._header["result"]:
            raise self._token.error(f"the kernel {name} returns a value")
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
            llvm=self._llvm,
        )

    # ---- header --------------------------------------------------------------------------------------------------

    def _directives(self) -> dict[str, str]:
        text = self._header["directives"]
        found: dict[str, str] = {}
        position = 0
        while text[position:].strip():
            match = _DIRECTIVE.match(text, position)
            if match is None:
                raise self._token.error(
                    f"{text[position:].strip()!r} after the parameters: expected a performance directive"
                )
            name, value = match[1], match[2].strip(" \t\n;")
            if name not in _PERFORMANCE:
                raise self._token.error(f".{name} is not a known performance directive", unsupported=True)
            found[name] = f"{found[name]}, {value}" if name in found else value
            position = match.end()
        return found

    def _triple(self, text: str | None, name: str) -> tuple[int, int, int] | None:
        if text is None:
            return None
        match = _TRIPLE.match(text)
        numbers = [1 if part is None else integer(part) for part in match.groups()] if match else [None]
        if len(numbers) != 3 or any(number is None or number < 1 for number in numbers):
            raise self._token.error(f".{name} {text}: expected one to three sizes")
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
                    raise token.error(f"the label {token.text} is defined twice in one scope")
                scope.labels[token.text] = index
                pending = token.text
                continue
            elif kind is Kind.OPEN:
                stack.append(Scope(stack[-1]))
                self._scopes.append(stack[-1])
            elif kind is Kind.ENTER:
                # A function's scope contains the module's names and none of its caller's.
                stack.append(Scope(self._root.parent))
                self._scopes.append(stack[-1])
            elif kind is Kind.CLOSE or kind is Kind.LEAVE:
                stack.pop()
            elif kind is Kind.DIRECTIVE and token.text.startswith((".branchtargets", ".calltargets", ".callprototype")):
                if pending is None:
                    raise token.error("expected a label before this list")
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
        near: Location | None = None
        moved: int | None = None
        callers: list[tuple[Scope, Location | None, Location | None]] = []
        for token in self._body:
            kind = token.kind
            if kind is Kind.STATEMENT:
                self._instruction(token, scope, location)
                if self._instructions[-1].parts[0] in _ENDS:
                    moved = None
            elif kind is Kind.LOC:
                location = self._locations.find(token)
                if location is not None and moved is not None:
                    self._locate(moved, location)
                moved = len(self._instructions) if is_moved(token) else None
                if callers:
                    location = inlined(location, callers[-1][1])
                if location is not None and near is not None and (has_no_line(token) or beyond_the_end(location)):
                    location = near
                near = location or near
            elif kind is Kind.OPEN:
                scope = next(opened)
            elif kind is Kind.CLOSE:
                assert scope.parent is not None
                scope = scope.parent
            elif kind is Kind.ENTER:
                callers.append((scope, location, near))
                scope = next(opened)
                self._bind(self._calls[int(token.text)], callers[-1][0], scope)
            elif kind is Kind.LEAVE:
                scope, location, near = callers.pop()
            elif kind is Kind.DIRECTIVE:
                self._directive(token, scope, inside=bool(callers))
            elif kind is not Kind.LABEL and kind is not Kind.SECTION and kind is not Kind.LINE:
                raise token.error("expected an instruction")

    def _declare(self, scope: Scope, name: str, value: Register | Vector | Symbol, token: Token) -> None:
        if name in scope.names or name in scope.labels:
            raise token.error(f"{name} is declared twice in one scope")
        scope.declare(name, value)

    def _bind(self, call: Call, caller: Scope, scope: Scope) -> None:
        """Bind the parameters of a called function to the caller's variables."""
        for parameter, name in call.bindings():
            try:
                operand = caller.operand(name)
            except OperandError as error:
                raise _error(call.token, str(error), unsupported=error.unsupported) from None
            variable = None
            if isinstance(operand, Symbol) and not operand.offset:
                variable = next((v for v in self._variables if v.name == operand.name and v.space == "param"), None)
            if variable is None:
                raise _error(
                    call.token, f"{name}, given to {call.function.name}, is not a .param variable", unsupported=True
                )
            if variable.size != parameter.size:
                raise _error(
                    call.token,
                    f"{name} has {variable.size} bytes, and {parameter.name} of {call.function.name} {parameter.size}",
                )
            self._declare(scope, parameter.name, Symbol(variable.name), call.token)

    def _directive(self, token: Token, scope: Scope, *, inside: bool) -> None:
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
        word = directive_name(token)
        if word in _SPACES:
            found, reasons = declarations.variables(token)
            for variable in found:
                if inside and variable.space not in ("local", "param"):
                    raise _error(
                        token,
                        f"{variable.name} is a .{variable.space} variable of a function, which is not modelled",
                        unsupported=True,
                    )
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

    def _locate(self, first: int, location: Location) -> None:
        """Give the instructions from a number on a location."""
        self._instructions[first:] = [replace(each, location=location) for each in self._instructions[first:]]

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
                " ".join((token.shown or token.text).split()),
                location,
            )
        )


def _error(token: Token, message: str, *, unsupported: bool = False) -> PtxError:
    """Return the error of an instruction. One that spans several lines may lack its semicolon."""
    if "\n" in token.text.strip() and not unsupported:
        message += " (it spans several lines: is a ';' missing?)"
    return token.error(message, unsupported=unsupported)


def _check_branch(parts: tuple[str, ...], operands: tuple[Operand, ...], token: Token) -> None:
    """Raise PtxError unless a branch goes to a label, or an indexed one to a list of labels."""
    if parts[0] == "bra":
        if len(operands) == 1 and isinstance(operands[0], Label):
            return
        raise _error(token, "expected one label after bra")
    targets = operands[1] if len(operands) == 2 else None
    if isinstance(targets, Vector) and targets.items and all(isinstance(item, Label) for item in targets.items):
        return
    raise _error(token, "expected an index and a .branchtargets list after brx")


def _narrow(parts: tuple[str, ...], operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Round a decimal floating-point literal, which is a double, for an instruction on ``.f32``."""
    if "f64" in parts:
        return operands
    return tuple(
        Immediate(double_to_single(operand.value), 32)
        if isinstance(operand, Immediate) and operand.bits == 64
        else operand
        for operand in operands
    )
