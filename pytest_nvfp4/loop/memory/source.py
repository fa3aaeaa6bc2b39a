"""The hash of a source without what does not decide how it runs: comments, blank lines, the layout of the text, and
strings that stand alone as statements, such as docstrings.

Two sources with one hash are one candidate, of which the second is not judged. That is wrong where Python code can tell
them apart, and it can where it reads itself: its text, its docstrings, the numbers of its lines, its code objects. A
source that names a way to do that is hashed as it is, byte for byte, as is one that Python may not read. A source that
hides such a way (``getattr(f, "__do" + "c__")``) loses its own candidate only: equal sources are never promoted.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterator, Mapping

_MOST_BYTES = 1 << 20
"""Larger sources are hashed as they are: tokens cost about a microsecond a byte."""
_READS_ITSELF = re.compile(
    r"__(doc|file|line|code|loader|spec|cached)__|\b(co|tb)_[a-z]+|\bf_(code|lineno|back)|lineno|getsource|_getframe"
    r"|currentframe|get_data|settrace|setprofile|read_text|read_bytes"
    r"|\b(inspect|linecache|traceback|tokenize|ast|dis|marshal|doctest|pydoc|importlib|pkgutil|runpy|open|argv)\b"
)
"""Names and strings of code that may read its own text, docstrings or lines."""
_UNUSUAL = re.compile(rb"^ *[\t\f]|\r(?!\n)|\0", re.MULTILINE)
"""Bytes that Python refuses, or understands as another line end or indentation than `tokenize`, also in comments."""
_IGNORED = frozenset({tokenize.COMMENT, tokenize.NL})
_LAYOUT = frozenset({tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})
_STARTS = _LAYOUT | {tokenize.ENCODING}
_PLAIN = re.compile(r"[uU]?['\"][^\\]*|[rR]['\"].*", re.DOTALL)
"""A string without escapes: Python refuses some escapes, also in docstrings."""


def source_sha256(files: Mapping[str, bytes | None]) -> str:
    """Return the hash of all files that a candidate may change.

    Args:
        files: Content by path; None for a file that does not exist. Files without the suffix ``.py`` are hashed as they
            are.
    """
    whole = hashlib.sha256()
    for name in sorted(files):
        data = files[name]
        whole.update(f"{len(name.encode())} {name} ".encode())
        whole.update(b"-" if data is None else _file_digest(name, data))
    return whole.hexdigest()


def _file_digest(name: str, data: bytes) -> bytes:
    normalised = _normalised(data) if name.endswith(".py") and len(data) <= _MOST_BYTES else None
    if normalised is None:
        return b"=" + hashlib.sha256(data).digest()
    return b"~" + hashlib.sha256(normalised.encode("utf-8", "surrogatepass")).digest()


def _normalised(data: bytes) -> str | None:
    """Return the parts of a source that decide how it runs; None if it may read itself, or is no Python."""
    if _UNUSUAL.search(data):
        return None
    try:
        parts = list(_parts(data))
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if any(_READS_ITSELF.search(text) for _, text in parts):
        return None
    return "\0".join(f"{kind} {text}" for kind, text in parts)


def _parts(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield kind and text of each token that counts. Raises as `tokenize`."""
    tokens = [token for token in tokenize.tokenize(io.BytesIO(data).readline) if token.type not in _IGNORED]
    depth = 0  # of formatted strings, in which blanks count: f"{x = }"
    for at, token in enumerate(tokens):
        kind = tokenize.tok_name[token.type]
        if token.type == tokenize.ERRORTOKEN:
            raise SyntaxError("this is no token of Python")
        if token.type == tokenize.STRING and _stands_alone(tokens, at):
            continue
        if token.type == tokenize.NEWLINE and at and _stands_alone(tokens, at - 1):
            continue
        text = "" if token.type in _LAYOUT else token.string
        if depth:
            before = tokens[at - 1].end
            text = f"{token.start[0] - before[0]} {token.start[1] - before[1]} {text}"
        depth += kind.endswith("STRING_START") - kind.endswith("STRING_END")
        yield token.type, text


def _stands_alone(tokens: list[tokenize.TokenInfo], at: int) -> bool:
    """Return whether a token is a string that is a statement of its own, which has no effect."""
    token = tokens[at]
    if token.type != tokenize.STRING or not _PLAIN.fullmatch(token.string):
        return False
    return tokens[at - 1].type in _STARTS and tokens[at + 1].type == tokenize.NEWLINE
