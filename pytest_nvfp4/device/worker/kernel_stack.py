"""Why and at which line a kernel's host code has crashed, or where it was when its time was over.

The file of a kernel's process has the exception of a stand-in, if native code ended the process before the exception
was raised (``host.stashed``), and then the stack that ``faulthandler`` wrote.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host.stashed import MARK
from pytest_nvfp4.isolation.limits import write_stack_in_time

_MOST: Final = 32_768
"""Bytes of a stack that are read."""
_MOST_SOURCE: Final = 4 << 20
"""Bytes of a file of the kernel that are read."""
_FRAME: Final = re.compile(r'^  File "([^"\n]+)", line (\d{1,9}) in ', re.MULTILINE)

CRASHES: Final = {
    signal.SIGSEGV: "ended with a segmentation fault. An address of data_ptr() or cudaMalloc is device "
    "memory, which host code (ctypes, numpy, C) can neither read nor write, here as on a GPU: copy with .cpu(), "
    "copy_ or cudaMemcpy, or let a kernel do it. If no device address is used here, native code has crashed",
    signal.SIGABRT: "was aborted by native code, which writes its reason to the standard error",
}
"""By the signals for which ``faulthandler`` writes a stack."""


def stack_file(scratch: Path) -> Path:
    """Return the file of the stack of a kernel's process, in the folder that the process writes to."""
    return scratch / ".stack"


def stack_below(scratch: Path) -> str:
    """Return the stack of a kernel's process that has ended; empty if there is none."""
    return read_start(str(stack_file(scratch)))


def write_stack_to(path: Path) -> IO[str]:
    """Write the stack of this process to a file, which must stay open, at a crash and before its deadline."""
    file = path.open("w", encoding="utf-8")
    faulthandler.enable(file)
    write_stack_in_time(file)
    return file


def crash(code: signal.Signals, stack: str, *, sources: str) -> Finding:
    """Return the finding of a kernel's process that native code has ended, and show its stack on the standard error.

    Args:
        code: The signal: one of ``CRASHES``.
        stack: The file of the stack, which the kernel may have written, or removed.
        sources: Folder of the kernel's files.
    """
    text = read_start(stack)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
    file, line = innermost(text, lambda name: name.startswith(f"{sources}{os.sep}"))
    source = _line(file, line) if file is not None and line is not None else ""
    first, _, _ = text.partition("\n")
    reason = CRASHES[code]
    if first.startswith(MARK):
        reason = f"was ended by {code.name} after a call that failed: {first.removeprefix(MARK)[:4096]}"
    return Finding(
        "crash",
        f"the kernel's host code {reason}",
        file=file,
        line=line,
        text=source or None,
    )


def innermost(stack: str, own: Callable[[str], bool]) -> tuple[str | None, int | None]:
    """Return file and line of the innermost frame of a stack (most recent call first) whose file is the kernel's."""
    return next(((file, int(line)) for file, line in _FRAME.findall(stack) if own(file)), (None, None))


def _line(file: str, line: int) -> str:
    """Return a line of a file of the kernel, in whose place the kernel may have put anything."""
    if ".." in Path(file).parts:
        return ""
    lines = read_start(file, most=_MOST_SOURCE).splitlines()
    return lines[line - 1].strip()[:4096] if 0 < line <= len(lines) else ""


def read_start(path: str, *, most: int = _MOST) -> str:
    """Return the start of a file that may be anything, or nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, most).decode("utf-8", errors="replace")
    finally:
        os.close(descriptor)
