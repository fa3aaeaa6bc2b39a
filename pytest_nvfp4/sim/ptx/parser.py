"""Parser of PTX text into a ``Module``.

Valid PTX that is not modelled (a recursive function, a variable initialised with an address) is an error of the kernel
that uses it: ``Module.kernels`` raises it for that kernel, and other kernels are usable.

Source: PTX ISA, "Syntax", "Directives".
"""

from __future__ import annotations

import re

from pytest_nvfp4.sim.ptx import declarations
from pytest_nvfp4.sim.ptx.body import KernelParser
from pytest_nvfp4.sim.ptx.inlining import Function
from pytest_nvfp4.sim.ptx.lexer import Kind, PtxError, Token, clean, directive_name, tokens
from pytest_nvfp4.sim.ptx.locations import Locations
from pytest_nvfp4.sim.ptx.operands import Refused, Scope
from pytest_nvfp4.sim.ptx.syntax import Kernel, Module, Symbol, Variable

_HEADER = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<kind>entry|func)\b\s*"
    r"(?:\.attribute\s*\([^)]*\)\s*)?(?P<result>\([^)]*\)\s*)?"
    r"(?P<name>[A-Za-z_$%][\w$]*)\s*(?:\((?P<parameters>[^)]*)\))?(?P<directives>.*)\Z",
    re.DOTALL,
)


class Kernels(dict[str, Kernel]):
    """Kernels by name. Those that use unmodelled features are in ``refused``; subscribing one raises its error."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, PtxError] = {}

    def __missing__(self, name: str) -> Kernel:
        error = self.refused.get(name)
        if error is not None:
            raise error
        raise KeyError(name)


def parse(text: str, *, source: str = "") -> Module:
    """Parse a PTX module.

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
        self._functions: dict[str, Function] = {}
        self._scope = Scope(None)
        self._version = ""
        self._target = ""

    def module(self) -> Module:
        """Parse the whole text."""
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
                raise token.error("expected a directive: instructions belong into the body of an .entry or .func")
        if not self._version:
            raise PtxError("the text has no .version: expected a PTX module", line=1)
        for token, header, body in bodies:
            name = header["name"]
            try:
                self._kernels[name] = KernelParser(
                    token,
                    header,
                    body,
                    outer=self._scope,
                    locations=self._locations,
                    noreturn=frozenset(self._noreturn),
                    functions=self._functions,
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
                raise token.error(f"version {rest!r}: expected one such as 8.7")
            self._version = rest
        elif word == ".target":
            self._target = rest.split(",")[0].strip()
        elif word == ".address_size" and rest != "64":
            raise token.error(f"addresses of {rest} bits: expected 64", unsupported=rest == "32")

    def _directive(self, token: Token) -> None:
        word = directive_name(token)
        if word == "pragma":
            return
        if word == "alias":
            name = token.text[len(".alias") :].split(",")[0].strip()
            self._scope.declare(name, Refused(f"{name} is an .alias, which is not modelled"))
            return
        found, reasons = declarations.variables(token)
        known_names = {each.name for each in (*self._variables, *found) if each.is_placed}
        for variable in found:
            if unknown := [name for _, name, _ in variable.addresses if name not in known_names]:
                reason = f"initialised with the address {unknown[0]}, which is not modelled"
                reasons.setdefault(variable.name, f"{variable.name} is {reason}")
            if variable.name in reasons:
                self._scope.declare(variable.name, Refused(reasons[variable.name]))
                continue
            known = self._scope.names.get(variable.name)
            if known is not None:
                same = [other for other in self._variables if other.name == variable.name]
                if not any(other.external for other in (*same, variable)):
                    raise token.error(f"{variable.name} is declared twice")
                if variable.external:
                    continue
                self._variables.remove(same[0])
            self._variables.append(variable)
            self._scope.declare(variable.name, Symbol(variable.name))

    def _function(self, token: Token, bodies: list[tuple[Token, re.Match[str], list[Token]]]) -> None:
        header = _HEADER.match(token.text)
        if header is None:
            raise token.error("expected a name and parameters after .entry or .func")
        name = header["name"]
        if token.kind is Kind.PROTOTYPE:
            self._declaration(header)
            return
        if next(self._tokens).kind is not Kind.OPEN:
            raise token.error(f"{name} has no body: expected '{{' or ';'")
        body = self._body(name, token)
        if header["kind"] == "entry":
            if any(header["name"] == other["name"] for _, other, _ in bodies):
                raise token.error(f"the kernel {name} is defined twice")
            bodies.append((token, header, body))
        else:
            self._functions[name] = Function(name, token, header, tuple(body))
            self._scope.declare(name, Symbol(name))
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
        """Return the tokens between the brace that was read and its closing brace."""
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
        raise token.error(f"the body of {name} is not closed: expected '}}'")
