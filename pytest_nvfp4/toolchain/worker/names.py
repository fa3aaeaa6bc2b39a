"""Give the frames of compiled kernels the names their author knows.

The DSL rewrites the functions it compiles: loop and branch bodies become functions of their own, temporaries appear.
The line numbers stay the author's, so the source file says which function and which names a frame belongs to.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(slots=True)
class Scope:
    """A function of the source file.

    Attributes:
        name: Its qualified name without ``<locals>``, such as ``Kernel.kernel``.
        first: Its first line, decorators included.
        last: Its last line.
        names: Every name that its source mentions; what the DSL adds is not among them.
        body: The line of its first statement.
        arguments: The line of each argument.
    """

    name: str
    first: int
    last: int
    names: frozenset[str] = field(default_factory=frozenset)
    body: int = 0
    arguments: dict[str, int] = field(default_factory=dict)

    def line_of(self, name: str, line: int) -> int:
        """The line that binds a name which was first seen when ``line`` had run: before the body, its argument's."""
        return self.arguments.get(name, line) if line < self.body else line


class SourceNames:
    """The functions of one source file by line."""

    def __init__(self, text: str) -> None:
        self._scopes: list[Scope] = []
        self._classes: set[str] = set()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
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
                arguments = {one.arg: one.lineno for one in ast.walk(child.args) if isinstance(one, ast.arg)}
                last, body = child.end_lineno or first, child.body[0].lineno
                self._scopes.append(Scope(".".join(inner), first, last, frozenset(names), body, arguments))
                self._collect(child, inner)
            elif isinstance(child, ast.ClassDef):
                self._classes.add(".".join((*path, child.name)))
                self._collect(child, (*path, child.name))
            else:
                self._collect(child, path)

    def of_class(self, qualified: str, *, seen_in: Scope) -> str:
        """The author's name of a class that a function defines.

        Compiled anew, the function has forgotten the class it is a method of: ``kernel.<locals>.Shared`` may be
        ``Gemm.kernel.Shared``. Where several classes would fit, it is that of the function it was seen in.
        """
        name = qualified.replace("<locals>.", "")
        fitting = [one for one in self._classes if one == name or one.endswith(f".{name}")]
        if len(fitting) > 1:
            fitting = [one for one in fitting if one.startswith(f"{seen_in.name}.")] or fitting
        return fitting[0] if len(fitting) == 1 else name

    def at(self, line: int) -> Scope | None:
        """The innermost function that holds a line, or None at module level."""
        for scope in self._scopes:
            if scope.first <= line <= scope.last:
                return scope
        return None
