"""Turn what a kernel raised into a finding that names the kernel's own line."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable

from pytest_nvfp4.finding import Finding

_COMPILER = re.compile(r"cutlass/base_dsl/(?:dsl|compiler)\.py$")
_EXECUTOR = re.compile(r"cutlass/(?:base_dsl|cutlass_dsl)/\w*jit_executor\.py$")
# `--> FILE:LINE:COLUMN` in the DSL's messages from 4.8 on, `("FILE":LINE:COLUMN)` in MLIR's diagnostics
_LOCATION = re.compile(r"""(?:-->\s+|\(")(?P<file>/[^"\n]*?)"?:(?P<line>\d+)(?::\d+)?""")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MOST = 8000
"""Characters of what an error says that are told; a kernel may raise megabytes."""


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what caused it, the latest first; the DSL keeps the cause of its own errors as ``cause``."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        kept = getattr(current, "cause", None)
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or (kept if isinstance(kept, BaseException) else None) or hidden
    return chain


def _place(error: BaseException, watched: Callable[[str], bool]) -> tuple[str | None, int | None]:
    """The innermost place in the user's files that the error, or what caused it, passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    chain = _chain(error)
    for link in chain:
        file, line = getattr(link, "filename", None), getattr(link, "lineno", None)
        if isinstance(file, str) and isinstance(line, int) and watched(file):
            return file, line  # the DSL's own errors about source code carry these
    for link in chain:
        for match in _LOCATION.finditer(_said(link)):
            if watched(match["file"]):
                return match["file"], int(match["line"])  # the compiler's own words for where it went wrong
    passed: list[tuple[str, int | None]] = []
    for link in chain:
        frames = traceback.extract_tb(link.__traceback__)
        own = [(frame.filename, frame.lineno) for frame in frames if watched(frame.filename)]
        if own and frames[-1].filename == own[-1][0]:
            return own[-1]  # raised by the user's own line; the DSL wraps such errors in its own
        passed += own[-1:]
    return passed[0] if passed else (None, None)


def described(error: BaseException) -> str:
    """An exception in words: its class and what it says, without the colours that the DSL puts in for terminals."""
    name, said = type(error).__name__, _said(error).strip() or "no message"
    return said if said.startswith(f"{name}:") else f"{name}: {said}"


def _said(error: BaseException) -> str:
    """What an error says, clipped; its own code says it, which may fail."""
    try:
        text = str(error)
    except Exception as failed:
        return f"no words, because its __str__ raised {type(failed).__name__}"
    cut = len(text) - _MOST
    return _plain(text) if cut <= 0 else f"{_plain(text[:_MOST])} [... {cut} more characters]"


def _plain(text: str) -> str:
    """A text without colours, with escapes for what would steer a terminal or cannot be encoded."""
    text = _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", _COLOUR.sub("", text))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def in_compile(error: BaseException) -> bool:
    """Whether an error was raised while the DSL compiled, rather than by host code around it or by a launch."""
    chain = _chain(error)
    files = [frame.filename for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    if any(_EXECUTOR.search(file) for file in files):
        return False
    return any(_COMPILER.search(file) for file in files) or any(
        type(link).__module__.partition(".")[0] == "cutlass" for link in chain
    )


def from_exception(
    kind: str, what: str, error: BaseException, watched: Callable[[str], bool], *, hint: str = ""
) -> Finding:
    """A finding for an exception: ``what`` happened, with the error's own text, the user's line, and what to do."""
    file, line = _place(error, watched)
    text = linecache.getline(file, line).strip() if file and line else None
    if isinstance(error, MemoryError):
        kind = "memory"
    if isinstance(error, SystemExit):
        kind, said = "exit", f"the kernel called sys.exit({_said(error)})"
        return Finding(kind, f"{what}: {said}", file=file, line=line, text=text or None)
    detail = _plain("".join(traceback.format_exception(error))[-20_000:])
    message = f"{what}: {'out of memory' if kind == 'memory' else described(error)}"
    if hint:
        message = f"{message}\n{hint}"
    return Finding(kind, message, file=file, line=line, text=text or None, detail=detail)
