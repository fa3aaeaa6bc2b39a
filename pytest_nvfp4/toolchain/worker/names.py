"""Map the frames of compiled kernels to the functions and names of their source.

The DSL rewrites the functions it compiles: loop and branch bodies become separate functions, and temporaries appear.
Line numbers are unchanged, so the source file determines the function and the names of a frame.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from pytest_nvfp4.syntax import parse


@dataclass(slots=True)
class Scope:
    """Function of the source file.

    Attributes:
        name: Qualified name without ``<locals>``, such as ``Kernel.kernel``.
        first: First line, decorators included.
        last: Last line.
        names: All names in its source; names that the DSL adds are not among them.
        body: Line of its first statement.
        arguments: Line of each argument.
    """

    name: str
    first: int
    last: int
    names: frozenset[str] = field(default_factory=frozenset)
    body: int = 0
    arguments: dict[str, int] = field(default_factory=dict)

    def line_of(self, name: str, line: int) -> int:
        """Return the line that binds a name first seen after ``line``; before the body, the line of the argument."""
        return self.arguments.get(name, line) if line < self.body else line


class SourceNames:
    """Functions of one source file by line."""

    def __init__(self, text: str) -> None:
        self._scopes: list[Scope] = []
        self._classes: set[str] = set()
        try:
            tree = parse(text)
        except SyntaxError:
            return
        self._collect(tree, ())
        self._scopes.sort(key=lambda scope: scope.last - scope.first)

    def _collect(self, node: ast.AST, path: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*path, child.name)
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                names = {sub.id for sub in ast.walk(child) if isinstance(sub, ast.Name)}
                names |= {sub.arg for sub in ast.walk(child) if isinstance(sub, ast.arg)}
                arguments = {arg.arg: arg.lineno for arg in ast.walk(child.args) if isinstance(arg, ast.arg)}
                last, body = child.end_lineno or first, child.body[0].lineno
                self._scopes.append(Scope(".".join(inner), first, last, frozenset(names), body, arguments))
                self._collect(child, inner)
            elif isinstance(child, ast.ClassDef):
                self._classes.add(".".join((*path, child.name)))
                self._collect(child, (*path, child.name))
            else:
                self._collect(child, path)

    def of_class(self, qualified: str, *, seen_in: Scope) -> str:
        """Return the name in the source of a class that a function defines.

        A recompiled function has lost the class of its method: ``kernel.<locals>.Shared`` may be
        ``Gemm.kernel.Shared``. If several classes match, prefer the one in the function where it was seen.
        """
        name = qualified.replace("<locals>.", "")
        fitting = [known for known in self._classes if known == name or known.endswith(f".{name}")]
        if len(fitting) > 1:
            fitting = [known for known in fitting if known.startswith(f"{seen_in.name}.")] or fitting
        return fitting[0] if len(fitting) == 1 else name

    def at(self, line: int) -> Scope | None:
        """Return the innermost function that contains a line, or None at module level."""
        return next((scope for scope in self._scopes if scope.first <= line <= scope.last), None)
