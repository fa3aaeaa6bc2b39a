"""Convert an exception of a kernel to a finding with the kernel's own line."""

from __future__ import annotations

import errno
import linecache
import re
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_nvfp4.driver.launches import NoCompilerError
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sandbox_mode import inside
from pytest_nvfp4.toolchain.dsl_names import missing_name
from pytest_nvfp4.toolchain.map_alignment import alignment_hint

_COMPILER = re.compile(r"cutlass/base_dsl/(?:dsl|compiler)\.py$")
_EXECUTOR = re.compile(r"cutlass/(?:base_dsl|cutlass_dsl)/\w*jit_executor\.py$")
# `--> FILE:LINE:COLUMN` in the DSL's messages from 4.8 on, `("FILE":LINE:COLUMN)` in MLIR's diagnostics
_LOCATION = re.compile(r"""(?:-->\s+|\(")(?P<file>/[^"\n]*?)"?:(?P<line>\d+)(?::\d+)?""")
_OF_CUDA = re.compile(r"(?:^|(?<=[\s'\"]))(?P<file>/[^\n(\"]*)\((?P<line>\d+)\): (?:catastrophic )?error\b")
"""The location of an error in the log of NVRTC or nvcc."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TEMPORARY = "the folder for temporary files"
_READABLE = "the setting `readable` of its [[tool.pytest_nvfp4.kernel]] opens others (`nvfp4 guide sandbox`)"
_NETWORK = "the setting `network = true` of its [[tool.pytest_nvfp4.kernel]] opens the network (`nvfp4 guide sandbox`)"
_MOST = 8000
"""Largest number of characters of an error message; a kernel may raise megabytes."""


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and its causes, the latest first; the DSL stores the cause of its own errors as ``cause``."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        stored = getattr(current, "cause", None)
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or (stored if isinstance(stored, BaseException) else None) or hidden
    return chain


def _place(error: BaseException, watched: Callable[[str], bool]) -> tuple[str | None, int | None]:
    """Return the innermost line of the user's files in the tracebacks of an error and its causes."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    chain = _chain(error)
    for link in chain:
        file, line = getattr(link, "filename", None), getattr(link, "lineno", None)
        if isinstance(file, str) and isinstance(line, int) and watched(file):
            return file, line  # attributes of the DSL's own errors about source code
    for link in chain:
        for match in (found for form in (_LOCATION, _OF_CUDA) for found in form.finditer(_message(link))):
            if watched(match["file"]):
                return match["file"], int(match["line"])  # the location in the compiler's message
    if placed := _of_triton(chain, watched):
        return placed
    passed: list[tuple[str, int | None]] = []
    for link in chain:
        frames = traceback.extract_tb(link.__traceback__)
        own = [(frame.filename, frame.lineno) for frame in frames if watched(frame.filename)]
        if own and frames[-1].filename == own[-1][0]:
            return own[-1]  # raised by the user's line; the DSL wraps such errors
        passed += own[-1:]
    return passed[0] if passed else (None, None)


def _of_triton(chain: Sequence[BaseException], watched: Callable[[str], bool]) -> tuple[str, int] | None:
    """Return the line of a compile error of Triton, which counts from the ``def``, in the user's files on the stack.

    The error in a function that the kernel calls is the cause of one at the call; the innermost in a user's file is it.
    """
    frames = [frame for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    files = dict.fromkeys(frame.filename for frame in frames if watched(frame.filename))
    for link in reversed(chain):
        function, line = getattr(link, "src", None), getattr(getattr(link, "node", None), "lineno", None)
        if not (isinstance(function, str) and function and isinstance(line, int)):
            continue
        for file in files:
            before, found, _ = "".join(linecache.getlines(file)).partition(function)
            if found:
                return file, before.count("\n") + line
    return None


def described(error: BaseException) -> str:
    """Format an exception as class and message, without the DSL's terminal colours."""
    name, message = type(error).__name__, _message(error).strip() or "no message"
    return message if message.startswith(f"{name}:") else f"{name}: {message}"


def _message(error: BaseException) -> str:
    """Return the clipped message of an error; its own ``__str__`` may fail."""
    try:
        text = str(error)
    except Exception as failure:
        return f"no message, because its __str__ raised {type(failure).__name__}"
    cut = len(text) - _MOST
    return _plain(text) if cut <= 0 else f"{_plain(text[:_MOST])} [... {cut} more characters]"


def _plain(text: str) -> str:
    """Remove colours, and escape control characters and surrogates."""
    text = _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", _COLOUR.sub("", text))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def in_compile(error: BaseException) -> bool:
    """Return whether an error was raised by the DSL's compiler, not by host code around it or by a launch."""
    chain = _chain(error)
    files = [frame.filename for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    if any(_EXECUTOR.search(file) for file in files):
        return False
    return any(_COMPILER.search(file) for file in files) or any(
        type(link).__module__.partition(".")[0] == "cutlass" for link in chain
    )


def _refusal(error: BaseException) -> str:
    """Return what the sandbox may have refused, and the setting that permits it; empty for another error."""
    if not inside():
        return ""
    for link in _chain(error):
        if isinstance(link, ModuleNotFoundError) and link.name:
            parts = link.name.split(".")
            for folder in map(Path, sys.path):
                place = folder.joinpath(*parts)
                if place.is_dir() or place.with_name(f"{place.name}.py").is_file():
                    return f"{place} exists and is not among the kernel's own files; {_READABLE}"
        if not isinstance(link, OSError):
            continue
        if link.errno == errno.EACCES and link.filename is not None:
            return (
                f"a kernel in the sandbox reads its own files and writes below its working directory and {_TEMPORARY}; "
                f"{_READABLE}"
            )
        if link.errno == errno.EPERM and link.filename is None:
            return f"the sandbox refuses this call; {_NETWORK}"
        if isinstance(link, socket.gaierror):
            return f"the sandbox has no network; {_NETWORK}"
    return ""


def from_exception(
    kind: str, what: str, error: BaseException, watched: Callable[[str], bool], *, hint: str = ""
) -> Finding:
    """Return the finding of an exception: ``what`` happened, the error's message, the user's line, and the hint."""
    file, line = _place(error, watched)
    text = linecache.getline(file, line).strip() if file and line else None
    if isinstance(error, MemoryError):
        kind = "memory"
    elif any(isinstance(link, NoCompilerError) for link in _chain(error)):
        kind = "environment"
    if isinstance(error, SystemExit):
        message = f"{what}: the kernel called sys.exit({_message(error)})"
        return Finding("exit", message, file=file, line=line, text=text or None)
    detail = _plain("".join(traceback.format_exception(error))[-20_000:])
    said = described(error)
    if kind == "memory":
        said = f"out of memory: {_message(error)}".removesuffix(": ")
    message = f"{what}: {said}"
    aligned = alignment_hint(message, "".join(linecache.getlines(file))) if file else ""
    if hint := "\n".join(filter(None, (hint, missing_name(error), _refusal(error), aligned))):
        message = f"{message}\n{hint}"
    return Finding(kind, message, file=file, line=line, text=text or None, detail=detail)
