"""Which of GPU MODE's tasks a kernel file is for, read from its source without running it.

The evidence, the strongest first: the directive ``#!POPCORN leaderboard NAME``; how many values ``custom_kernel`` takes
from its argument, by ``a, b, ... = data`` or ``data[6]``; and where two tasks take as many, how the file describes C or
n. What contradicts each other is reported instead of weighed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_nvfp4.problem import GROUP_GEMM
from pytest_nvfp4.syntax import parse

VALUES: Final[Mapping[str, int]] = MappingProxyType(
    {GROUP_GEMM: 4, "nvfp4_gemm": 7, "nvfp4_gemv": 7, "nvfp4_dual_gemm": 10}
)
"""Values of ``data`` in each task."""
_FUNCTION = "custom_kernel"
_DIRECTIVE = re.compile(r"^[ \t]*#![ \t]*popcorn[ \t]+leaderboards?[ \t]+(.+)", re.IGNORECASE | re.MULTILINE)
_HEAD = 4000
"""Characters of a file that may contain directives."""
_VECTOR_C = re.compile(r"\[\s*m\s*,\s*1\s*,\s*[l12]\s*\]|\bm\s*x\s*1\s*x\s*l\b", re.IGNORECASE)
_MATRIX_C = re.compile(r"\[\s*m\s*,\s*n\s*,\s*[l1]\s*\]|\bm\s*x\s*n\s*x\s*l\b", re.IGNORECASE)
_VECTOR_WORD = re.compile(r"gemv", re.IGNORECASE)
_MATRIX_WORD = re.compile(r"(?<!group_)(?<!grouped_)(?<!dual_)gemm", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Recognition:
    """The task of a source, and the evidence.

    Attributes:
        contract: The task's contract; None without evidence, or if the evidence fits several or none.
        problem: Why it fits several or none, as a sentence without its subject; empty otherwise.
        fits: The contracts that it fits, if they are several.
        why: The evidence for the contract, as a clause.
    """

    contract: str | None = None
    problem: str = ""
    fits: tuple[str, ...] = ()
    why: str = ""


def recognise(text: str) -> Recognition:
    """Return the task of a source. One that cannot be parsed has only its directive as evidence."""
    named = _directive(text)
    taken = _values_taken(text)
    fitting = None if taken is None else [name for name, count in VALUES.items() if taken.fits(count)]
    if named is not None:
        if fitting is not None and named not in fitting:
            assert taken is not None
            problem = f"names the leaderboard {named}, but {_FUNCTION} {taken}, and {named} gives it {VALUES[named]}"
            return Recognition(problem=problem)
        return Recognition(named, why=f"it names the leaderboard {named}")
    if fitting is None or taken is None:
        return Recognition()
    if not fitting:
        every = ", ".join(f"{name} gives {count}" for name, count in VALUES.items())
        return Recognition(problem=f"fits none of GPU MODE's tasks: {_FUNCTION} {taken}, and {every}")
    if len(fitting) == 1:
        return Recognition(fitting[0], why=f"{_FUNCTION} {taken}")
    told = _matrix_or_vector(text)
    if told in fitting:
        return Recognition(told, why=f"{_FUNCTION} {taken}, and the file describes {'C as a ' + _SHOWN[told]}")
    problem = f"fits {' and '.join(fitting)}: {_FUNCTION} {taken}, as both give it"
    return Recognition(problem=problem, fits=tuple(fitting))


_SHOWN: Final = MappingProxyType({"nvfp4_gemm": "matrix", "nvfp4_gemv": "vector"})


def contradiction(text: str, contract: str) -> str | None:
    """Return why a source cannot be for the contract that is set, as a sentence without its subject; else None."""
    if contract not in VALUES:
        return None
    named, taken = _directive(text), _values_taken(text)
    if taken is not None and not taken.fits(VALUES[contract]):
        right = recognise(text).contract
        other = "" if right is None else f'; this is a kernel of {right}: set contract = "{right}"'
        gives = f"{contract} gives {VALUES[contract]}"
        return f"does not fit the contract {contract}: {_FUNCTION} {taken}, and {gives}{other}"
    if named is not None and named != contract:
        return f'names the leaderboard {named}, but its contract is {contract}: set contract = "{named}"'
    return None


@dataclass(frozen=True, slots=True)
class _Taken:
    """The values that a kernel takes from its argument.

    Attributes:
        count: Their number, or one more than the largest index.
        whole: Whether it takes all of them.
        line: The line that shows it.
    """

    count: int
    whole: bool
    line: int

    def fits(self, values: int) -> bool:
        """Return whether an argument may have so many values."""
        if self.whole:
            return self.count == values
        return self.count <= values and not any(self.count <= other < values for other in VALUES.values())

    def __str__(self) -> str:
        if self.whole:
            return f"takes {self.count} values from its argument (line {self.line})"
        return f"reads value {self.count - 1} of its argument (line {self.line})"


def _directive(text: str) -> str | None:
    """Return the task of the leaderboard that the directives name; None if they name another or none."""
    for match in _DIRECTIVE.finditer(text[:_HEAD]):
        for name in match[1].lower().replace("-", "_").split():
            # Leaderboards of the same task on other machines have a prefix, such as modal_nvfp4_gemm.
            for contract in VALUES:
                if name == contract or name.endswith(f"_{contract}"):
                    return contract
    return None


def _values_taken(text: str) -> _Taken | None:
    """Return what the kernel takes from its argument; None if the source does not show it."""
    if _FUNCTION not in text:
        return None
    try:
        tree = parse(text)
    except SyntaxError:
        return None
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.args.args]
    named = [node for node in functions if node.name == _FUNCTION]
    # A kernel may hand its argument on, under the name that GPU MODE's template gives it.
    others = [node for node in functions if node.name != _FUNCTION and any(a.arg == "data" for a in node.args.args)]
    for each in (named, others):
        found = [taken for node in each for taken in _of_function(node, own=node.name == _FUNCTION)]
        if found:
            whole = [taken for taken in found if taken.whole]
            return whole[0] if whole else max(found, key=lambda taken: taken.count)
    return None


def _of_function(function: ast.FunctionDef, *, own: bool) -> Iterator[_Taken]:
    argument = function.args.args[0].arg if own else "data"
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=elements) | ast.List(elts=elements)], value=ast.Name(id=name)):
                if name == argument and not any(isinstance(each, ast.Starred) for each in elements):
                    yield _Taken(len(elements), True, node.lineno)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(index)), ctx=ast.Load()):
                if name == argument and index >= min(VALUES.values()):
                    yield _Taken(index + 1, False, node.lineno)


def _matrix_or_vector(text: str) -> str | None:
    """Return the task of a file by its shape of C, else by the words of its code; None if it has both or neither."""
    for vector, matrix in ((_VECTOR_C, _MATRIX_C), (_VECTOR_WORD, _MATRIX_WORD)):
        found = vector.search(text) is not None, matrix.search(text) is not None
        if found == (True, False):
            return "nvfp4_gemv"
        if found == (False, True):
            return "nvfp4_gemm"
    return None
