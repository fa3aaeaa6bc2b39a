"""Find whose code an access comes from: the kernel's, a library's or this package's.

The top frame alone does not show it. A kernel can request an access through ``eval``, which runs under no file's name,
through a function of a library that calls whatever it is given, or as the function of a thread.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Final

_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")})
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
HANDS_OUT: Final[dict[str, frozenset[str] | None]] = {
    "inspect.py": None,
    "traceback.py": frozenset({"walk_stack", "walk_tb"}),
    "logging/__init__.py": frozenset({"currentframe", "<lambda>"}),  # a lambda of that name since Python 3.11
    "torch/_jit_internal.py": frozenset({"createResolutionCallbackFromFrame"}),
    "torch/fx/proxy.py": frozenset({"_find_user_code_frame"}),
    "numpy/distutils/misc_util.py": frozenset({"get_frame"}),
}
"""Functions of libraries that return a frame that they request, or look names up in it for their caller; None for all
functions of a file. The others keep it to themselves."""
_SHOWS_SOURCE = ("linecache.py", "tokenize.py", "inspect.py", "traceback.py")


def in_standard_library(file: str) -> bool:
    """Return whether code belongs to the standard library."""
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and "-packages" not in file)


def in_library(file: str) -> bool:
    """Return whether code belongs to an installed library, or claims to."""
    return file.startswith(_LIBRARIES) or "-packages" + os.sep in file


def in_package(file: str) -> bool:
    """Return whether code belongs to this package."""
    return file.startswith(_PACKAGE)


def reads_source(frame: FrameType | None) -> bool:
    """Return whether a file is opened to show its lines, as in a traceback."""
    while frame is not None and in_standard_library(frame.f_code.co_filename):
        if Path(frame.f_code.co_filename).name in _SHOWS_SOURCE:
            return True
        frame = frame.f_back
    return False


class Requester:
    """Finds the kernel's frame that an access comes from; ``own`` returns whether a source file is the kernel's."""

    def __init__(self, own: Callable[[str], bool]) -> None:
        self._own = own
        self._main = threading.main_thread().ident

    def of_object(self, frame: FrameType | None, words: frozenset[str]) -> FrameType | None:
        """Return the kernel's frame that requests an object of the interpreter, or None.

        Code that names the function itself (``words``) requests for itself: ``logging`` and ``namedtuple`` inspect
        frames and pass none on. Some functions hand frames out (``HANDS_OUT``), and every other function on the stack
        was only given something to call.
        """
        first = frame
        while frame is not None:
            if self._own(frame.f_code.co_filename):
                return frame
            if _requests(frame, words) and not _hands_out(frame.f_code):
                return None
            frame = frame.f_back
        # A thread whose function is the request itself has no frame of the kernel.
        return first if threading.get_ident() != self._main and not _starts_in_library(first) else None

    def of_file(self, frame: FrameType | None) -> FrameType | None:
        """Return the kernel's frame that opens a file, or None if a library or this package opens it for itself."""
        while frame is not None:
            file = frame.f_code.co_filename
            if self._own(file):
                return frame
            if in_package(file) or (in_library(file) and not in_standard_library(file)):
                return None
            frame = frame.f_back
        return None

    def of_code(self, frame: FrameType | None) -> FrameType | None:
        """Return the kernel's frame that makes code: the nearest one, under no name of a file between."""
        while frame is not None and frame.f_code.co_filename.startswith("<") and not _is_frozen(frame):
            frame = frame.f_back
        return frame if frame is not None and self._own(frame.f_code.co_filename) else None


def _requests(frame: FrameType, words: frozenset[str]) -> bool:
    """Return whether a file's code names one of some functions, or calls it by a name of its module."""
    code = frame.f_code
    if code.co_filename.startswith("<") and not _is_frozen(frame):
        return False
    if not words.isdisjoint(code.co_names):
        return True
    held = (frame.f_globals.get(name) for name in code.co_names)
    return any(type(value) is BuiltinFunctionType and value.__name__ in words for value in held)


def _is_frozen(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen ")


def _hands_out(code: CodeType) -> bool:
    """Return whether a function of a library gives its caller the frames that it requests."""
    file = code.co_filename
    if not (in_standard_library(file) or in_library(file)):
        return False
    return any(file.endswith(os.sep + end) and (not names or code.co_name in names) for end, names in HANDS_OUT.items())


def _starts_in_library(frame: FrameType | None) -> bool:
    """Return whether a stack holds code of a library other than ``threading``, which starts every thread."""
    while frame is not None:
        file = frame.f_code.co_filename
        if Path(file).name not in ("threading.py", "thread.py") and (in_library(file) or in_standard_library(file)):
            return True
        frame = frame.f_back
    return False


def is_foreign_name(file: str, own: Callable[[str], bool]) -> bool:
    """Return whether code under the name of a file would pass for a library's or this package's."""
    return not own(file) and (in_standard_library(file) or in_library(file) or in_package(file) or _is_script(file))


def _is_script(file: str) -> bool:
    return file.endswith(".py") and file == getattr(sys.modules.get("__main__"), "__file__", None)
